// Shared by the tests of GPU kernels: device arrays, a queue, and the comparison with fp64.
// A kernel's result is compared with that of the CPU's fp64 kernel for the same (already rounded)
// inputs. Its error may be twice that of the CPU's kernel in the same dtype, which is another
// correct implementation of the same contract. Errors and bounds are appended to the report that
// scripts/kernel-table prints (TESSERA_KERNEL_REPORT names the file).
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/low_precision.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/device/error.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::testing {

// Host bytes of `values` rounded to dtype, and back.
std::vector<std::byte> encode(const std::vector<double>& values, DType dtype);
std::vector<double> decode(const std::vector<std::byte>& bytes, DType dtype);

// Device memory of exactly `bytes` bytes, freed at the end.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  explicit DeviceMemory(const std::vector<std::byte>& contents);
  DeviceMemory(const std::vector<double>& values, DType dtype)
      : DeviceMemory(encode(values, dtype)) {}
  [[nodiscard]] void* data() const { return memory_.get(); }
  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(memory_.get());
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  // First waits for the device.
  [[nodiscard]] std::vector<std::byte> read() const;
  [[nodiscard]] std::vector<double> read(DType dtype) const { return decode(read(), dtype); }

 private:
  std::size_t bytes_;
  std::shared_ptr<void> memory_;
};

// A context with a stream of its own; scratch grows by allocation.
class TestContext final : public kernels::cuda::Context {
 public:
  TestContext();
  ~TestContext() override;
  void* scratch(std::size_t bytes) override;
  [[nodiscard]] kernels::Queue queue() { return {static_cast<kernels::cuda::Context*>(this)}; }
  void synchronize() const { TESSERA_CUDA(cudaStreamSynchronize(stream)); }
  // The first reported fault; waits.
  [[nodiscard]] kernels::cuda::Fault read_fault() const;

 private:
  std::vector<DeviceMemory> scratch_;
  DeviceMemory fault_memory_;
};

// Normal draws, rounded to dtype, so that fp64 sees the same inputs.
std::vector<double> random_values(std::size_t count, DType dtype, unsigned seed,
                                  double deviation = 1);

// Fails unless max|device - exact| <= 2 * max|low - exact| + two units in the last place of dtype
// at max|exact|. `kernel` and `output` name the line of the report. Non-finite values must agree.
void expect_within_bound(const std::string& kernel, const std::string& output, DType dtype,
                         const std::vector<double>& device, const std::vector<double>& low,
                         const std::vector<double>& exact);
// The same bits.
void expect_equal(const std::string& kernel, const std::string& output, DType dtype,
                  const std::vector<double>& device, const std::vector<double>& expected);

// The floating dtypes, for loops over them.
inline constexpr DType floating_dtypes[] = {float32, bfloat16, float16, float64};

}  // namespace tessera::testing
