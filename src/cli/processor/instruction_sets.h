#pragma once

#include <cstddef>

// Which instructions the program may use and which the processor has, before any other code of the
// program runs. What is called here is compiled for the compiler's default processor and calls the
// C library only: a function of the C++ library would be shared with code compiled for another one.
namespace mok::cli {

// Sets of instructions, one bit each.
inline constexpr unsigned kSse42 = 1u << 0;
inline constexpr unsigned kPopcnt = 1u << 1;
inline constexpr unsigned kAvx = 1u << 2;
inline constexpr unsigned kAvx2 = 1u << 3;
inline constexpr unsigned kBmi1 = 1u << 4;
inline constexpr unsigned kBmi2 = 1u << 5;
inline constexpr unsigned kF16c = 1u << 6;
inline constexpr unsigned kFma = 1u << 7;
inline constexpr unsigned kAbm = 1u << 8;
inline constexpr unsigned kMovbe = 1u << 9;
inline constexpr unsigned kAvx512f = 1u << 10;

// Their names in /proc/cpuinfo, by bit.
inline constexpr const char* kInstructionSetNames[] = {
    "sse4_2", "popcnt", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "avx512f"};

// The sets that the compiler was allowed to use for the rest of the program: data, no code.
extern const unsigned kUsedInstructionSets;

// The sets that the processor has and the system lets programs use.
unsigned processor_instruction_sets();

// Writes "mok: this build uses ..., which the processor has not ...\n" for sets that are missing to
// `text`, cut at `size` bytes with the final 0; returns its length.
std::size_t missing_sets_sentence(unsigned missing, char* text, std::size_t size);

}  // namespace mok::cli
