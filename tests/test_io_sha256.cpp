#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "cli/io/sha256.h"

namespace mok::io {
namespace {

struct Vector {
    std::string message;
    const char* digest;
};

// NIST, "Examples with Intermediate Values: SHA-256" and the SHS test vectors (SHA256ShortMsg).
const Vector kVectors[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnop"
     "qrsmnopqrstnopqrstu",
     "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    {std::string(1'000'000, 'a'),
     "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
    {std::string("\xd3", 1), "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1"},
};

TEST(Sha256, PublishedVectors) {
    for (const Vector& vector : kVectors) {
        EXPECT_EQ(sha256_hex(vector.message), vector.digest);
    }
}

TEST(Sha256, PiecesAreTheWholeAndAFinishedOneBeginsAgain) {
    Sha256 hash;
    for (const Vector& vector : kVectors) {
        // 61 does not divide the block of 64 bytes.
        for (std::size_t at = 0; at < vector.message.size(); at += 61) {
            hash.update(std::string_view(vector.message).substr(at, 61));
        }
        hash.update(std::span<const std::byte>());
        EXPECT_EQ(hash.finish_hex(), vector.digest);
    }
}

TEST(Sha256, BytesAndTextAgree) {
    const std::byte bytes[] = {std::byte{0xd3}};
    EXPECT_EQ(sha256_hex(bytes), kVectors[5].digest);
}

}  // namespace
}  // namespace mok::io
