// Runs attention on a problem: forward and, on request, backward, on the GPU or with the CPU's
// kernels. Each backward reads the values that its own forward has saved, as in training.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "cuda/attention/attention_testing.h"
#include "kernels/cuda/cudnn/attention_way.h"
#include "kernels/registry.h"

namespace tessera::testing {

// The addresses of a problem's arrays, in the memory of the device that runs it.
struct AttentionPlaces {
  const void* mask = nullptr;
  const void* document_starts = nullptr;
  const void* bias = nullptr;
  const void* dout = nullptr;
  void* out = nullptr;
  void* log_sum_exp = nullptr;
  std::vector<void*> inputs = {}, gradients = {};  // as AttentionProblem::inputs
  void* bias_gradient = nullptr;
};

inline void* tensor_in(const std::vector<void*>& arrays, const AttentionProblem& problem,
                       const AttentionProblem::Tensor& tensor) {
  return static_cast<std::byte*>(arrays[tensor.array]) +
         tensor.offset * static_cast<std::int64_t>(size_of(problem.dtype()));
}

inline kernels::AttentionForward forward_arguments(const AttentionProblem& problem,
                                                   const AttentionPlaces& places) {
  return {.shape = problem.shape(places.mask, places.document_starts, places.bias),
          .q = tensor_in(places.inputs, problem, problem.q()),
          .k = tensor_in(places.inputs, problem, problem.k()),
          .v = tensor_in(places.inputs, problem, problem.v()),
          .out = places.out,
          .log_sum_exp = places.log_sum_exp};
}

inline kernels::AttentionBackward backward_arguments(const AttentionProblem& problem,
                                                     const AttentionPlaces& places) {
  return {.shape = problem.shape(places.mask, places.document_starts, places.bias),
          .dout = places.dout,
          .q = tensor_in(places.inputs, problem, problem.q()),
          .k = tensor_in(places.inputs, problem, problem.k()),
          .v = tensor_in(places.inputs, problem, problem.v()),
          .out = places.out,
          .log_sum_exp = places.log_sum_exp,
          .dq = tensor_in(places.gradients, problem, problem.q()),
          .dk = tensor_in(places.gradients, problem, problem.k()),
          .dv = tensor_in(places.gradients, problem, problem.v()),
          .bias_gradient = problem.bias.empty() ? nullptr : places.bias_gradient};
}

enum class AttentionRun { forward, forward_without_log_sum_exp, backward };

// The implementations on this machine: the own kernels; cuDNN where it is installed.
inline std::vector<kernels::cuda::AttentionWay> attention_ways() {
  std::vector<kernels::cuda::AttentionWay> all{kernels::cuda::AttentionWay::own};
  if (kernels::cuda::cudnn_library().functions != nullptr) {
    all.push_back(kernels::cuda::AttentionWay::automatic);
  }
  return all;
}

// Results are first filled with AttentionProblem::untouched.
inline AttentionResults run_on_device(
    const AttentionProblem& problem, AttentionRun run,
    kernels::cuda::AttentionWay way = kernels::cuda::AttentionWay::own) {
  const DType dtype = problem.dtype();
  const auto unwritten = [](std::size_t size, DType type) {
    return DeviceMemory(std::vector<double>(size, AttentionProblem::untouched), type);
  };
  TestContext context;
  std::vector<DeviceMemory> inputs, gradients;
  const DeviceMemory mask(problem.mask), document_starts(problem.document_starts),
      dout(problem.dout, dtype), bias(problem.bias, problem.statistic());
  const DeviceMemory bias_gradient = unwritten(problem.bias.size(), problem.statistic());
  const DeviceMemory out = unwritten(problem.out_size(), dtype);
  const DeviceMemory log_sum_exp = unwritten(problem.statistic_size(), problem.statistic());
  AttentionPlaces places{.mask = mask.data(),
                         .document_starts = document_starts.data(),
                         .bias = bias.data(),
                         .dout = dout.data(),
                         .out = out.data(),
                         .log_sum_exp = log_sum_exp.data(),
                         .bias_gradient = bias_gradient.data()};
  for (const auto& values : problem.inputs) {
    inputs.emplace_back(values, dtype);
    gradients.push_back(unwritten(values.size(), dtype));
    places.inputs.push_back(inputs.back().data());
    places.gradients.push_back(gradients.back().data());
  }
  if (run == AttentionRun::forward_without_log_sum_exp) places.log_sum_exp = nullptr;
  const auto& library = kernels::cuda::cudnn_library();
  kernels::cuda::attention_forward_by(way, forward_arguments(problem, places), context, library);
  if (run == AttentionRun::backward) {
    kernels::cuda::attention_backward_by(way, backward_arguments(problem, places), context,
                                         library);
  }
  context.synchronize();
  AttentionResults results{out.read(dtype), log_sum_exp.read(problem.statistic()), {}};
  for (const DeviceMemory& memory : gradients) results.gradients.push_back(memory.read(dtype));
  if (!problem.bias.empty()) {
    results.gradients.push_back(bias_gradient.read(problem.statistic()));
  }
  return results;
}

// The same in the host's memory, with the given functions of forward and backward.
template <class Forward, class Backward>
AttentionResults run_on_host(const AttentionProblem& problem, AttentionRun run,
                             const Forward& forward, const Backward& backward) {
  const DType dtype = problem.dtype();
  const auto unwritten = [](std::size_t size, DType type) {
    return encode(std::vector<double>(size, AttentionProblem::untouched), type);
  };
  std::vector<std::vector<std::byte>> inputs, gradients;
  const std::vector<std::byte> dout = encode(problem.dout, dtype);
  const std::vector<std::byte> bias = encode(problem.bias, problem.statistic());
  std::vector<std::byte> bias_gradient = unwritten(problem.bias.size(), problem.statistic());
  std::vector<std::byte> out = unwritten(problem.out_size(), dtype);
  std::vector<std::byte> log_sum_exp = unwritten(problem.statistic_size(), problem.statistic());
  AttentionPlaces places{.mask = problem.mask.data(),
                         .document_starts = problem.document_starts.data(),
                         .bias = bias.data(),
                         .dout = dout.data(),
                         .out = out.data(),
                         .log_sum_exp = log_sum_exp.data(),
                         .bias_gradient = bias_gradient.data()};
  for (const auto& values : problem.inputs) {
    inputs.push_back(encode(values, dtype));
    gradients.push_back(unwritten(values.size(), dtype));
  }
  for (auto& bytes : inputs) places.inputs.push_back(bytes.data());
  for (auto& bytes : gradients) places.gradients.push_back(bytes.data());
  if (run == AttentionRun::forward_without_log_sum_exp) places.log_sum_exp = nullptr;
  forward(forward_arguments(problem, places));
  if (run == AttentionRun::backward) backward(backward_arguments(problem, places));
  AttentionResults results{decode(out, dtype), decode(log_sum_exp, problem.statistic()), {}};
  for (const auto& bytes : gradients) results.gradients.push_back(decode(bytes, dtype));
  if (!problem.bias.empty()) {
    results.gradients.push_back(decode(bias_gradient, problem.statistic()));
  }
  return results;
}

inline AttentionResults run_on_cpu(const AttentionProblem& problem, AttentionRun run) {
  return run_on_host(
      problem, run, [](const kernels::AttentionForward& a) { kernels::cpu::attention_forward(a); },
      [](const kernels::AttentionBackward& a) { kernels::cpu::attention_backward(a); });
}

}  // namespace tessera::testing
