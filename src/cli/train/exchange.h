#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "openmok/group.h"

// How what one rank of a run has written reaches the others.
namespace mok::train {

// Ranks that are threads of one process work on one model; ranks in processes have one each, of
// which every rank makes the same.
enum class Copies { OneForAll, OnePerRank };

using WritableBytes = std::span<std::byte>;

template <class T, class Allocator>
WritableBytes bytes_of(std::vector<T, Allocator>& buffer) {
    return std::as_writable_bytes(std::span(buffer));
}
// `count` numbers from `first` on.
template <class T>
WritableBytes bytes_of(T* first, int64_t count) {
    return std::as_writable_bytes(std::span(first, static_cast<std::size_t>(count)));
}

// Every member but duty is collective and bounded as the group's barriers are; `what` names the
// exchange in sentences. Whatever the copies are, when a member returns, every rank sees in its
// model what the member says.
class Exchange {
  public:
    Exchange(Group group, Copies copies) : group_(std::move(group)), copies_(copies) {}

    // The part of work on the whole model that is this rank's: with one model for all, part
    // `index` of `count`; with a model of its own, all of it.
    struct Duty {
        int index, count;
    };
    Duty duty() const;

    // Between two phases in which each rank does its duty.
    void meet(const char* what) const;

    // Each buffer holds rows of one size, rows_of_rank[r] of rank r behind those of rank r - 1;
    // every rank has written its own.
    void gather(const char* what, const std::vector<int64_t>& rows_of_rank,
                std::initializer_list<WritableBytes> buffers) const;

    // `rank` has written the buffers.
    void pass_on(const char* what, int rank, std::initializer_list<WritableBytes> buffers) const;

    // What must be equal on all ranks, "name value" each: "" where it is, otherwise one sentence
    // about the first rank that differs from rank 0 and its first fact that does, the same on every
    // rank.
    std::string difference(const std::vector<std::string>& facts) const;

  private:
    Group group_;
    Copies copies_;
};

// Rows per rank of `count`, split evenly; the first ranks take one more.
std::vector<int64_t> even_split(int64_t count, int num_ranks);

}  // namespace mok::train
