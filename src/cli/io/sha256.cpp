#include "cli/io/sha256.h"

#include <openssl/evp.h>

#include <stdexcept>

namespace mok::io {

namespace {

// OpenSSL fails here only where it cannot allocate or its own set-up lacks SHA-256.
void require(bool succeeded) {
    if (!succeeded) throw std::runtime_error("SHA-256: OpenSSL's digest is not available");
}

}  // namespace

void Sha256::FreeContext::operator()(evp_md_ctx_st* context) const {
    EVP_MD_CTX_free(context);
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
    begin();
}

Sha256::~Sha256() = default;

void Sha256::begin() {
    require(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::update(std::span<const std::byte> bytes) {
    require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

void Sha256::update(std::string_view text) {
    update(std::as_bytes(std::span<const char>(text.data(), text.size())));
}

Sha256Digest Sha256::finish() {
    Sha256Digest digest;
    auto* bytes = reinterpret_cast<unsigned char*>(digest.data());
    require(EVP_DigestFinal_ex(context_.get(), bytes, nullptr) == 1);
    begin();
    return digest;
}

std::string Sha256::finish_hex() {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string hex;
    for (const std::byte byte : finish()) {
        hex += kDigits[std::to_integer<unsigned>(byte >> 4)];
        hex += kDigits[std::to_integer<unsigned>(byte & std::byte{15})];
    }
    return hex;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
    Sha256 hash;
    hash.update(bytes);
    return hash.finish_hex();
}

std::string sha256_hex(std::string_view text) {
    Sha256 hash;
    hash.update(text);
    return hash.finish_hex();
}

}  // namespace mok::io
