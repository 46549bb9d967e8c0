// Device arrays, the queue of a test, and bounds.
#include "cuda/kernel_testing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

namespace tessera::testing {
namespace {

std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

// Writes a line of JSON for each comparison.
void report(const std::string& kernel, const std::string& output, DType dtype, double error,
            double bound) {
  const std::string path = environment("TESSERA_KERNEL_REPORT", "");
  if (path.empty()) return;
  std::ofstream file(path, std::ios::app);
  file
      << fmt::format(
             R"({{"kernel": "{}", "output": "{}", "dtype": "{}", "schedule": "{}", "build": "{}", "error": {}, "bound": {}}})",
             kernel, output, name_of(dtype), environment("TESSERA_EMULATOR_SCHEDULE", "device"),
             environment("TESSERA_TEST_BUILD", "plain"), error, bound)
      << "\n";
}

// The distance between neighbouring numbers of dtype near `value`.
double unit_in_last_place(DType dtype, double value) {
  const int bits = dtype == float32 ? 24 : dtype == bfloat16 ? 8 : dtype == float16 ? 11 : 53;
  if (value == 0) return 0;
  return std::ldexp(1.0, std::ilogb(value) - (bits - 1));
}

// The least difference that two correct results may have: two units in the last place. The
// reference of fp64 is also fp64, and the errors of its sums are as large as the kernel's.
double smallest_bound(DType dtype, double magnitude) {
  constexpr int bits_of_fp64_sums = 43;
  if (dtype == float64) return std::ldexp(magnitude, -bits_of_fp64_sums);
  return 2 * unit_in_last_place(dtype, magnitude);
}

double largest_error(const std::vector<double>& values, const std::vector<double>& exact) {
  double largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && std::isfinite(exact[i])) {
      largest = std::max(largest, std::abs(values[i] - exact[i]));
    }
  }
  return largest;
}

}  // namespace

std::vector<std::byte> encode(const std::vector<double>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  const auto put = [&]<class T>(std::size_t i, T value) {
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (dtype) {
      case DType::float32:
        put(i, static_cast<float>(values[i]));
        break;
      case DType::bfloat16:
        put(i, to_bfloat16(static_cast<float>(values[i])));
        break;
      case DType::float16:
        put(i, to_float16(static_cast<float>(values[i])));
        break;
      case DType::float64:
        put(i, values[i]);
        break;
      case DType::int32:
        put(i, static_cast<std::int32_t>(values[i]));
        break;
      case DType::int64:
        put(i, static_cast<std::int64_t>(values[i]));
        break;
      case DType::uint8:
      case DType::boolean:
        put(i, static_cast<std::uint8_t>(values[i]));
        break;
    }
  }
  return bytes;
}

std::vector<double> decode(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<double> values(bytes.size() / size_of(dtype));
  const auto get = [&]<class T>(std::size_t i, T value) {
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    return value;
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (dtype) {
      case DType::float32:
        values[i] = get(i, 0.0f);
        break;
      case DType::bfloat16:
        values[i] = to_float(get(i, BFloat16{}));
        break;
      case DType::float16:
        values[i] = to_float(get(i, Float16{}));
        break;
      case DType::float64:
        values[i] = get(i, 0.0);
        break;
      case DType::int32:
        values[i] = get(i, std::int32_t{});
        break;
      case DType::int64:
        values[i] = static_cast<double>(get(i, std::int64_t{}));
        break;
      case DType::uint8:
      case DType::boolean:
        values[i] = get(i, std::uint8_t{});
        break;
    }
  }
  return values;
}

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  void* memory = nullptr;
  TESSERA_CUDA(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)));
  memory_ = std::shared_ptr<void>(memory, [](void* freed) { (void)cudaFree(freed); });
}

DeviceMemory::DeviceMemory(const std::vector<std::byte>& contents) : DeviceMemory(contents.size()) {
  if (contents.empty()) return;
  TESSERA_CUDA(cudaMemcpy(data(), contents.data(), contents.size(), cudaMemcpyHostToDevice));
  // A copy from pageable memory may return before its last bytes are on the device, and streams
  // that do not block, such as those of a TestContext, do not wait for it.
  TESSERA_CUDA(cudaDeviceSynchronize());
}

std::vector<std::byte> DeviceMemory::read() const {
  std::vector<std::byte> contents(bytes_);
  TESSERA_CUDA(cudaDeviceSynchronize());
  if (bytes_ > 0) {
    TESSERA_CUDA(cudaMemcpy(contents.data(), data(), bytes_, cudaMemcpyDeviceToHost));
  }
  return contents;
}

TestContext::TestContext() : fault_memory_(sizeof(kernels::cuda::Fault)) {
  TESSERA_CUDA(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  TESSERA_CUDA(cudaGetDeviceProperties(&properties, device));
  multiprocessors = properties.multiProcessorCount;
  compute_capability = properties.major * 10 + properties.minor;
  shared_memory_of_a_block = properties.sharedMemPerBlockOptin;
  TESSERA_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  fault = fault_memory_.as<kernels::cuda::Fault>();
  TESSERA_CUDA(cudaMemset(fault, 0, sizeof(kernels::cuda::Fault)));
  TESSERA_CUDA(cudaDeviceSynchronize());
}

TestContext::~TestContext() {
  (void)cudaStreamSynchronize(stream);
  (void)cudaStreamDestroy(stream);
}

void* TestContext::scratch(std::size_t bytes) {
  // An exact size, so that the address sanitizer sees an overrun; earlier scratch lives as long as
  // the test.
  scratch_.emplace_back(bytes);
  return scratch_.back().data();
}

kernels::cuda::Fault TestContext::read_fault() const {
  synchronize();
  kernels::cuda::Fault result;
  const std::vector<std::byte> bytes = fault_memory_.read();
  std::memcpy(&result, bytes.data(), sizeof(result));
  return result;
}

std::vector<double> random_values(std::size_t count, DType dtype, unsigned seed, double deviation) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> draw(0, deviation);
  std::vector<double> values(count);
  for (double& value : values) value = draw(generator);
  return decode(encode(values, dtype), dtype);
}

void expect_within_bound(const std::string& kernel, const std::string& output, DType dtype,
                         const std::vector<double>& device, const std::vector<double>& low,
                         const std::vector<double>& exact) {
  ASSERT_EQ(device.size(), exact.size());
  ASSERT_EQ(low.size(), exact.size());
  double magnitude = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    ASSERT_EQ(std::isfinite(device[i]), std::isfinite(low[i]))
        << kernel << " " << output << " " << name_of(dtype) << " element " << i << ": " << device[i]
        << " where the CPU has " << low[i];
    if (std::isfinite(exact[i])) magnitude = std::max(magnitude, std::abs(exact[i]));
  }
  const double error = largest_error(device, exact);
  const double bound = 2 * largest_error(low, exact) + smallest_bound(dtype, magnitude);
  report(kernel, output, dtype, error, bound);
  EXPECT_LE(error, bound) << kernel << " " << output << " " << name_of(dtype);
}

void expect_equal(const std::string& kernel, const std::string& output, DType dtype,
                  const std::vector<double>& device, const std::vector<double>& expected) {
  ASSERT_EQ(device.size(), expected.size());
  std::size_t different = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    different += std::memcmp(&device[i], &expected[i], sizeof(double)) != 0 ? 1 : 0;
  }
  report(kernel, output, dtype, largest_error(device, expected), 0);
  EXPECT_EQ(different, 0u) << kernel << " " << output << " " << name_of(dtype);
}

}  // namespace tessera::testing
