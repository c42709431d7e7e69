#include <gtest/gtest.h>

#include <map>
#include <string>

#include "pass_accesses.h"
#include "pass_fixture.h"
#include "plan_fixture.h"
#include "task_graph.h"

// Nothing is overwritten while somebody reads it or still has to, and every reader finds its own
// rows. A task's accesses may fall anywhere between its begin and its end, so two tasks may touch
// one place, one of them writing, only if one ends before the other begins by the waits alone.
// That is decided for every timing at once, not for samples of it.
namespace mok::plan {
namespace {

using namespace fixture;

std::string name_of(const Task& task) {
    return std::string(task_name(task.kind)) + " tile " + std::to_string(task.tile) + " part " +
           std::to_string(task.part) + " piece " + std::to_string(task.piece);
}

struct PlaceState {
    int32_t owner = -1;
    int32_t writer = -1;           // the task that wrote it last
    std::vector<int32_t> readers;  // since then
};

void expect_inside_buffers(const Problem& p, const Place& place) {
    ASSERT_GE(place.col, 0);
    if (place.store <= Store::RingDY8) {
        ASSERT_GE(place.index, 0);
        ASSERT_LT(place.index, ring_rows(p));
        ASSERT_LT(place.index, p.macrobatch_rows);
    } else if (place.store <= Store::RingPartials) {
        ASSERT_LT(place.index * 128, ring_rows(p));
    } else if (place.store == Store::Scratch) {
        ASSERT_GT(max_slots(p), p.macrobatch_rows) << "there is no scratch";
    }
}

// What a pass must leave behind for later passes, and its results: all in place at its end.
void expect_left_behind(const Pass& pass, const std::map<Place, PlaceState>& places) {
    const Problem& p = pass.problem;
    const auto holds = [&](Store store, int32_t index, int32_t col, int32_t owner) {
        const auto found = places.find({store, index, col});
        ASSERT_TRUE(found != places.end() && found->second.owner == owner &&
                    found->second.writer >= 0)
            << "store " << static_cast<int>(store) << " index " << index << " column " << col;
    };
    const auto tiles = [](int32_t size, int32_t width) { return (size + width - 1) / width; };
    const int32_t slots = std::min(p.context_rows, num_slots(pass.table));
    const int32_t cols = tiles(p.intermediate, 128);
    const bool forward = pass.kind == PassKind::Forward || pass.kind == PassKind::Recompute;
    if (forward || pass.kind == PassKind::BackwardInput) {
        for (int32_t tile = 0; tile * 128 < slots; ++tile) {
            for (int32_t col = 0; col < cols; ++col) {
                holds(forward ? Store::ContextGateUp : Store::ContextOperands, tile, col, tile);
            }
        }
        for (int32_t slot = 0; p.keep_x && slot < slots; ++slot) {
            holds(forward ? Store::ContextX : Store::ContextDY, slot, 0, slot);
        }
    }
    if (pass.kind != PassKind::Backward && pass.kind != PassKind::Wgrad) return;
    for (int32_t e = p.shared_intermediate > 0 ? -1 : 0; e < num_local_experts(p); ++e) {
        const int32_t width = e < 0 ? p.shared_intermediate : p.intermediate;
        for (int32_t i = 0; i < tiles(width, 128) * tiles(p.hidden, 256); ++i) {
            holds(Store::Gradient, e * 16 + static_cast<int>(TaskKind::GateWgrad), i, 0);
            holds(Store::Gradient, e * 16 + static_cast<int>(TaskKind::UpWgrad), i, 0);
        }
        for (int32_t i = 0; i < tiles(p.hidden, 128) * tiles(width, 256); ++i) {
            holds(Store::Gradient, e * 16 + static_cast<int>(TaskKind::DownWgrad), i, 0);
        }
    }
}

void expect_safe(const Pass& pass) {
    const TaskGraph graph(pass);
    const HappensBefore relation(graph);
    ASSERT_EQ(static_cast<int32_t>(relation.order().size()), graph.size());
    AccessModel model(pass);
    std::map<Place, PlaceState> places;
    for (const int32_t id : relation.order()) {
        const Task& task = graph.nodes[id].task;
        const auto after = [&](int32_t other, const char* what) {
            ASSERT_TRUE(other < 0 || other == id || relation.ends_before(other, id))
                << name_of(task) << " " << what << " " << name_of(graph.nodes[other].task);
        };
        for (const Access& access : model.of(task)) {
            expect_inside_buffers(pass.problem, access.place);
            const auto [found, is_new] = places.try_emplace(access.place);
            PlaceState& place = found->second;
            if (is_new) place.owner = model.initial_owner(access.place);
            after(place.writer, "touches what may still be written by");
            if (!access.writes) {
                ASSERT_EQ(place.owner, access.owner)
                    << name_of(task) << " finds another's data in store "
                    << static_cast<int>(access.place.store) << " index " << access.place.index;
                place.readers.push_back(id);
                continue;
            }
            for (const int32_t reader : place.readers) after(reader, "overwrites what is read by");
            ASSERT_FALSE(access.place.store == Store::Gradient && place.writer >= 0)
                << name_of(task) << " writes a gradient again";
            place = {access.owner, id, {}};
            if (testing::Test::HasFatalFailure()) return;
        }
        if (testing::Test::HasFatalFailure()) return;
    }
    expect_left_behind(pass, places);
}

TEST(Ring, SafeForEveryNumberOfRanks) {
    for (int32_t ranks = 1; ranks <= kMaxRanks; ++ranks) {
        for_each_routing(ranks, 500, 1200 + ranks,
                         [](const Problem& p, const Batch&, const OwnedTable& owned) {
                             for_each_pass(p, owned.table, expect_safe);
                         });
        if (HasFailure()) return;
    }
}

// Small rings, so that rows come round many times and experts are split.
TEST(Ring, SafeWhereTheRingGoesRoundOften) {
    for (uint64_t seed = 0; seed < 25; ++seed) {
        for_each_routing(1 + seed % 4, 1000, 1300 + seed,
                         [&](Problem p, const Batch& batch, const OwnedTable&) {
                             const int32_t ring_tiles = 1 + static_cast<int32_t>(seed % 3);
                             p.macrobatch_rows = ring_tiles * kTileRows;
                             p.minibatch_rows = std::min(p.minibatch_rows, p.macrobatch_rows);
                             const OwnedTable owned(p, batch);
                             for_each_pass(p, owned.table, expect_safe);
                         });
        if (HasFailure()) return;
    }
}

// In FP8 dispatch writes rows of the ring also where their BF16 rows lie in the context.
TEST(Ring, SafeInFp8) {
    for (uint64_t seed = 0; seed < 25; ++seed) {
        for_each_routing(1 + seed % 4, 1000, 1400 + seed,
                         [&](Problem p, const Batch& batch, const OwnedTable&) {
                             const int32_t ring_tiles = 1 + static_cast<int32_t>(seed % 3);
                             p.precision = Precision::Fp8Block;
                             p.macrobatch_rows = ring_tiles * kTileRows;
                             p.minibatch_rows = std::min(p.minibatch_rows, p.macrobatch_rows);
                             const OwnedTable owned(p, batch);
                             for_each_pass(p, owned.table, expect_safe);
                         });
        if (HasFailure()) return;
    }
}

TEST(Ring, SafeForManyExperts) {
    for_many_experts([](const Problem& p, const Batch&, const OwnedTable& owned) {
        for_each_pass(p, owned.table, expect_safe);
    });
}

}  // namespace
}  // namespace mok::plan
