// Ops with kernels of the program's own, on CPUs and GPUs. Such an op is used like any other: in
// modules under every strategy, with or without a gradient, in plans and in functions that are
// recomputed.
//
//   struct Swish final : OwnOp { ... };  // its arguments beside tensors are members
//   const Tensor y = call(Swish(1.5), {x})[0];
//
// There is no list of ops to register with: an op is a value that the graph keeps.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tensor.h"

namespace tessera {

struct ValueType {
  Shape shape;
  DType dtype = DType::float32;
};

enum class OwnPass : std::uint8_t { forward, backward };

// The tensors of a call of a kernel: contiguous, and on one device. Those that a kernel writes hold
// anything before.
struct OwnCall {
  Device device;
  // A backward has only those that it reads (OwnOp::reads_input); the others are undefined.
  std::span<const Tensor> inputs;
  // A forward writes all of them. A backward has only those that it reads (OwnOp::reads_result).
  std::span<Tensor> results;
  // In a backward: zeros for a result that no gradient flowed back to.
  std::span<const Tensor> result_gradients;
  // A backward writes those that are defined: the others are not wanted.
  std::span<Tensor> input_gradients;
  // uint8, of OwnOp::workspace_bytes(); undefined if that is 0.
  Tensor workspace;
};

// The least work of a pass, for plans.
struct OwnCost {
  double operations = 0;             // multiplications and additions
  std::optional<double> bytes = {};  // empty: everything is read or written once
};

// The contract of the kernels:
// * They read inputs, write results or gradients, and change nothing else.
// * The same inputs give the same bits, in a second run and with any number of compute threads:
//   sums have a fixed order. A recomputed function runs forward twice.
// * A CPU's kernel runs on the rank's thread and may use parallel_for() (base/parallel.h). If ranks
//   are threads, they use one op at the same time: its members do not change.
// * A tensor may be empty; a GPU's kernel is then not launched, because CUDA refuses an empty grid.
// * A GPU's kernel is a function of the host that launches on `stream`, a cudaStream_t of the
//   current device, and returns without waiting. The tensors stay until that work has ended. Work
//   on other streams must be ordered with `stream` by events at both ends.
// * Errors: std::logic_error (misuse()) for inputs that an op cannot take, thrown by results();
//   Error for others. A message names the op, the shapes and the rule; call() adds the module. A
//   launch that CUDA refuses is an Error(runtime) with the op's name.
class OwnOp {
 public:
  OwnOp() = default;
  virtual ~OwnOp() = default;

  // In errors: lower case with underscores. Valid as long as the op; a literal.
  [[nodiscard]] virtual std::string_view name() const = 0;
  // The results' shapes and dtypes, at least one, from the inputs' alone: no values exist in a plan
  // or on the meta device.
  [[nodiscard]] virtual std::vector<ValueType> results(std::span<const ValueType> inputs) const = 0;

  // Kernels. Without one its device is refused, with the op's name.
  virtual void forward_cpu(const OwnCall& call) const;
  virtual void forward_cuda(const OwnCall& call, void* stream) const;
  virtual void backward_cpu(const OwnCall& call) const;
  virtual void backward_cuda(const OwnCall& call, void* stream) const;

  // False: results have no gradient, as those of argmax(); the op needs no kernels for backward.
  [[nodiscard]] virtual bool differentiable() const { return true; }
  // The tensors that a backward reads: they are kept until then. Only floating inputs get
  // gradients, and only floating results have them.
  [[nodiscard]] virtual bool reads_input(std::size_t /*input*/) const { return true; }
  [[nodiscard]] virtual bool reads_result(std::size_t /*result*/) const { return false; }

  // Memory that a pass needs beside its tensors.
  [[nodiscard]] virtual std::size_t workspace_bytes(OwnPass /*pass*/,
                                                    std::span<const ValueType> /*inputs*/) const {
    return 0;
  }
  [[nodiscard]] virtual OwnCost cost(OwnPass /*pass*/,
                                     std::span<const ValueType> /*inputs*/) const {
    return {};
  }

 protected:
  OwnOp(const OwnOp&) = default;
  OwnOp& operator=(const OwnOp&) = default;
};

// Calls the op: its results, on the inputs' device. There is at least one input; all are defined
// and on one device.
std::vector<Tensor> call(const std::shared_ptr<const OwnOp>& op, const std::vector<Tensor>& inputs);
template <std::derived_from<OwnOp> Op>
std::vector<Tensor> call(Op op, const std::vector<Tensor>& inputs) {
  return call(std::shared_ptr<const OwnOp>(std::make_shared<const Op>(std::move(op))), inputs);
}

}  // namespace tessera
