#pragma once

namespace mok::arch {

// How an operand of a product lies in shared memory: rows of the operand, each with its elements of
// k (K), or rows of k, each with its elements of the other dimension (Outer).
enum class Major : int { K = 0, Outer = 1 };

}  // namespace mok::arch
