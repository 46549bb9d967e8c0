// AdamW, Lion and SGD: the CPU's bits over several steps, for any start of a segment.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

struct Types {
  DType dtype, grad;
  std::optional<DType> copy;
};

// Every type of gradient, each with the possible copies of its parameters.
std::vector<Types> all_types() {
  std::vector<Types> types;
  for (const DType dtype : {float32, float64}) {
    for (const DType grad : floating_dtypes) {
      if (grad == float64 && dtype == float32) continue;
      types.push_back({dtype, grad, {}});
      for (const DType copy : floating_dtypes) {
        if (copy == float64 && dtype == float32) continue;
        types.push_back({dtype, grad, copy});
      }
    }
  }
  return types;
}

struct Offsets {
  std::size_t state, grad, copy;
};

// Parameters with the state of either optimizer, on host and device.
struct Segment {
  Segment(const Types& of, std::size_t elements, const Offsets& offsets)
      : types(of),
        n(static_cast<std::int64_t>(elements)),
        param(random_values(elements, of.dtype, 1), of.dtype, offsets.state),
        grad(random_values(elements, of.grad, 2, 0.1), of.grad, offsets.grad),
        m(random_values(elements, of.dtype, 3, 0.01), of.dtype, offsets.state),
        v(squares(elements, of.dtype), of.dtype, offsets.state),
        copy(std::vector<double>(elements, 9), of.copy.value_or(bfloat16), offsets.copy) {}

  static std::vector<double> squares(std::size_t n, DType dtype) {
    std::vector<double> values = random_values(n, dtype, 4, 0.1);
    for (double& value : values) value *= value;
    return values;
  }

  void expect_same(const std::string& kernel) const {
    param.expect_same(kernel, "param");
    m.expect_same(kernel, "m");
    v.expect_same(kernel, "v");
    copy.expect_same(kernel, "copy");
  }

  Types types;
  std::int64_t n;
  MirroredArray param, grad, m, v, copy;
};

kernels::AdamWStep adamw(Segment& s, bool device, int step) {
  kernels::AdamWStep a{};
  a.param = device ? s.param.device() : s.param.host();
  a.grad = device ? s.grad.device() : s.grad.host();
  a.m = device ? s.m.device() : s.m.host();
  a.v = device ? s.v.device() : s.v.host();
  if (s.types.copy) a.copy = device ? s.copy.device() : s.copy.host();
  a.n = s.n;
  a.dtype = s.types.dtype;
  a.grad_dtype = s.types.grad;
  a.copy_dtype = s.copy.dtype();
  a.lr = 3e-3;
  a.beta1 = 0.9;
  a.beta2 = 0.95;
  a.eps = 1e-8;
  a.weight_decay = 0.1;
  a.correction1 = 1 - std::pow(a.beta1, step);
  a.correction2 = 1 - std::pow(a.beta2, step);
  a.grad_scale = 0.73f;
  return a;
}

kernels::LionStep lion(Segment& s, bool device) {
  kernels::LionStep a{};
  a.param = device ? s.param.device() : s.param.host();
  a.grad = device ? s.grad.device() : s.grad.host();
  a.m = device ? s.m.device() : s.m.host();
  if (s.types.copy) a.copy = device ? s.copy.device() : s.copy.host();
  a.n = s.n;
  a.dtype = s.types.dtype;
  a.grad_dtype = s.types.grad;
  a.copy_dtype = s.copy.dtype();
  a.lr = 3e-3;
  a.beta1 = 0.9;
  a.beta2 = 0.97;
  a.weight_decay = 0.1;
  a.grad_scale = 0.73f;
  return a;
}

struct SgdOptions {
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};

kernels::SgdStep sgd(Segment& s, bool device, int step, const SgdOptions& options) {
  kernels::SgdStep a{};
  a.param = device ? s.param.device() : s.param.host();
  a.grad = device ? s.grad.device() : s.grad.host();
  if (options.momentum != 0) a.momentum_buffer = device ? s.m.device() : s.m.host();
  if (s.types.copy) a.copy = device ? s.copy.device() : s.copy.host();
  a.n = s.n;
  a.dtype = s.types.dtype;
  a.grad_dtype = s.types.grad;
  a.copy_dtype = s.copy.dtype();
  a.lr = 0.05;
  a.momentum = options.momentum;
  a.dampening = options.dampening;
  a.weight_decay = options.weight_decay;
  a.nesterov = options.nesterov;
  a.first_step = step == 1;
  a.grad_scale = 0.73f;
  return a;
}

constexpr Offsets all_offsets[] = {
    {0, 0, 0},
    {3, 3, 3},  // a segment of flat arrays
    {1, 2, 0},  // arrays with different alignments
};

TEST(CudaOptimizer, AdamW) {
  for (const Types& types : all_types()) {
    for (const Offsets& offsets : all_offsets) {
      Segment segment(types, 77, offsets);
      TestContext context;
      for (const int step : {1, 2, 3}) {
        kernels::cuda::adamw_step(adamw(segment, true, step), context.queue());
        kernels::cpu::adamw_step(adamw(segment, false, step));
      }
      segment.expect_same("adamw_step");
    }
  }
}

TEST(CudaOptimizer, AdamWLengths) {
  for (const std::size_t n : array_lengths) {
    Segment segment({float32, bfloat16, bfloat16}, n, {0, 0, 0});
    TestContext context;
    kernels::cuda::adamw_step(adamw(segment, true, 1), context.queue());
    kernels::cpu::adamw_step(adamw(segment, false, 1));
    segment.expect_same("adamw_step");
  }
}

TEST(CudaOptimizer, Lion) {
  for (const Types& types : all_types()) {
    for (const Offsets& offsets : all_offsets) {
      Segment segment(types, 77, offsets);
      TestContext context;
      for (int step = 0; step < 3; ++step) {
        kernels::cuda::lion_step(lion(segment, true), context.queue());
        kernels::cpu::lion_step(lion(segment, false));
      }
      segment.expect_same("lion_step");
    }
  }
}

// Directions of 0 and NaN, with the parameter's bits.
TEST(CudaOptimizer, LionWithoutADirection) {
  Segment segment({float32, float32, {}}, 41, {0, 0, 0});
  const std::vector<float> gradient(41, 0.0f), broken(41, std::nanf(""));
  const DeviceMemory zeros(41 * sizeof(float)), device_gradient(41 * sizeof(float));
  TestContext context;
  for (const std::vector<float>& values : {gradient, broken}) {
    std::vector<float> host_m(41, 0.0f);
    TESSERA_CUDA(cudaMemset(zeros.data(), 0, zeros.bytes()));
    TESSERA_CUDA(cudaMemcpy(device_gradient.data(), values.data(), device_gradient.bytes(),
                            cudaMemcpyHostToDevice));
    TESSERA_CUDA(cudaDeviceSynchronize());
    kernels::LionStep on_device = lion(segment, true), on_host = lion(segment, false);
    on_device.grad = device_gradient.data();
    on_device.m = zeros.data();
    on_host.grad = values.data();
    on_host.m = host_m.data();
    kernels::cuda::lion_step(on_device, context.queue());
    kernels::cpu::lion_step(on_host);
    context.synchronize();
    const auto* const host = static_cast<const float*>(segment.param.host());
    std::vector<float> got(41);
    TESSERA_CUDA(
        cudaMemcpy(got.data(), segment.param.device(), 41 * sizeof(float), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(got[i] == host[i] || (std::isnan(got[i]) && std::isnan(host[i]))) << i;
    }
  }
}

// Ranges of weight decay: none, some that cut through vectors, more than one launch takes.
std::vector<std::vector<std::int64_t>> all_edges(std::int64_t n) {
  std::vector<std::int64_t> many;
  for (std::int64_t edge = 1; edge < n; edge += 2) many.push_back(edge);
  return {{}, {0}, {0, 3, 50, 51}, {7}, std::move(many)};
}

TEST(CudaOptimizer, DecayRanges) {
  constexpr std::size_t n = 301;
  static const std::int64_t none = 0;
  for (const Types& types : {Types{float32, bfloat16, bfloat16}, Types{float64, float32, {}}}) {
    for (const Offsets& offsets : all_offsets) {
      for (const auto& edges : all_edges(n)) {
        const kernels::DecayRanges decay{edges.empty() ? &none : edges.data(),
                                         static_cast<int>(edges.size())};
        Segment segment(types, n, offsets);
        TestContext context;
        for (const bool device : {true, false}) {
          kernels::AdamWStep step = adamw(segment, device, 2);
          step.decay = decay;
          kernels::SgdStep second = sgd(segment, device, 2, {0.9, 0.3, 0.01});
          second.decay = decay;
          kernels::LionStep third = lion(segment, device);
          third.decay = decay;
          if (device) {
            kernels::cuda::adamw_step(step, context.queue());
            kernels::cuda::sgd_step(second, context.queue());
            kernels::cuda::lion_step(third, context.queue());
          } else {
            kernels::cpu::adamw_step(step);
            kernels::cpu::sgd_step(second);
            kernels::cpu::lion_step(third);
          }
        }
        segment.expect_same("adamw_step");
      }
    }
  }
}

void check_sgd(const Types& types, const Offsets& offsets, const SgdOptions& options) {
  Segment segment(types, 41, offsets);
  TestContext context;
  for (const int step : {1, 2}) {
    kernels::cuda::sgd_step(sgd(segment, true, step, options), context.queue());
    kernels::cpu::sgd_step(sgd(segment, false, step, options));
  }
  segment.expect_same("sgd_step");
}

TEST(CudaOptimizer, Sgd) {
  for (const Types& types : all_types()) {
    for (const Offsets& offsets : all_offsets) check_sgd(types, offsets, {0.9, 0.3, 0.01});
  }
}

TEST(CudaOptimizer, SgdOptions) {
  const SgdOptions all_options[] = {{}, {0, 0, 0.01}, {0.9}, {0.9, 0, 0.01, true}};
  for (const Types& types : {Types{float32, bfloat16, bfloat16}, Types{float64, float64, {}}}) {
    for (const Offsets& offsets : all_offsets) {
      for (const SgdOptions& options : all_options) check_sgd(types, offsets, options);
    }
  }
}

// The first step writes the buffer and does not read it.
TEST(CudaOptimizer, SgdStartsWithoutABuffer) {
  Segment segment({float32, float32, {}}, 41, {0, 0, 0});
  const DeviceMemory buffer(41 * sizeof(float));
  TestContext context;
  TESSERA_CUDA(cudaMemset(buffer.data(), 0xff, buffer.bytes()));  // NaN
  TESSERA_CUDA(cudaDeviceSynchronize());
  kernels::SgdStep step = sgd(segment, true, 1, {0.9});
  step.momentum_buffer = buffer.data();
  kernels::cuda::sgd_step(step, context.queue());
  kernels::cpu::sgd_step(sgd(segment, false, 1, {0.9}));
  segment.param.expect_same("sgd_step", "param");
}

// One segment may become several, as when ranks own other parts.
TEST(CudaOptimizer, CutsChangeNoBit) {
  for (const Types& types : {Types{float32, float32, bfloat16}, Types{float32, bfloat16, float16},
                             Types{float64, float64, float32}}) {
    Segment whole(types, 203, {0, 0, 0}), parts(types, 203, {0, 0, 0});
    TestContext context;
    kernels::cuda::adamw_step(adamw(whole, true, 2), context.queue());
    std::int64_t first = 0;
    for (const std::int64_t count : {5, 97, 1, 100}) {
      kernels::AdamWStep a = adamw(parts, true, 2);
      const auto at = [&](void* begin, DType dtype) {
        return static_cast<char*>(begin) + static_cast<std::size_t>(first) * size_of(dtype);
      };
      a.grad = at(parts.grad.device(), types.grad);
      a.param = at(a.param, types.dtype);
      a.m = at(a.m, types.dtype);
      a.v = at(a.v, types.dtype);
      a.copy = at(a.copy, *types.copy);
      a.n = count;
      kernels::cuda::adamw_step(a, context.queue());
      first += count;
    }
    context.synchronize();
    EXPECT_TRUE(parts.param.device_bytes() == whole.param.device_bytes());
    EXPECT_TRUE(parts.m.device_bytes() == whole.m.device_bytes());
    EXPECT_TRUE(parts.v.device_bytes() == whole.v.device_bytes());
    EXPECT_TRUE(parts.copy.device_bytes() == whole.copy.device_bytes());
  }
}

TEST(CudaOptimizer, RefusesWhatTheCpuRefuses) {
  Segment segment({float32, float32, {}}, 4, {0, 0, 0});
  TestContext context;
  kernels::AdamWStep step = adamw(segment, true, 1);
  step.dtype = bfloat16;
  EXPECT_THROW(kernels::cuda::adamw_step(step, context.queue()), std::logic_error);
  step.dtype = float32;
  step.grad_dtype = float64;
  EXPECT_THROW(kernels::cuda::adamw_step(step, context.queue()), std::logic_error);
  step.grad_dtype = float32;
  step.copy = segment.copy.device();
  step.copy_dtype = float64;
  EXPECT_THROW(kernels::cuda::adamw_step(step, context.queue()), std::logic_error);
  kernels::LionStep of_lion = lion(segment, true);
  of_lion.grad_dtype = float64;
  EXPECT_THROW(kernels::cuda::lion_step(of_lion, context.queue()), std::logic_error);
  kernels::SgdStep without_buffer = sgd(segment, true, 1, {0.9});
  without_buffer.momentum_buffer = nullptr;
  EXPECT_THROW(kernels::cuda::sgd_step(without_buffer, context.queue()), std::logic_error);
}

}  // namespace
}  // namespace tessera::testing
