#include "cli/common/rank_threads.h"

#include <exception>
#include <system_error>
#include <thread>

#include "comm/group_state.h"
#include "openmok/diagnostics.h"

namespace mok::cli {

std::vector<Group> make_groups(const Device& device, int num_ranks, const GroupOptions& options) {
    return device.kind == Device::Kind::Cuda ? Group::cuda_virtual(num_ranks, device.index, options)
                                             : Group::in_process(num_ranks, options);
}

void run_ranks(const std::vector<Group>& groups, const std::function<void(const Group&)>& body) {
    std::vector<std::exception_ptr> own(groups.size()), followed(groups.size());
    {
        std::vector<std::jthread> threads;
        const auto run_rank = [&](size_t r) {
            try {
                body(groups[r]);
            } catch (const InjectedDeath&) {
                followed[r] = std::current_exception();
            } catch (const TimeoutError&) {
                followed[r] = std::current_exception();
            } catch (const std::exception& e) {
                own[r] = std::current_exception();
                groups[r].abandon(e.what());
            }
        };
        for (size_t r = 0; r < groups.size(); ++r) {
            try {
                threads.emplace_back(run_rank, r);
            } catch (const std::system_error& e) {  // the ranks that have begun wait for this one
                groups[r].abandon(e.what());
                throw;
            }
        }
    }
    for (const std::exception_ptr& error : own) {
        if (error) std::rethrow_exception(error);
    }
    // The survivors' sentence says more than the death itself.
    std::exception_ptr death;
    for (const std::exception_ptr& error : followed) {
        if (!error) continue;
        try {
            std::rethrow_exception(error);
        } catch (const InjectedDeath&) {
            death = error;
        }
    }
    if (death) std::rethrow_exception(death);
}

void meet(const Group& group, const char* what) {
    group.state().barrier(group.rank(), what);
}

}  // namespace mok::cli
