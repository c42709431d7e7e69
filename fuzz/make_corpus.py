#!/usr/bin/env python3
"""Writes the hand-made seeds of corpus/safetensors: small files that are valid or broken in one way.

A name beginning with valid_ or invalid_ is a claim that tests/test_io_safetensors_corpus.cpp checks.
Files that the fuzzer finds are kept beside them under other names.
"""
import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / "corpus" / "safetensors"


def file_bytes(header, data=b"", length=None):
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(name, dtype, shape, begin, end):
    return f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}'


def one(dtype="U8", shape="[4]", begin="0", end="4", data=b"abcd"):
    return file_bytes("{" + entry("a", dtype, shape, begin, end) + "}", data)


def two(second, data):
    return file_bytes("{" + entry("a", "U8", "[4]", 0, 4) + "," + second + "}", data)


SEEDS = {
    "valid_empty": file_bytes("{}"),
    "valid_padded": file_bytes("{}      "),
    "valid_scalar": one("F32", "[]"),
    "valid_matrix": one("BF16", "[2,1]"),
    "valid_zero_elements": one("I64", "[0,3]", 0, 0, b""),
    "valid_unaligned": file_bytes(
        "{" + entry("a", "U8", "[1]", 0, 1) + "," + entry("b", "F64", "[1]", 1, 9) + "}", bytes(9)),
    "valid_metadata": file_bytes('{"__metadata__":{"format":"pt","\\u00e9":""}}'),
    "valid_out_of_order": two(entry("b", "U8", "[0]", 0, 0), b"abcd"),
    "invalid_nothing": b"",
    "invalid_seven_bytes": b"\x02\0\0\0\0\0\0",
    "invalid_no_header": file_bytes(""),
    "invalid_header_past_end": file_bytes("{}", length=3),
    "invalid_header_100000001": file_bytes("{}", length=100_000_001),
    "invalid_header_2_64_less_1": file_bytes("{}", length=2**64 - 1),
    "invalid_leading_space": file_bytes(" {}"),
    "invalid_byte_order_mark": file_bytes(b"\xef\xbb\xbf{}"),
    "invalid_array": file_bytes("[]"),
    "invalid_zero_byte": file_bytes("{}\0"),
    "invalid_unclosed": file_bytes('{"a":{"dtype":"U8"'),
    "invalid_not_utf8": file_bytes(b'{"__metadata__":{"k":"\xff"}}'),
    "invalid_lone_surrogate": file_bytes('{"__metadata__":{"k":"\\ud800"}}'),
    "invalid_nested_arrays": file_bytes('{"a":' + "[" * 2000),
    "invalid_nested_objects": file_bytes('{"a":' * 400),
    "invalid_metadata_number": file_bytes('{"__metadata__":{"k":1}}'),
    "invalid_metadata_twice": file_bytes('{"__metadata__":{},"__metadata__":{}}'),
    "invalid_name_twice": two(entry("a", "U8", "[4]", 4, 8), bytes(8)),
    "invalid_field_missing": file_bytes('{"a":{"dtype":"U8","shape":[0]}}'),
    "invalid_field_unknown": file_bytes('{"a":{"stride":[1]}}'),
    "invalid_dtype_unknown": one("F6_E3M2"),
    "invalid_dtype_number": file_bytes('{"a":{"dtype":8,"shape":[0],"data_offsets":[0,0]}}'),
    "invalid_negative_dimension": one(shape="[-4]"),
    "invalid_fraction": one(shape="[4.0]"),
    "invalid_dimension_2_64": one(shape="[18446744073709551616]"),
    "invalid_product_overflows": one(shape="[4294967296,4294967296]", end="0", data=b""),
    "invalid_bytes_overflow": one("F64", "[2305843009213693952]", end="0", data=b""),
    "invalid_one_offset": file_bytes('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0]}}'),
    "invalid_offsets_reversed": one(begin="4", end="0"),
    "invalid_offset_past_end": one(end="5", shape="[5]"),
    "invalid_offset_2_64_less_1": one(begin="18446744073709551615", end="3"),
    "invalid_size_not_of_shape": one(shape="[3]"),
    "invalid_truncated_data": one(data=b"abc"),
    "invalid_bytes_left_over": one(data=b"abcde"),
    "invalid_overlap": two(entry("b", "U8", "[4]", 3, 7), bytes(7)),
    "invalid_same_bytes": two(entry("b", "U8", "[4]", 0, 4), bytes(4)),
    "invalid_hole": two(entry("b", "U8", "[4]", 5, 9), bytes(9)),
    "invalid_hole_at_start": one(begin="1", end="5", data=b"abcde"),
}

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in SEEDS.items():
        (FOLDER / name).write_bytes(content)
