#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace mok::io {

using Sha256Digest = std::array<std::byte, 32>;

// SHA-256 (FIPS 180-4) of all bytes given to update(), in order; computed by OpenSSL.
class Sha256 {
  public:
    Sha256();
    ~Sha256();

    void update(std::span<const std::byte> bytes);
    void update(std::string_view text);
    // Ends the message; the next update() begins another one.
    Sha256Digest finish();
    std::string finish_hex();  // 64 lower-case digits

  private:
    struct FreeContext {
        void operator()(evp_md_ctx_st* context) const;
    };
    void begin();

    std::unique_ptr<evp_md_ctx_st, FreeContext> context_;
};

std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);

}  // namespace mok::io
