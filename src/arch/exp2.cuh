#pragma once

namespace mok::arch {

// 2^v by the special function unit; zero where that is below the normal range, which the full
// exponential reaches by three more instructions.
__device__ inline float exp2_normal(float v) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(v));
    return value;
}

}  // namespace mok::arch
