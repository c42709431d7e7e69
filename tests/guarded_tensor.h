#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "math/bf16.h"
#include "openmok/tensor.h"

namespace mok_test {

// An output tensor inside memory that nobody may touch: bytes before and after it and gaps between
// its rows and matrices hold kGuard; the elements begin as NaN.
class GuardedTensor {
  public:
    static constexpr unsigned char kGuard = 0xa5;
    static constexpr int64_t kMargin = 512;  // bytes on either side
    static constexpr int64_t kGap = 8;       // elements between rows

    GuardedTensor() = default;
    GuardedTensor(mok::DType dtype, std::initializer_list<int64_t> sizes) {
        tensor_ = mok::Tensor(nullptr, dtype, sizes);
        int64_t step = 1;
        for (int d = tensor_.dims - 1; d >= 0; --d) {
            tensor_.stride[d] = step;
            step = step * tensor_.shape[d] + kGap;
        }
        bytes_.assign(2 * kMargin + step * mok::dtype_bytes(dtype), kGuard);
        is_element_.assign(bytes_.size(), false);
        tensor_.data = bytes_.data() + kMargin;
        for_each([this](int64_t at) {
            const int64_t size = mok::dtype_bytes(tensor_.dtype);
            std::memset(bytes_.data() + kMargin + at * size, 0xff, size);
            std::fill_n(is_element_.begin() + kMargin + at * size, size, true);
        });
    }
    GuardedTensor(GuardedTensor&&) = default;
    GuardedTensor& operator=(GuardedTensor&&) = default;

    const mok::Tensor& tensor() const { return tensor_; }

    // The elements in row-major order, widened; and set from such.
    std::vector<float> values() const {
        std::vector<float> out;
        for_each([&](int64_t at) {
            const auto* data = static_cast<const char*>(tensor_.data);
            float value;
            if (tensor_.dtype == mok::DType::BF16) {
                mok::Bf16 narrow;
                std::memcpy(&narrow, data + 2 * at, 2);
                value = mok::to_f32(narrow);
            } else {
                std::memcpy(&value, data + 4 * at, 4);
            }
            out.push_back(value);
        });
        return out;
    }
    void set(const std::vector<float>& values) {
        size_t i = 0;
        for_each([&](int64_t at) {
            auto* data = static_cast<char*>(tensor_.data);
            const mok::Bf16 narrow = mok::to_bf16(values.at(i));
            if (tensor_.dtype == mok::DType::BF16) {
                std::memcpy(data + 2 * at, &narrow, 2);
            } else {
                std::memcpy(data + 4 * at, &values.at(i), 4);
            }
            ++i;
        });
    }

    void expect_guards_intact(const char* name) const {
        int64_t touched = 0;
        for (size_t i = 0; i < bytes_.size(); ++i) {
            touched += !is_element_[i] && bytes_[i] != kGuard;
        }
        EXPECT_EQ(touched, 0) << name << ": bytes outside the tensor were written";
    }

  private:
    template <class Visit>
    void for_each(Visit&& visit) const {
        const auto size = [this](int d) { return d < tensor_.dims ? tensor_.shape[d] : 1; };
        const auto step = [this](int d) { return d < tensor_.dims ? tensor_.stride[d] : 0; };
        for (int64_t i = 0; i < size(0); ++i) {
            for (int64_t j = 0; j < size(1); ++j) {
                for (int64_t k = 0; k < size(2); ++k) {
                    visit(i * step(0) + j * step(1) + k * step(2));
                }
            }
        }
    }

    mok::Tensor tensor_;
    std::vector<unsigned char> bytes_;
    std::vector<bool> is_element_;
};

}  // namespace mok_test
