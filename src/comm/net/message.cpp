#include "comm/net/message.h"

#include <cstring>

namespace mok::comm {
namespace {

template <class Number>
void put(Bytes& to, Number value) {
    for (std::size_t i = 0; i < sizeof(Number); ++i) {
        to.push_back(static_cast<std::byte>(value >> (8 * i)));
    }
}

template <class Number>
Number get(std::span<const std::byte> from) {
    Number value = 0;
    for (std::size_t i = 0; i < sizeof(Number); ++i) {
        value |= static_cast<Number>(from[i]) << (8 * i);
    }
    return value;
}

}  // namespace

BodyWriter& BodyWriter::u32(uint32_t value) {
    put(bytes_, value);
    return *this;
}
BodyWriter& BodyWriter::u64(uint64_t value) {
    put(bytes_, value);
    return *this;
}
BodyWriter& BodyWriter::blob(std::span<const std::byte> value) {
    u64(value.size());
    bytes_.insert(bytes_.end(), value.begin(), value.end());
    return *this;
}
BodyWriter& BodyWriter::text(const std::string& value) {
    return blob(std::as_bytes(std::span(value)));
}

std::span<const std::byte> BodyReader::take(uint64_t length) {
    if (length > rest_.size()) throw BadMessage("a message ends too early");
    const auto taken = rest_.first(length);
    rest_ = rest_.subspan(length);
    return taken;
}
uint32_t BodyReader::u32() {
    return get<uint32_t>(take(sizeof(uint32_t)));
}
uint64_t BodyReader::u64() {
    return get<uint64_t>(take(sizeof(uint64_t)));
}
Bytes BodyReader::blob() {
    const auto taken = take(u64());
    return {taken.begin(), taken.end()};
}
std::string BodyReader::text() {
    const auto taken = take(u64());
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
}

Bytes encoded(MessageKind kind, const BodyWriter& body) {
    Bytes bytes;
    bytes.reserve(kHeaderBytes + body.bytes().size());
    put(bytes, kMessageMagic);
    put(bytes, static_cast<uint32_t>(kind));
    put(bytes, static_cast<uint64_t>(body.bytes().size()));
    bytes.insert(bytes.end(), body.bytes().begin(), body.bytes().end());
    return bytes;
}

std::optional<Message> take_message(Bytes& stream, std::size_t max_body) {
    const std::span<const std::byte> bytes(stream);
    if (bytes.size() >= 4 && get<uint32_t>(bytes) != kMessageMagic) {
        throw BadMessage("the bytes are no message of a group");
    }
    if (bytes.size() < kHeaderBytes) return std::nullopt;
    const auto kind = get<uint32_t>(bytes.subspan(4));
    const auto length = get<uint64_t>(bytes.subspan(8));
    if (kind < static_cast<uint32_t>(MessageKind::Hello) ||
        kind > static_cast<uint32_t>(MessageKind::Farewell) || length > max_body) {
        throw BadMessage("the bytes are no message of a group");
    }
    if (bytes.size() - kHeaderBytes < length) return std::nullopt;
    const auto begin = stream.begin() + kHeaderBytes;
    const auto end = begin + static_cast<std::ptrdiff_t>(length);
    Message message{static_cast<MessageKind>(kind), Bytes(begin, end)};
    stream.erase(stream.begin(), end);
    return message;
}

}  // namespace mok::comm
