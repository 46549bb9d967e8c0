// An op with kernels of a program's own on the emulated GPU: its values and gradients are those of
// its CPU's kernels, its memory is the pool's, and a launch that CUDA refuses names it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "emulator/runtime/launch.h"
#include "engine/device/queue.h"
#include "engine/interop/own_op.h"
#include "engine/ops.h"
#include "engine/recompute.h"
#include "kernels/cuda/device/gpu.h"
#include "tests/support/errors.h"

namespace tessera::testing {
namespace {

constexpr unsigned leaky_threads = 64;

__global__ void leaky_kernel(const float* x, const float* slope, float* out, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * leaky_threads + threadIdx.x;
  if (i < n) out[i] = x[i] < 0 ? slope[0] * x[i] : x[i];
}

// One thread sums the slope's gradient, in ascending order.
__global__ void leaky_gradient_kernel(const float* x, const float* slope, const float* dout,
                                      float* dx, float* dslope, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * leaky_threads + threadIdx.x;
  if (dx != nullptr && i < n) dx[i] = x[i] < 0 ? slope[0] * dout[i] : dout[i];
  if (dslope == nullptr || i != 0) return;
  float sum = 0;
  for (std::int64_t j = 0; j < n; ++j) sum += x[j] < 0 ? x[j] * dout[j] : 0.0f;
  dslope[0] = sum;
}

// Null for a gradient that is not wanted.
float* floats_of(Tensor& tensor) {
  return tensor.defined() ? tensor.data_as<float>() : nullptr;
}
const float* floats_of(const Tensor& tensor) {
  return tensor.data_as<float>();
}

// x where it is positive, slope * x elsewhere.
struct LeakyRelu final : OwnOp {
  [[nodiscard]] std::string_view name() const override { return "leaky_relu"; }
  [[nodiscard]] std::vector<ValueType> results(std::span<const ValueType> in) const override {
    return {in[0]};
  }
  void forward_cpu(const OwnCall& call) const override {
    const float slope = *floats_of(call.inputs[1]);
    for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
      const float x = floats_of(call.inputs[0])[i];
      floats_of(call.results[0])[i] = x < 0 ? slope * x : x;
    }
  }
  void backward_cpu(const OwnCall& call) const override {
    const float slope = *floats_of(call.inputs[1]);
    float sum = 0;
    for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
      const float x = floats_of(call.inputs[0])[i], dout = floats_of(call.result_gradients[0])[i];
      floats_of(call.input_gradients[0])[i] = x < 0 ? slope * dout : dout;
      sum += x < 0 ? x * dout : 0.0f;
    }
    *floats_of(call.input_gradients[1]) = sum;
  }
  void forward_cuda(const OwnCall& call, void* stream) const override {
    const std::int64_t n = call.inputs[0].elements();
    launch(stream, n, leaky_kernel, floats_of(call.inputs[0]), floats_of(call.inputs[1]),
           floats_of(call.results[0]), n);
  }
  void backward_cuda(const OwnCall& call, void* stream) const override {
    const std::int64_t n = call.inputs[0].elements();
    launch(stream, n, leaky_gradient_kernel, floats_of(call.inputs[0]), floats_of(call.inputs[1]),
           floats_of(call.result_gradients[0]), floats_of(call.input_gradients[0]),
           floats_of(call.input_gradients[1]), n);
  }

  // Stands for nvcc's kernel<<<blocks, threads, 0, stream>>>(arguments...).
  template <class... Arguments>
  static void launch(void* stream, std::int64_t n, void (*kernel)(Arguments...),
                     Arguments... arguments) {
    const auto blocks = static_cast<unsigned>((n + leaky_threads - 1) / leaky_threads);
    (void)emulator::launch(
        static_cast<cudaStream_t>(stream),
        {.kernel = "leaky_relu", .grid = dim3(blocks), .block = dim3(leaky_threads)}, kernel,
        arguments...);
  }
};

struct Results {
  std::vector<double> out, dx, dslope;
  friend bool operator==(const Results&, const Results&) = default;
};

Results train(Device device, bool again) {
  std::vector<float> numbers(200);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>((i * 37 % 101)) / 50.0f - 1.0f;
  }
  Tensor x = Tensor::from(numbers, {200}).to(device);
  Tensor slope = Tensor::from(std::vector<float>{0.25f}, {1}).to(device);
  x.set_requires_grad(true);
  slope.set_requires_grad(true);
  const auto function = [&](const Tensor& in) { return call(LeakyRelu(), {in, slope})[0]; };
  const Tensor out = again ? recompute(function, x) : function(x);
  sum(square(out)).backward();
  return {out.to_vector(), x.grad().to_vector(), slope.grad().to_vector()};
}

TEST(OwnOp, TheGpusKernelsAreTheCpus) {
  const Results cpu = train(Device::cpu(), false);
  EXPECT_EQ(train(Device::cuda(), false), cpu);
  EXPECT_EQ(train(Device::cuda(), true), cpu);
}

// Launches a block that no device has.
struct TooLarge final : OwnOp {
  [[nodiscard]] std::string_view name() const override { return "too_large"; }
  [[nodiscard]] std::vector<ValueType> results(std::span<const ValueType> in) const override {
    return {in[0]};
  }
  void forward_cuda(const OwnCall& call, void* stream) const override {
    (void)emulator::launch(static_cast<cudaStream_t>(stream),
                           {.kernel = "too_large", .grid = dim3(1), .block = dim3(2048)},
                           leaky_kernel, static_cast<const float*>(nullptr),
                           static_cast<const float*>(nullptr), floats_of(call.results[0]),
                           std::int64_t{0});
  }
};

TEST(OwnOp, ALaunchThatIsRefusedNamesTheOp) {
  const Tensor x = Tensor::zeros({4}, float32, Device::cuda());
  const std::string error = error_of([&] { return call(TooLarge(), {x}); }, ErrorCode::runtime);
  EXPECT_EQ(error.find("too_large: its launch on cuda:0 failed: "), 0U) << error;
  EXPECT_EQ(misuse_of([&] { (void)call(TooLarge(), {x.to(Device::cpu())}); }),
            "too_large: there is no kernel for cpu; override forward_cpu()");
}

}  // namespace
}  // namespace tessera::testing
