#include <cmath>
#include <cstdio>

#include "openmok/activation.h"

// The defaults that the headers promise: SwiGLU, that is no limit, alpha 1, beta 0.
int main() {
    const mok::Activation activation;
    if (!std::isinf(activation.limit) || activation.alpha != 1.0f || activation.beta != 0.0f) {
        std::fprintf(stderr, "outside: the installed headers do not default to SwiGLU\n");
        return 1;
    }
    std::puts("outside: openmok works");
    return 0;
}
