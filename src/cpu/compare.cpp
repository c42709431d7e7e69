#include "cpu/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace mok {
namespace {

void check_length(std::string_view tensor, const char* side, size_t found,
                  std::span<const int64_t> shape) {
    int64_t expected = 1;
    for (int64_t size : shape) expected *= size;
    if (static_cast<int64_t>(found) == expected) return;
    throw std::invalid_argument(std::string(tensor) + ": the " + side + " tensor holds " +
                                std::to_string(found) + " elements, expected " +
                                std::to_string(expected) + " from its shape");
}

std::vector<int64_t> coordinate_of(size_t index, std::span<const int64_t> shape) {
    std::vector<int64_t> coordinate(shape.size());
    auto rest = static_cast<int64_t>(index);
    for (size_t dim = shape.size(); dim-- > 0;) {
        coordinate[dim] = rest % shape[dim];
        rest /= shape[dim];
    }
    return coordinate;
}

template <class... Values>
std::string format(const char* pattern, Values... values) {
    std::array<char, 160> text{};
    std::snprintf(text.data(), text.size(), pattern, values...);
    return text.data();
}

// FP32's range is the widest that a compared tensor has.
bool is_finite_want(double want) {
    return std::abs(want) <= std::numeric_limits<float>::max();
}

double error_of(float found, double want) {
    const double error = std::abs(static_cast<double>(found) - want);
    return error < std::numeric_limits<float>::min() ? 0.0 : error;
}

// Sums over the elements of a row or a tensor whose want is finite.
struct Sums {
    double want_squares = 0.0;
    double error_squares = 0.0;
    int64_t count = 0;
    double largest_error = 0.0;
    size_t largest_index = 0;

    void add(float found, double want, size_t index) {
        if (!is_finite_want(want)) return;
        const double error = error_of(found, want);
        want_squares += want * want;
        error_squares += error * error;
        ++count;
        if (error > largest_error) {
            largest_error = error;
            largest_index = index;
        }
    }
    double rms() const {
        return count == 0 ? 0.0 : std::sqrt(want_squares / static_cast<double>(count));
    }
    // The error's norm as a part of the norm of `count` elements of this RMS.
    double error_part(double size) const {
        if (error_squares == 0.0) return 0.0;
        return std::sqrt(error_squares / static_cast<double>(count)) / size;
    }
};

class Comparison {
  public:
    Comparison(std::string_view tensor, std::span<const float> found, std::span<const double> want,
               std::span<const int64_t> shape, const Bounds& bounds)
        : tensor_(tensor), found_(found), want_(want), shape_(shape), bounds_(bounds) {
        row_length_ = shape.empty() ? 1 : static_cast<size_t>(shape.back());
    }

    std::optional<Mismatch> run() const {
        if (auto mismatch = check_non_finite()) return mismatch;
        if (auto mismatch = check_zeros()) return mismatch;
        const Sums all = sums(0, want_.size());
        for (size_t first = 0; first < want_.size(); first += row_length_) {
            if (auto mismatch = check_row(first, all)) return mismatch;
        }
        return check_tensor(all);
    }

  private:
    std::optional<Mismatch> check_non_finite() const {
        for (size_t i = 0; i < want_.size(); ++i) {
            if (std::isfinite(found_[i]) == is_finite_want(want_[i])) continue;
            return mismatch(i, Bound::kNonFinite, 0.0, 0.0);
        }
        return std::nullopt;
    }

    std::optional<Mismatch> check_zeros() const {
        for (size_t first = 0; first < want_.size(); first += row_length_) {
            const auto row = want_.subspan(first, row_length_);
            const bool zero_row = std::ranges::all_of(row, [](double v) { return v == 0.0; });
            if (!zero_row && !bounds_.every_zero_is_exact) continue;
            for (size_t i = first; i < first + row_length_; ++i) {
                if (want_[i] == 0.0 && found_[i] != 0.0f) {
                    return mismatch(i, Bound::kZero, 0.0, 0.0);
                }
            }
        }
        return std::nullopt;
    }

    std::optional<Mismatch> check_row(size_t first, const Sums& all) const {
        const Sums row = sums(first, row_length_);
        const bool short_row = static_cast<int64_t>(row_length_) < kShortRow;
        const double floor = (short_row ? 1.0 : bounds_.row_floor) * all.rms();
        const double size = std::max({row.rms(), floor, bounds_.min_rms});
        for (size_t i = first; i < first + row_length_; ++i) {
            if (!is_finite_want(want_[i])) continue;
            const double error = error_of(found_[i], want_[i]);
            const double limit =
                bounds_.element_rms * size + bounds_.element_own * std::abs(want_[i]);
            if (exceeds(error, limit)) return mismatch(i, Bound::kElement, error, limit);
        }
        const double part = row.error_part(size);
        if (!exceeds(part, bounds_.row)) return std::nullopt;
        return mismatch(row.largest_index, Bound::kRow, part, bounds_.row);
    }

    std::optional<Mismatch> check_tensor(const Sums& all) const {
        const double part = all.error_part(std::max(all.rms(), bounds_.min_rms));
        const double limit = all.count < kShortRow ? bounds_.row : bounds_.tensor;
        if (!exceeds(part, limit)) return std::nullopt;
        return mismatch(all.largest_index, Bound::kTensor, part, limit);
    }

    // No error is within every bound, a bound of zero included.
    static bool exceeds(double error, double limit) { return error != 0.0 && !(error < limit); }

    Sums sums(size_t first, size_t count) const {
        Sums result;
        for (size_t i = first; i < first + count; ++i) result.add(found_[i], want_[i], i);
        return result;
    }

    Mismatch mismatch(size_t index, Bound bound, double error, double limit) const {
        Mismatch result;
        result.tensor = tensor_;
        result.coordinate = coordinate_of(index, shape_);
        result.bound = bound;
        result.found = found_[index];
        result.want = want_[index];
        result.error = error;
        result.limit = limit;
        return result;
    }

    std::string_view tensor_;
    std::span<const float> found_;
    std::span<const double> want_;
    std::span<const int64_t> shape_;
    Bounds bounds_;
    size_t row_length_ = 1;
};

uint64_t load_bits(const std::byte* from, size_t bytes) {
    uint8_t one = 0;
    uint16_t two = 0;
    uint32_t four = 0;
    uint64_t eight = 0;
    switch (bytes) {
        case 1:
            std::memcpy(&one, from, 1);
            return one;
        case 2:
            std::memcpy(&two, from, 2);
            return two;
        case 4:
            std::memcpy(&four, from, 4);
            return four;
        default:
            std::memcpy(&eight, from, 8);
            return eight;
    }
}

}  // namespace

std::string Mismatch::sentence() const {
    std::string text = tensor + "[";
    for (size_t dim = 0; dim < coordinate.size(); ++dim) {
        if (dim != 0) text += ',';
        text += std::to_string(coordinate[dim]);
    }
    text += "]: ";
    if (bound == Bound::kBits) {
        const int digits = static_cast<int>(2 * element_bytes);
        return text + format("found bits 0x%0*llx, expected 0x%0*llx", digits,
                             static_cast<unsigned long long>(found_bits), digits,
                             static_cast<unsigned long long>(want_bits));
    }
    text += format("found %.9g, expected %.9g ", found, want);
    switch (bound) {
        case Bound::kNonFinite:
            return text + (is_finite_want(want) ? "(a finite value)" : "(NaN or Inf)");
        case Bound::kZero:
            return text + "(exactly zero)";
        case Bound::kElement:
            return text + format("(error %.4g, bound %.4g)", error, limit);
        case Bound::kRow:
            return text + format("(row error %.4g of its norm, bound %.4g)", error, limit);
        default:
            return text + format("(tensor error %.4g of its norm, bound %.4g)", error, limit);
    }
}

std::optional<Mismatch> compare(std::string_view tensor, std::span<const float> found,
                                std::span<const double> want, std::span<const int64_t> shape,
                                Bounds bounds) {
    check_length(tensor, "found", found.size(), shape);
    check_length(tensor, "expected", want.size(), shape);
    return Comparison(tensor, found, want, shape, bounds).run();
}

std::optional<Mismatch> compare_raw_bits(std::string_view tensor, std::span<const std::byte> found,
                                         std::span<const std::byte> want,
                                         std::span<const int64_t> shape, size_t element_bytes) {
    if (element_bytes != 1 && element_bytes != 2 && element_bytes != 4 && element_bytes != 8) {
        throw std::invalid_argument(std::string(tensor) + ": elements of " +
                                    std::to_string(element_bytes) +
                                    " bytes, expected 1, 2, 4 or 8");
    }
    if (found.size() % element_bytes != 0 || want.size() % element_bytes != 0) {
        throw std::invalid_argument(std::string(tensor) + ": a part of an element at the end");
    }
    check_length(tensor, "found", found.size() / element_bytes, shape);
    check_length(tensor, "expected", want.size() / element_bytes, shape);
    const auto differing = std::ranges::mismatch(found, want).in1 - found.begin();
    if (static_cast<size_t>(differing) == found.size()) return std::nullopt;

    const size_t index = static_cast<size_t>(differing) / element_bytes;
    Mismatch result;
    result.tensor = tensor;
    result.coordinate = coordinate_of(index, shape);
    result.bound = Bound::kBits;
    result.found_bits = load_bits(found.data() + index * element_bytes, element_bytes);
    result.want_bits = load_bits(want.data() + index * element_bytes, element_bytes);
    result.element_bytes = element_bytes;
    return result;
}

}  // namespace mok
