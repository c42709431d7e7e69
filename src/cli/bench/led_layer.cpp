#include "cli/bench/led_layer.h"

#include <exception>

#include "cli/common/gather.h"

namespace mok::cli {
namespace {

enum class Call : int32_t { Prepare, Run, Table, Facts, Trace, End };

struct Order {
    Call call = Call::End;
    BenchPass pass = BenchPass::Forward;
};

// Rank 0's order, on every rank; the others' argument says nothing.
Order next_order(const Group& group, const Order& own = {}) {
    return gather_values(group, own, "next call of the benchmark").front();
}

}  // namespace

LedLayer::LedLayer(const Group& group, TimedLayer& layer)
    : group_(group), layer_(layer), num_exceptions_(std::uncaught_exceptions()) {}

LedLayer::~LedLayer() {
    try {
        if (std::uncaught_exceptions() == num_exceptions_) {
            next_order(group_, {Call::End});
        } else {
            group_.abandon("the benchmark failed");
        }
    } catch (const Error&) {
        // The group is broken, and the others know.
    }
}

void LedLayer::prepare(const BenchCase& c) {
    next_order(group_, {Call::Prepare});
    layer_.prepare(c);
}
double LedLayer::run_ms(BenchPass pass) {
    next_order(group_, {Call::Run, pass});
    return layer_.run_ms(pass);
}
double LedLayer::table_ms() {
    next_order(group_, {Call::Table});
    return layer_.table_ms();
}
PassFacts LedLayer::facts(BenchPass pass) {
    next_order(group_, {Call::Facts, pass});
    return layer_.facts(pass);
}
std::vector<TimedTask> LedLayer::trace(BenchPass pass) {
    next_order(group_, {Call::Trace, pass});
    return layer_.trace(pass);
}

void follow(const Group& group, TimedLayer& layer, std::vector<BenchCase> cases) {
    std::size_t num_prepared = 0;
    while (true) {
        const Order order = next_order(group);
        switch (order.call) {
            case Call::Prepare: {
                BenchCase& c = cases.at(num_prepared++);
                draw_routing(c);
                layer.prepare(c);
                break;
            }
            case Call::Run:
                layer.run_ms(order.pass);
                break;
            case Call::Table:
                layer.table_ms();
                break;
            case Call::Facts:
                layer.facts(order.pass);
                break;
            case Call::Trace:
                layer.trace(order.pass);
                break;
            case Call::End:
                return;
        }
    }
}

}  // namespace mok::cli
