// An array of a kernel that runs three times: on the GPU, and on the CPU in the same dtype and in
// fp64.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {

enum class Side { device, low, exact };

// Starts with the same values, rounded to dtype, in all three runs, `offset` elements into its
// memory in two of them.
class ComparedArray {
 public:
  ComparedArray(const std::vector<double>& values, DType dtype, std::size_t offset = 0)
      : array_(values, dtype, offset), exact_(decode(encode(values, dtype), dtype)) {}
  // An array for results: filled with a number that no kernel writes.
  ComparedArray(std::int64_t count, DType dtype, std::size_t offset = 0)
      : ComparedArray(std::vector<double>(static_cast<std::size_t>(count), 77), dtype, offset) {}

  void* at(Side side) {
    if (side == Side::device) return array_.device();
    return side == Side::low ? array_.host() : static_cast<void*>(exact_.data());
  }
  [[nodiscard]] std::vector<std::byte> device_bytes() const { return array_.device_bytes(); }
  [[nodiscard]] std::vector<double> device_values() const { return array_.device_values(); }
  [[nodiscard]] std::vector<double> low_values() const { return array_.host_values(); }

  // The bound of kernel_testing.h. fp64 has no more exact reference than the CPU's fp64 kernel,
  // whose own error is unknown: it is taken as 2^-44 of the largest result, or of 1, which is the
  // size of the tests' inputs and thus of the terms of their sums.
  void expect_within_bound(const std::string& kernel, const std::string& output) const {
    std::vector<double> low = low_values();
    if (array_.dtype() == float64 && !low.empty()) {
      double largest = 1;
      for (const double value : exact_) largest = std::max(largest, std::abs(value));
      low[0] = exact_[0] + 0x1p-44 * largest;
    }
    testing::expect_within_bound(kernel, output, array_.dtype(), device_values(), low, exact_);
  }
  // The GPU's bits equal the CPU's.
  void expect_same(const std::string& kernel, const std::string& output) const {
    array_.expect_same(kernel, output);
  }

 private:
  MirroredArray array_;
  std::vector<double> exact_;
};

// The dtype of losses, means and other statistics.
inline DType statistic_of(DType dtype) {
  return dtype == float64 ? float64 : float32;
}

template <class Arguments>
using Kernel = void (*)(const Arguments&, kernels::Queue);

// Runs a kernel three times; arguments(side, dtype) returns its arguments.
template <class Arguments, class Make>
void run_on_all_sides(TestContext& context, Kernel<Arguments> cuda, Kernel<Arguments> cpu,
                      DType dtype, Make&& arguments) {
  cuda(arguments(Side::device, dtype), context.queue());
  cpu(arguments(Side::low, dtype), {});
  cpu(arguments(Side::exact, float64), {});
}

}  // namespace tessera::testing
