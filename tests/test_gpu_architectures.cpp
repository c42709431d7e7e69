#include <gtest/gtest.h>

#include <vector>

#include "layer/gpu_architectures.h"

// Which GPUs the kernels of a build run on, and what is said of the others.
namespace mok::layer {
namespace {

const std::vector<GpuArchitecture> kAll = {
    {"sm_90a", 9, 0}, {"sm_100a", 10, 0}, {"sm_103a", 10, 3}};

TEST(GpuArchitectures, EachRunsOnItsOwnGpusAlone) {
    for (const GpuArchitecture& a : kAll) {
        EXPECT_EQ(why_no_kernels("GPU", a.major, a.minor, kAll), "") << a.name;
        for (const GpuArchitecture& other : kAll) {
            EXPECT_EQ(why_no_kernels("GPU", a.major, a.minor, std::vector{other}).empty(),
                      a.name == other.name)
                << a.name << " " << other.name;
        }
    }
}

TEST(GpuArchitectures, AnotherGpuGetsASentence) {
    EXPECT_EQ(
        why_no_kernels("CUDA device 0", 8, 0, kAll),
        "CUDA device 0: expected compute capability 9.0, 10.0 or 10.3 (this build has kernels "
        "for sm_90a, sm_100a and sm_103a), found 8.0");
    EXPECT_EQ(why_no_kernels("CUDA device 1", 10, 3, std::vector{kAll[0]}),
              "CUDA device 1: expected compute capability 9.0 (this build has kernels for sm_90a), "
              "found 10.3");
}

// sm_XYa is compute capability X.Y.
TEST(GpuArchitectures, NamesAreThoseOfTheCapabilities) {
    for (const GpuArchitecture& a : gpu_architectures()) {
        EXPECT_EQ(a.name, "sm_" + std::to_string(a.major) + std::to_string(a.minor) + "a");
    }
}

}  // namespace
}  // namespace mok::layer
