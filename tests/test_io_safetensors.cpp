// Sanitizers: asan
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "cli/io/safetensors.h"
#include "temporary_folder.h"

// The right values are bytes written by hand after the published description of the format.
namespace mok::io {
namespace {

std::string with_length(const std::string& header, const std::string& data = "") {
    std::string bytes(8, '\0');
    for (int i = 0; i < 8; ++i) {
        bytes[i] = static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
    }
    return bytes + header + data;
}

SafetensorsContent parse(const std::string& bytes) {
    return parse_safetensors(std::as_bytes(std::span(bytes.data(), bytes.size())), "f.safetensors");
}

// The error's sentence, or "" where the bytes are accepted.
std::string error_of(const std::string& bytes) {
    try {
        parse(bytes);
    } catch (const FileError& error) {
        return error.what();
    }
    return "";
}

std::string header_error(const std::string& header, std::size_t data_bytes = 0) {
    return error_of(with_length(header, std::string(data_bytes, 'x')));
}

TEST(SafetensorsReader, ReadsTensorsMetadataAndUnalignedData) {
    // "b" is one byte, so that the floats of "a" begin at an odd address.
    const std::string header =
        R"({"__metadata__":{"step":"7"},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
        R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[1,9]},)"
        R"("s":{"dtype":"BF16","shape":[],"data_offsets":[9,11]},)"
        R"("z":{"dtype":"I64","shape":[3,0],"data_offsets":[11,11]}})";
    // 1.0f is 0x3F800000 and -2.0f 0xC0000000 (IEEE 754); 0x3FC0 is 1.5 in BF16.
    const std::string bytes =
        with_length(header, std::string("\x05\x00\x00\x80\x3F\x00\x00\x00\xC0\xC0\x3F", 11));
    const SafetensorsContent content = parse(bytes);
    ASSERT_EQ(content.tensors.size(), 4u);
    EXPECT_EQ(content.metadata, (Metadata{{"step", "7"}}));

    const TensorEntry& a = content.tensors[0];
    EXPECT_EQ(a.name, "a");
    EXPECT_EQ(a.dtype, DType::F32);
    EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 1}));
    EXPECT_EQ(copy_elements<float>(a), (std::vector<float>{1.0f, -2.0f}));
    EXPECT_EQ(copy_elements<std::uint8_t>(content.tensors[1]), std::vector<std::uint8_t>{5});
    EXPECT_TRUE(content.tensors[2].shape.empty());
    EXPECT_EQ(copy_elements<std::uint16_t>(content.tensors[2]), std::vector<std::uint16_t>{0x3FC0});
    EXPECT_EQ(content.tensors[3].data.size(), 0u);
    EXPECT_THROW(copy_elements<float>(content.tensors[1]), std::logic_error);
}

TEST(SafetensorsReader, AcceptsNoTensorsPaddingAndEscapedNames) {
    EXPECT_TRUE(parse(with_length("{}")).tensors.empty());
    EXPECT_TRUE(parse(with_length("{}      ")).tensors.empty());
    const auto content = parse(with_length(
        R"({"a\u00e9\"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", std::string("x")));
    EXPECT_EQ(content.tensors.at(0).name, "a\xC3\xA9\"");
}

TEST(SafetensorsReader, KnowsEveryDtypeSize) {
    const std::vector<std::pair<std::string, std::size_t>> sizes = {
        {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
        {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
        {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8}};
    for (const auto& [name, num_bytes] : sizes) {
        const std::string header = R"({"t":{"dtype":")" + name +
                                   R"(","shape":[3],"data_offsets":[0,)" +
                                   std::to_string(3 * num_bytes) + "]}}";
        const auto content = parse(with_length(header, std::string(3 * num_bytes, 'x')));
        EXPECT_EQ(dtype_name(content.tensors.at(0).dtype), name);
    }
}

TEST(SafetensorsReader, RefusesWrongLengths) {
    EXPECT_EQ(error_of(""),
              "f.safetensors: expected a safetensors file of at least 8 bytes, found 0");
    EXPECT_EQ(error_of("1234567"),
              "f.safetensors: expected a safetensors file of at least 8 bytes, found 7");
    EXPECT_EQ(error_of(std::string("\x0A\0\0\0\0\0\0\0{}", 10)),
              "f.safetensors: expected a header of 10 bytes, found a file that ends after 2");
    EXPECT_EQ(error_of(std::string(8, '\xFF') + "{}"),
              "f.safetensors: expected a safetensors header of at most 100000000 bytes, found "
              "length 18446744073709551615");
    EXPECT_EQ(error_of(std::string("\x01\xE1\xF5\x05\0\0\0\0{}", 10)),
              "f.safetensors: expected a safetensors header of at most 100000000 bytes, found "
              "length 100000001");
}

TEST(SafetensorsReader, RefusesWhatIsNotAJsonObject) {
    for (const char* header : {"", " {}", "[]", "\xEF\xBB\xBF{}"}) {
        EXPECT_NE(header_error(header).find("header: expected its first byte to be '{'"),
                  std::string::npos)
            << header;
    }
    for (const char* header : {"{", "{}}", "{} x", "{\"a\"}", "{\"a\":}", "{,}", "{\"\xFF\":1}"}) {
        EXPECT_NE(header_error(header).find("header: expected JSON"), std::string::npos) << header;
    }
    EXPECT_EQ(header_error(std::string("{}\0 ", 4)),
              "f.safetensors: header: expected JSON, found a zero byte at its byte 2");
}

TEST(SafetensorsReader, RefusesWrongEntries) {
    struct Case {
        const char* entry;
        const char* message;
    };
    const Case cases[] = {
        {"1", "expected an object with dtype, shape and data_offsets, found a number"},
        {"null", "found null"},
        {"{}", "expected the field dtype, found none"},
        {R"({"dtype":"U8","data_offsets":[0,4]})", "expected the field shape, found none"},
        {R"({"dtype":"U8","shape":[4]})", "expected the field data_offsets, found none"},
        {R"({"dtype":"U8","dtype":"U8"})", "expected the field dtype once, found it twice"},
        {R"({"extra":1})", "expected the fields dtype, shape and data_offsets, found \"extra\""},
        {R"({"dtype":8})", "expected dtype to be a string, found a number"},
        {R"({"dtype":"F6_E2M3"})", "F64, C64, found \"F6_E2M3\""},
        {R"({"dtype":"f32"})", "found \"f32\""},
        {R"({"shape":4})",
         "expected shape to be an array of non-negative integers, found a number"},
        {R"({"shape":[-1]})", "found a negative integer"},
        {R"({"shape":[1.0]})", "found a number with a fraction or beyond 64 bits"},
        {R"({"shape":[18446744073709551616]})", "found a number with a fraction or beyond 64 bits"},
        {R"({"shape":[9223372036854775808]})", "expected dimensions below 2^63"},
        {R"({"shape":[true]})", "found a boolean"},
        {R"({"shape":[[1]]})", "found an array"},
        {R"({"shape":["1"]})", "found a string"},
        {R"({"data_offsets":[0]})", "array of two non-negative integers, found 1 of them"},
        {R"({"data_offsets":[0,4,4]})", "found a third number"},
        {R"({"data_offsets":{}})", "found an object"},
        {R"({"data_offsets":[-1,4]})", "found a negative integer"},
    };
    for (const Case& one : cases) {
        const std::string error = header_error(std::string("{\"q\":") + one.entry + "}", 4);
        EXPECT_EQ(error.find("f.safetensors: tensor \"q\": "), 0u) << error;
        EXPECT_NE(error.find(one.message), std::string::npos) << error;
    }
}

std::string u8_entry(const std::string& name, const std::string& shape,
                     const std::string& offsets) {
    return "\"" + name + R"(":{"dtype":"U8","shape":[)" + shape + R"(],"data_offsets":[)" +
           offsets + "]}";
}

TEST(SafetensorsReader, RefusesWrongExtents) {
    EXPECT_EQ(header_error("{" + u8_entry("q", "4", "0,5") + "}", 4),
              "f.safetensors: tensor \"q\": expected data_offsets with begin <= end <= 4 (the "
              "data's bytes), found [0, 5]");
    EXPECT_NE(header_error("{" + u8_entry("q", "4", "4,0") + "}", 4), "");
    EXPECT_NE(header_error("{" + u8_entry("q", "4", "18446744073709551615,3") + "}", 4), "");
    EXPECT_EQ(header_error("{" + u8_entry("q", "3", "0,4") + "}", 4),
              "f.safetensors: tensor \"q\": expected 3 bytes for its dtype and shape, found 4 in "
              "data_offsets [0, 4]");
    EXPECT_EQ(header_error("{" + u8_entry("q", "4294967296,4294967296", "0,0") + "}"),
              "f.safetensors: tensor \"q\": expected fewer than 2^63 bytes, found shape "
              "[4294967296, 4294967296] of U8");
    EXPECT_NE(header_error("{" + u8_entry("q", "4294967296,4294967296,0", "0,0") + "}"), "");
    EXPECT_EQ(header_error("{" + u8_entry("q", "9223372036854775807,0", "0,0") + "}"), "");
    std::string dimensions = "1";
    for (int i = 1; i < 64; ++i) dimensions += ",1";
    EXPECT_EQ(header_error("{" + u8_entry("q", dimensions, "0,1") + "}", 1), "");
    EXPECT_NE(header_error("{" + u8_entry("q", dimensions + ",1", "0,1") + "}", 1), "");
}

TEST(SafetensorsReader, RefusesOverlapHolesAndRepeatedNames) {
    const auto pair = [](const std::string& first, const std::string& second) {
        return "{" + first + "," + second + "}";
    };
    EXPECT_EQ(header_error(pair(u8_entry("a", "4", "0,4"), u8_entry("b", "4", "4,8")), 8), "");
    EXPECT_EQ(header_error(pair(u8_entry("a", "4", "4,8"), u8_entry("b", "4", "0,4")), 8), "");
    EXPECT_NE(header_error(pair(u8_entry("a", "4", "0,4"), u8_entry("b", "4", "3,7")), 7)
                  .find("tensor \"b\": expected it to begin at byte 4 of the data, where the "
                        "tensors before it end, found an overlap at 3"),
              std::string::npos);
    EXPECT_NE(header_error(pair(u8_entry("a", "4", "0,4"), u8_entry("b", "4", "0,4")), 4)
                  .find("found an overlap at 0"),
              std::string::npos);
    EXPECT_NE(header_error(pair(u8_entry("a", "4", "0,4"), u8_entry("b", "4", "5,9")), 9)
                  .find("found a hole at 5"),
              std::string::npos);
    EXPECT_NE(header_error("{" + u8_entry("a", "4", "1,5") + "}", 5).find("found a hole at 1"),
              std::string::npos);
    EXPECT_EQ(header_error("{" + u8_entry("a", "4", "0,4") + "}", 5),
              "f.safetensors: expected 4 bytes of data for its tensors, found 5");
    EXPECT_EQ(header_error("{}", 1),
              "f.safetensors: expected 0 bytes of data for its tensors, "
              "found 1");
    EXPECT_EQ(header_error(pair(u8_entry("a", "4", "0,4"), u8_entry("a", "4", "4,8")), 8),
              "f.safetensors: tensor \"a\": expected each name once, found it twice");
}

TEST(SafetensorsReader, RefusesWrongMetadata) {
    EXPECT_EQ(header_error(R"({"__metadata__":{"k":1}})"),
              "f.safetensors: __metadata__: key \"k\": expected a string, found a number");
    EXPECT_EQ(header_error(R"({"__metadata__":[]})"),
              "f.safetensors: __metadata__: expected an object of strings, found an array");
    EXPECT_EQ(header_error(R"({"__metadata__":{"k":"1","k":"2"}})"),
              "f.safetensors: __metadata__: key \"k\": expected each key once, found it twice");
    EXPECT_EQ(header_error(R"({"__metadata__":{},"__metadata__":{}})"),
              "f.safetensors: __metadata__: expected it once, found it twice");
}

TEST(SafetensorsReader, ErrorsStayOneShortLine) {
    const std::string name(1000, 'n');
    const std::string error = header_error("{\"\\n\\u001b[31m" + name + "\":1}");
    EXPECT_LT(error.size(), 250u);
    EXPECT_EQ(error.find_first_of("\n\x1b"), std::string::npos);
}

TEST(SafetensorsReader, NestingAndHugeHeadersEndSoon) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_NE(header_error("{\"a\":" + std::string(50'000'000, '[')), "");
    std::string nested;
    for (int i = 0; i < 1'000'000; ++i) nested += "{\"a\":";
    EXPECT_NE(header_error(nested), "");
    EXPECT_NE(header_error("{" + std::string(90'000'000, ' ')), "");
    EXPECT_NE(header_error("{\"a\":{\"shape\":[" + std::string(30'000'000, '1')), "");
    std::string many = "{";
    for (int i = 0; i < 200'000; ++i) many += u8_entry(std::to_string(i), "0", "0,0") + ",";
    many.back() = '}';
    EXPECT_EQ(parse(with_length(many)).tensors.size(), 200'000u);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

std::string read_bytes(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SafetensorsWriter, WritesTheBytesOfTheFormat) {
    const TemporaryFolder folder;
    const std::byte data[12] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
    const std::vector<TensorEntry> tensors = {
        {"u", DType::U8, {2}, std::span(data, 2)},
        {"d", DType::F64, {}, std::span(data, 8)},
        {"c", DType::U8, {1, 1}, std::span(data + 2, 1)},
    };
    const auto path = folder.path() / "out.safetensors";
    write_safetensors(path, tensors, {{"k", "v\""}});
    // Larger elements first, then names; the header is padded to a multiple of 8.
    std::string header =
        R"({"__metadata__":{"k":"v\""},"d":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
        R"("c":{"dtype":"U8","shape":[1,1],"data_offsets":[8,9]},)"
        R"("u":{"dtype":"U8","shape":[2],"data_offsets":[9,11]}})";
    while (header.size() % 8 != 0) header += ' ';
    EXPECT_EQ(read_bytes(path), with_length(header, std::string("\1\2\3\4\0\0\0\0\3\1\2", 11)));
}

TEST(SafetensorsWriter, ReadsBackThroughAFile) {
    const TemporaryFolder folder;
    const std::vector<float> values = {0.5f, -0.0f, std::numeric_limits<float>::infinity()};
    const TensorEntry tensor{"w", DType::F32, {3}, std::as_bytes(std::span(values))};
    const auto path = folder.path() / "w.safetensors";
    write_safetensors(path, std::span(&tensor, 1));
    SafetensorsFile file(path);
    SafetensorsFile moved = std::move(file);
    EXPECT_EQ(moved.names(), std::vector<std::string>{"w"});
    EXPECT_FALSE(moved.find("v"));
    ASSERT_TRUE(moved.find("w"));
    EXPECT_EQ(std::memcmp(moved.find("w")->data.data(), values.data(), 12), 0);
    // The mapped bytes outlast the replacement of the file.
    write_safetensors(path, {});
    EXPECT_EQ(copy_elements<float>(*moved.find("w")), values);
    EXPECT_TRUE(SafetensorsFile(path).names().empty());
}

TEST(SafetensorsWriter, RefusesWrongTensorsAndWritesNothing) {
    const TemporaryFolder folder;
    const std::byte data[4] = {};
    const std::vector<std::vector<TensorEntry>> wrong = {
        {{"a", DType::U8, {3}, data}},
        {{"a", DType::U8, {-4}, data}},
        {{"__metadata__", DType::U8, {4}, data}},
        {{"\xFF", DType::U8, {4}, data}},
        {{"a", DType::U8, {4}, data}, {"a", DType::U8, {4}, data}},
    };
    for (const auto& tensors : wrong) {
        EXPECT_THROW(write_safetensors(folder.path() / "x", tensors), FileError);
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsFile, NamesWhatCannotBeRead) {
    const TemporaryFolder folder;
    const auto error_of_path = [](const std::filesystem::path& path) -> std::string {
        try {
            SafetensorsFile file(path);
        } catch (const FileError& error) {
            return error.what();
        }
        return "";
    };
    const auto missing = folder.path() / "missing";
    EXPECT_EQ(error_of_path(missing),
              missing.string() + ": cannot be read: No such file or directory");
    EXPECT_EQ(error_of_path(folder.path()),
              folder.path().string() + ": expected a regular file, found a folder");
    EXPECT_EQ(error_of_path("/dev/null"),
              "/dev/null: expected a regular file, found a device or a pipe");
    std::ofstream(folder.path() / "empty").flush();
    EXPECT_NE(error_of_path(folder.path() / "empty").find("at least 8 bytes, found 0"),
              std::string::npos);
}

}  // namespace
}  // namespace mok::io
