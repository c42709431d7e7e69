#include <unistd.h>

#include "cli/processor/instruction_sets.h"

namespace mok::cli {
namespace {

// The first priority that a program may take: before every other static object of the program.
[[gnu::constructor(101)]] void refuse_processor() {
    const unsigned missing = kUsedInstructionSets & ~processor_instruction_sets();
    if (missing == 0) return;
    char sentence[320];
    const std::size_t length = missing_sets_sentence(missing, sentence, sizeof(sentence));
    // Where stderr is closed the exit status says it alone.
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, sentence, length);
    _exit(2);
}

}  // namespace
}  // namespace mok::cli
