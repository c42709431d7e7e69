#include "arch/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <array>
#include <stdexcept>
#include <string>

namespace mok::arch {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
        throw std::runtime_error(
            "cuTensorMapEncodeTiled: expected in the CUDA driver (12.0 or later), "
            "found none");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

struct ElementType {
    CUtensorMapDataType type;
    int64_t bytes;
    int64_t box_bytes = 128;  // of a row
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
};
ElementType type_of(MapElement element) {
    switch (element) {
        case MapElement::BF16:
            return {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2};
        case MapElement::F32:
            return {CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4};
        case MapElement::HalfRowOfBytes:
            return {CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, 64, CU_TENSOR_MAP_SWIZZLE_NONE};
        case MapElement::ScaleTile:
            return {CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, 512, CU_TENSOR_MAP_SWIZZLE_NONE};
        default:
            return {CU_TENSOR_MAP_DATA_TYPE_UINT8, 1};
    }
}

enum class RowOrder { Plain, ByFours };

// The first dimension is the columns, the last one the matrices.
struct Shape {
    int dims;
    cuuint64_t sizes[4], strides[3];  // elements; bytes, of all dimensions but the first
    cuuint32_t box[4];
};
Shape shape_of(const MatrixStack& s, int box_rows, const ElementType& type, RowOrder order) {
    const auto size = [](int64_t n) { return static_cast<cuuint64_t>(n); };
    const auto box = [](int64_t n) { return static_cast<cuuint32_t>(n); };
    const auto stride = [&](int64_t n) { return size(n * type.bytes); };
    const cuuint32_t box_cols = box(type.box_bytes / type.bytes);
    if (order == RowOrder::Plain) {
        return {3,
                {size(s.cols), size(s.rows), size(s.count)},
                {stride(s.row_stride), stride(s.matrix_stride)},
                {box_cols, box(box_rows), 1}};
    }
    if (s.rows % 4 != 0) {
        throw std::runtime_error("tensor map by fours: expected a multiple of 4 rows, found " +
                                 std::to_string(s.rows));
    }
    // The third dimension's stride is smaller than the second's: an H200's driver takes it.
    return {4,
            {size(s.cols), size(s.rows / 4), 4, size(s.count)},
            {stride(4 * s.row_stride), stride(s.row_stride), stride(s.matrix_stride)},
            {box_cols, box(box_rows / 4), 4, 1}};
}

CUtensorMap encode_map(const MatrixStack& s, int box_rows, MapElement element, RowOrder order) {
    const ElementType type = type_of(element);
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = encode_function();
    CUtensorMap map;
    const Shape shape = shape_of(s, box_rows, type, order);
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    const CUresult result =
        encode(&map, type.type, shape.dims, const_cast<void*>(s.data), shape.sizes, shape.strides,
               shape.box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, type.swizzle,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        throw std::runtime_error("tensor map of " + std::to_string(s.count) + " x " +
                                 std::to_string(s.rows) + " x " + std::to_string(s.cols) +
                                 ": the driver answered error " + std::to_string(result));
    }
    return map;
}

struct MapKey {
    MatrixStack stack;
    int box_rows = 0;  // 0: of no map
    MapElement element;
    RowOrder order;

    bool operator==(const MapKey&) const = default;
    uint64_t hash() const {
        uint64_t h = reinterpret_cast<uintptr_t>(stack.data);
        for (const int64_t n :
             {stack.count, stack.rows, stack.cols, stack.row_stride, stack.matrix_stride,
              int64_t{box_rows}, static_cast<int64_t>(element), static_cast<int64_t>(order)}) {
            h = (h ^ static_cast<uint64_t>(n)) * 0x9e3779b97f4a7c15u;
            h ^= h >> 29;
        }
        return h;
    }
};

// A map at the place that its key's hash names; another one of that place drives it out.
struct KnownMaps {
    struct Entry {
        MapKey key{};
        CUtensorMap map;
    };
    std::array<Entry, 256> entries;
};

CUtensorMap known_map(const MatrixStack& stack, int box_rows, MapElement element, RowOrder order) {
    thread_local KnownMaps known;
    const MapKey key{stack, box_rows, element, order};
    KnownMaps::Entry& entry = known.entries[key.hash() % known.entries.size()];
    if (!(entry.key == key)) {
        entry.map = encode_map(stack, box_rows, element, order);
        entry.key = key;
    }
    return entry.map;
}

}  // namespace

CUtensorMap make_tensor_map(const MatrixStack& stack, int box_rows, MapElement element) {
    return known_map(stack, box_rows, element, RowOrder::Plain);
}
CUtensorMap make_tensor_map_by_fours(const MatrixStack& stack, int box_rows, MapElement element) {
    return known_map(stack, box_rows, element, RowOrder::ByFours);
}

}  // namespace mok::arch
