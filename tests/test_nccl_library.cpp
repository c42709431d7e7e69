// NCCL that is missing, of another version, or not NCCL.
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/nccl_library.h"
#include "openmok/error.h"

namespace mok::comm {
namespace {

// The stand-in of tests/fake_cuda: version 2.28.9, with ncclGetVersion and nothing else.
const std::string kFake = std::string(MOK_FAKE_LIBRARIES) + "/libnccl.so.2";

class NcclLibraryTest : public testing::Test {
  protected:
    ~NcclLibraryTest() override {
        for (const char* name : {"MOK_NCCL_LIBRARY", "FAKE_OLD_NCCL", "NCCL_NVLS_ENABLE"}) {
            unsetenv(name);
        }
    }
    static void use(const std::string& path) { setenv("MOK_NCCL_LIBRARY", path.c_str(), 1); }
    static std::string sentence(int version) {
        try {
            const NcclLibrary library(version);
        } catch (const Error& e) {
            return e.what();
        }
        return "no error";
    }
};

TEST_F(NcclLibraryTest, IsMissing) {
    use("/no/such/libnccl.so.2");
    EXPECT_EQ(sentence(22809),
              "NCCL: expected the library /no/such/libnccl.so.2, found none "
              "(/no/such/libnccl.so.2: cannot open shared object file: No such file or directory); "
              "MOK_NCCL_LIBRARY sets its path");
}

TEST_F(NcclLibraryTest, HasAnotherVersion) {
    use(kFake);
    EXPECT_EQ(
        sentence(22907),
        "NCCL: expected version 2.29.7, which this program was compiled for, found 2.28.9 in " +
            kFake);
    setenv("FAKE_OLD_NCCL", "1", 1);
    EXPECT_EQ(
        sentence(22809),
        "NCCL: expected version 2.28.9, which this program was compiled for, found 2.8.9 in " +
            kFake);
}

TEST_F(NcclLibraryTest, IsNoNccl) {
    use("libm.so.6");
    EXPECT_EQ(sentence(22809),
              "NCCL: expected the function ncclGetVersion in libm.so.6, found none");
}

TEST_F(NcclLibraryTest, IsOpenedWithMulticastOffUnlessItIsSet) {
    use(kFake);
    const NcclLibrary library(22809);
    EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "0");
    int version = 0;
    EXPECT_EQ(library.function<int(int*)>("ncclGetVersion")(&version), 0);
    EXPECT_EQ(version, 22809);
    EXPECT_THROW(library.function<int()>("ncclDevCommCreate"), Error);
    setenv("NCCL_NVLS_ENABLE", "1", 1);
    const NcclLibrary again(22809);
    EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "1");
}

}  // namespace
}  // namespace mok::comm
