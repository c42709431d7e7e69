#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/group_state.h"

// What the ranks of a group of processes say to each other: messages over a byte stream, each a
// header of 16 bytes {u32 magic, u32 kind, u64 length of the body} and a body. Numbers are
// little-endian; a text or blob is its length as u64 and its bytes.
namespace mok::comm {

inline constexpr uint32_t kMessageMagic = 0x474b4f4d;  // "MOKG"
inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr std::size_t kHeaderBytes = 16;

enum class MessageKind : uint32_t {
    Hello = 1,  // rank -> hub: u32 version, i32 rank, i32 size, text job
    Welcome,    // hub -> rank
    Refusal,    // hub -> rank: text why
    Arrival,    // rank -> hub: u64 number, u64 timeout_ns, u64 warn_after_ns, text what, blob
    Gathered,   // hub -> rank: u64 number, one blob per rank
    LateRank,   // hub -> rank: i32 rank that the receiver waits for
    Broken,     // both ways: i32 peer, text why
    Farewell,   // both ways: the sender leaves in peace
};

// Bytes that are no message.
class BadMessage : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

struct Message {
    MessageKind kind;
    Bytes body;
};

// Puts a body together.
class BodyWriter {
  public:
    BodyWriter& u32(uint32_t value);
    BodyWriter& i32(int32_t value) { return u32(static_cast<uint32_t>(value)); }
    BodyWriter& u64(uint64_t value);
    BodyWriter& blob(std::span<const std::byte> value);
    BodyWriter& text(const std::string& value);
    const Bytes& bytes() const { return bytes_; }

  private:
    Bytes bytes_;
};

// Takes a body apart in the same order; throws BadMessage where it ends too early.
class BodyReader {
  public:
    explicit BodyReader(const Bytes& body) : rest_(body) {}
    uint32_t u32();
    int32_t i32() { return static_cast<int32_t>(u32()); }
    uint64_t u64();
    Bytes blob();
    std::string text();

  private:
    std::span<const std::byte> take(uint64_t length);
    std::span<const std::byte> rest_;
};

Bytes encoded(MessageKind kind, const BodyWriter& body);

// The first message of a stream's bytes, which loses it; none while it is not complete. Throws
// BadMessage where the bytes are no message or its body exceeds max_body bytes.
std::optional<Message> take_message(Bytes& stream, std::size_t max_body);

}  // namespace mok::comm
