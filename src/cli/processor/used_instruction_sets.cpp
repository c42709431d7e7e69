#include "cli/processor/instruction_sets.h"

namespace mok::cli {

constinit const unsigned kUsedInstructionSets = 0u
#ifdef __SSE4_2__
                                                | kSse42
#endif
#ifdef __POPCNT__
                                                | kPopcnt
#endif
#ifdef __AVX__
                                                | kAvx
#endif
#ifdef __AVX2__
                                                | kAvx2
#endif
#ifdef __BMI__
                                                | kBmi1
#endif
#ifdef __BMI2__
                                                | kBmi2
#endif
#ifdef __F16C__
                                                | kF16c
#endif
#ifdef __FMA__
                                                | kFma
#endif
#ifdef __LZCNT__
                                                | kAbm
#endif
#ifdef __MOVBE__
                                                | kMovbe
#endif
#ifdef __AVX512F__
                                                | kAvx512f
#endif
    ;

}  // namespace mok::cli
