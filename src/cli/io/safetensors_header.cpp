#include "cli/io/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace mok::io {

namespace {

// Reads the header event by event, so that nesting is refused at its second bracket and no tree is
// built. Every event either moves `at_` on or throws.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
  public:
    explicit HeaderReader(std::string_view file) : file_(file) {}

    Header take() { return std::move(header_); }

    bool null() override { unexpected("null"); }
    bool boolean(bool) override { unexpected("a boolean"); }
    bool number_integer(number_integer_t) override { unexpected("a negative integer"); }
    bool number_float(number_float_t, const string_t&) override {
        unexpected("a number with a fraction or beyond 64 bits");
    }
    bool binary(binary_t&) override { unexpected("binary data"); }

    bool number_unsigned(number_unsigned_t value) override {
        if (at_ == At::ShapeItem) return add_dimension(value);
        if (at_ != At::OffsetsItem) unexpected("a number");
        if (num_offsets_ == 2) unexpected("a third number");
        (num_offsets_++ == 0 ? entry_.begin : entry_.end) = value;
        return true;
    }

    bool string(string_t& value) override {
        if (at_ == At::Dtype) {
            const auto dtype = dtype_from_name(value);
            if (!dtype) {
                fail("expected dtype to be one of {}, found {}", all_dtype_names(),
                     in_quotes(value));
            }
            entry_.dtype = *dtype;
            at_ = At::Entry;
            return true;
        }
        if (at_ != At::MetadataValue) unexpected("a string");
        if (!header_.metadata.emplace(metadata_key_, value).second) {
            fail("expected each key once, found it twice");
        }
        at_ = At::Metadata;
        return true;
    }

    bool start_object(std::size_t) override {
        switch (at_) {
            case At::Start:
                at_ = At::Top;
                return true;
            case At::EntryOpen:
                at_ = At::Entry;
                return true;
            case At::MetadataOpen:
                at_ = At::Metadata;
                return true;
            default:
                unexpected("an object");
        }
    }

    bool key(string_t& key) override {
        if (at_ == At::Top) return top_key(key);
        if (at_ == At::Entry) return entry_key(key);
        metadata_key_ = key;
        at_ = At::MetadataValue;
        return true;
    }

    bool end_object() override {
        if (at_ == At::Entry) {
            if (!has_dtype_) fail("expected the field dtype, found none");
            if (!has_shape_) fail("expected the field shape, found none");
            if (!has_offsets_) fail("expected the field data_offsets, found none");
            header_.entries.push_back(std::exchange(entry_, {}));
            has_dtype_ = has_shape_ = has_offsets_ = false;
        }
        at_ = At::Top;
        return true;
    }

    bool start_array(std::size_t) override {
        if (at_ == At::Shape) {
            at_ = At::ShapeItem;
        } else if (at_ == At::Offsets) {
            at_ = At::OffsetsItem;
            num_offsets_ = 0;
        } else {
            unexpected("an array");
        }
        return true;
    }

    bool end_array() override {
        if (at_ == At::OffsetsItem && num_offsets_ != 2) {
            unexpected(fmt::format("{} of them", num_offsets_));
        }
        at_ = At::Entry;
        return true;
    }

    bool parse_error(std::size_t position, const std::string&,
                     const nlohmann::detail::exception&) override {
        throw FileError(fmt::format("{}: header: expected JSON, found an error at its byte {}",
                                    file_, position));
    }

  private:
    // What the next event must be.
    enum class At {
        Start,
        Top,            // a key of the header, or its end
        EntryOpen,      // the object of a tensor
        Entry,          // a key of a tensor, or its end
        Dtype,          // its string
        Shape,          // its array
        ShapeItem,      // a dimension, or the end
        Offsets,        // its array
        OffsetsItem,    // an offset, or the end
        MetadataOpen,   // the object of the metadata
        Metadata,       // a key of the metadata, or its end
        MetadataValue,  // its string
    };

    bool top_key(const std::string& key) {
        if (key != kMetadataKey) {
            entry_.name = key;
            at_ = At::EntryOpen;
            return true;
        }
        at_ = At::MetadataOpen;
        metadata_key_.clear();
        if (std::exchange(has_metadata_, true)) fail("expected it once, found it twice");
        return true;
    }

    bool entry_key(const std::string& key) {
        if (key == "dtype") {
            at_ = At::Dtype;
            return once(has_dtype_, key);
        }
        if (key == "shape") {
            at_ = At::Shape;
            return once(has_shape_, key);
        }
        if (key == "data_offsets") {
            at_ = At::Offsets;
            return once(has_offsets_, key);
        }
        fail("expected the fields dtype, shape and data_offsets, found {}", in_quotes(key));
    }

    bool once(bool& seen, const std::string& key) {
        if (std::exchange(seen, true)) fail("expected the field {} once, found it twice", key);
        return true;
    }

    bool add_dimension(std::uint64_t value) {
        if (entry_.shape.size() == kMaxDimensions) {
            fail("expected at most {} dimensions, found more", kMaxDimensions);
        }
        if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
            fail("expected dimensions below 2^63, found {}", value);
        }
        entry_.shape.push_back(static_cast<std::int64_t>(value));
        return true;
    }

    std::string place() const {
        switch (at_) {
            case At::Start:
            case At::Top:
                return fmt::format("{}: header", file_);
            case At::MetadataOpen:
            case At::Metadata:
                return fmt::format("{}: {}", file_, kMetadataKey);
            case At::MetadataValue:
                return fmt::format("{}: {}: key {}", file_, kMetadataKey, in_quotes(metadata_key_));
            default:
                return tensor_place(file_, entry_.name);
        }
    }

    std::string_view expected() const {
        switch (at_) {
            case At::Dtype:
                return "dtype to be a string";
            case At::Shape:
            case At::ShapeItem:
                return "shape to be an array of non-negative integers";
            case At::Offsets:
            case At::OffsetsItem:
                return "data_offsets to be an array of two non-negative integers";
            case At::MetadataOpen:
                return "an object of strings";
            case At::MetadataValue:
                return "a string";
            case At::EntryOpen:
                return "an object with dtype, shape and data_offsets";
            default:
                return "a JSON object";
        }
    }

    [[noreturn]] void unexpected(std::string_view found) const {
        fail("expected {}, found {}", expected(), found);
    }

    template <typename... Parts>
    [[noreturn]] void fail(fmt::format_string<Parts...> text, Parts&&... parts) const {
        throw FileError(place() + ": " + fmt::format(text, std::forward<Parts>(parts)...));
    }

    std::string_view file_;
    Header header_;
    At at_ = At::Start;
    HeaderEntry entry_;
    bool has_dtype_ = false;
    bool has_shape_ = false;
    bool has_offsets_ = false;
    int num_offsets_ = 0;
    bool has_metadata_ = false;
    std::string metadata_key_;
};

}  // namespace

Header parse_header(std::string_view json, std::string_view file) {
    if (json.empty() || json.front() != '{') {
        throw FileError(fmt::format("{}: header: expected its first byte to be '{{', found {}",
                                    file, json.empty() ? "nothing" : in_quotes(json.substr(0, 1))));
    }
    // The JSON library takes a zero byte for the end of its input.
    if (const auto zero = json.find('\0'); zero != std::string_view::npos) {
        throw FileError(
            fmt::format("{}: header: expected JSON, found a zero byte at its byte {}", file, zero));
    }
    HeaderReader reader(file);
    nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
    return reader.take();
}

std::uint64_t tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape,
                           std::string_view where) {
    std::int64_t product = static_cast<std::int64_t>(dtype_bytes(dtype));
    bool has_zero = false;
    for (const std::int64_t dimension : shape) {
        if (dimension < 0) {
            throw FileError(fmt::format("{}: expected non-negative dimensions, found [{}]", where,
                                        fmt::join(shape, ", ")));
        }
        has_zero = has_zero || dimension == 0;
        if (dimension != 0 && __builtin_mul_overflow(product, dimension, &product)) {
            throw FileError(
                fmt::format("{}: expected fewer than 2^63 bytes, found shape [{}] of {}", where,
                            fmt::join(shape, ", "), dtype_name(dtype)));
        }
    }
    return has_zero ? 0 : static_cast<std::uint64_t>(product);
}

std::string tensor_place(std::string_view file, std::string_view name) {
    return fmt::format("{}: tensor {}", file, in_quotes(name));
}

}  // namespace mok::io
