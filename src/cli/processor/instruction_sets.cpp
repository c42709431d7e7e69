#include "cli/processor/instruction_sets.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace mok::cli {

unsigned processor_instruction_sets() {
    unsigned sets = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2")) sets |= kSse42;
    if (__builtin_cpu_supports("popcnt")) sets |= kPopcnt;
    if (__builtin_cpu_supports("avx")) sets |= kAvx;
    if (__builtin_cpu_supports("avx2")) sets |= kAvx2;
    if (__builtin_cpu_supports("bmi")) sets |= kBmi1;
    if (__builtin_cpu_supports("bmi2")) sets |= kBmi2;
    if (__builtin_cpu_supports("fma")) sets |= kFma;
    if (__builtin_cpu_supports("avx512f")) sets |= kAvx512f;
    // Clang's builtin does not know the others. F16C works on AVX's registers.
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) != 0) {
        if ((c & bit_F16C) != 0 && (sets & kAvx) != 0) sets |= kF16c;
        if ((c & bit_MOVBE) != 0) sets |= kMovbe;
    }
    if (__get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c & bit_LZCNT) != 0) sets |= kAbm;
#endif
    return sets;
}

std::size_t missing_sets_sentence(unsigned missing, char* text, std::size_t size) {
    char names[128] = "";
    for (const char* name : kInstructionSetNames) {
        if ((missing & 1u) != 0) {
            if (names[0] != '\0') strcat(names, ", ");
            strcat(names, name);
        }
        missing >>= 1;
    }
    snprintf(text, size,
             "mok: this build uses instructions that the processor has not: %s (configure it with "
             "-DMOK_CPU_ARCH= for any processor)\n",
             names);
    return strlen(text);
}

}  // namespace mok::cli
