#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "cli/common/global_layer.h"
#include "comm/group_state.h"

// What ranks in processes of their own make of a global batch, brought together. All collective,
// and bounded as the group's barriers are.
namespace mok::cli {

// Element r of the result is rank r's value.
template <class T>
std::vector<T> gather_values(const Group& group, const T& mine, const char* what) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all;
    for (const comm::Bytes& of_rank :
         group.state().exchange_bytes(group.rank(), std::as_bytes(std::span(&mine, 1)), what)) {
        if (of_rank.size() != sizeof(T)) throw Error("gathering: a rank sent another size");
        std::memcpy(&all.emplace_back(), of_rank.data(), sizeof(T));
    }
    return all;
}

// parts[r] is of the same size on all ranks: filled by rank r before the call, and on every rank
// after it.
void gather_parts(const Group& group, const std::vector<std::span<std::byte>>& parts,
                  const char* what);

// The same for a tensor of rows of one size, of which rows_of_rank[r] are rank r's, behind those of
// rank r - 1.
void gather_rows(const Group& group, const std::vector<int64_t>& rows_of_rank,
                 std::span<std::byte> tensor, const char* what);

// How many of the experts each rank owns.
std::vector<int64_t> experts_per_rank(int num_experts, int num_ranks);

// Element r of the result is rank r's elements; their number may differ.
template <class T>
std::vector<std::vector<T>> gather_vectors(const Group& group, std::span<const T> mine,
                                           const char* what) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<std::vector<T>> all;
    std::vector<std::span<std::byte>> parts;
    for (const std::size_t size : gather_values(group, mine.size(), what)) all.emplace_back(size);
    all[group.rank()].assign(mine.begin(), mine.end());
    for (std::vector<T>& part : all) parts.push_back(std::as_writable_bytes(std::span(part)));
    gather_parts(group, parts, what);
    return all;
}
template <class T>
std::vector<std::vector<T>> gather_vectors(const Group& group, const std::vector<T>& mine,
                                           const char* what) {
    return gather_vectors(group, std::span<const T>(mine), what);
}

// A result of which every rank has its own tokens' and its own experts' part, and sizes for all:
// afterwards all of it on every rank. Left out are the shared expert's weight gradients, which go
// from rank to rank.
void gather_result(const Group& group, const LayerShape& shape,
                   const std::vector<int64_t>& tokens_per_rank, GlobalResult& result);

// The shared expert's weight gradients as `rank` has them, on every rank.
void pass_on_shared_gradients(const Group& group, int rank, GlobalResult& result);

}  // namespace mok::cli
