// Tape autograd. Every differentiable op records a node; backward() runs the reachable nodes in
// reverse order of creation and frees them on the way.
//
// Each node knows the module call in which it was made (engine/module_call.h). Hooks therefore fire
// when backward enters and leaves a module, independent of the tensors that went in and out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/op_list.h"
#include "engine/tensor.h"

namespace tessera {

// True if ops of the calling thread record nodes.
bool grad_enabled();

class NoGradGuard {
 public:
  NoGradGuard();
  ~NoGradGuard();
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  bool previous_;
};

namespace autograd {

class GradientSink;

// Computes gradients of the inputs from those of the outputs (undefined if none arrived) and passes
// them to the sink.
using BackwardFunction =
    std::function<void(std::vector<Tensor>& output_gradients, GradientSink& sink)>;

// True if a node must be recorded with its saved values: gradients are on, an input requires one,
// and the op is not part of a function that runs again in backward (engine/recompute.h).
bool needs_graph(std::initializer_list<Tensor> inputs);

// The values that a backward reads, besides the gradients of the outputs. Recomputation skips
// values that no backward reads.
enum class Reads : std::uint8_t { anything, inputs, nothing };

// The name of an op in errors: its entry in the list, or the text that the program wrote
// ({Op::unary, "tanh"}). The text must live as long as the graph: use a literal.
struct NamedOp {
  NamedOp(Op entry) : op(entry), name(name_of(entry)) {}
  NamedOp(Op entry, std::string_view written) : op(entry), name(written) {}
  Op op;
  std::string_view name;
};

// Records `op` from inputs to outputs. An undefined input gets no gradient. Has no effect if no
// input requires a gradient.
void record(NamedOp op, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
            BackwardFunction backward, Reads reads = Reads::anything);
inline void record(NamedOp op, std::initializer_list<Tensor> inputs,
                   std::initializer_list<Tensor> outputs, BackwardFunction backward,
                   Reads reads = Reads::anything) {
  record(op, std::span<const Tensor>(inputs.begin(), inputs.size()),
         std::span<const Tensor>(outputs.begin(), outputs.size()), std::move(backward), reads);
}

// For ops that take long: call it where they compute; record() follows. False if a function runs
// again only for its backward, which does not need this value. The results may then stay undefined.
bool value_is_needed();
// Runs `compute`, which fills the `results` of an op's forward. In the second run of a function
// that kept this op's results, takes those instead.
void compute_or_take(Op op, std::initializer_list<Tensor*> results,
                     const std::function<void()>& compute);
// Notes that the host, or code that is not an op, reads values.
void note_read();

// Receives the gradients that an op's backward computes; `input` is the index of the op's input. An
// op writes a gradient into a `slot` or passes a finished one to `add`. The sink chooses the slot's
// memory; for a parameter it is the communication buffer itself.
class GradientSink {
 public:
  struct Slot {
    Tensor tensor;            // write here
    bool accumulate = false;  // add to the contents instead of overwriting them
  };

  [[nodiscard]] bool wants(int input) const;
  // For kernels that can accumulate, of the input's dtype.
  Slot slot(int input);
  // For kernels that can also write float32 from 16-bit types. The slot of a 16-bit input then has
  // the dtype of the gradient's destination, 16-bit or float32.
  Slot wide_slot(int input);
  // A finished gradient. The sink may keep its memory; dtype and element count must be the input's.
  void add(int input, const Tensor& gradient);

  GradientSink(const GradientSink&) = delete;
  GradientSink& operator=(const GradientSink&) = delete;

 private:
  friend class Engine;
  explicit GradientSink(Node& node) : node_(node) {}
  Slot slot(int input, bool may_be_wide);
  void commit();  // moves gradients that could not be written in place to their destination

  struct Pending {
    int input;
    Tensor tensor;
  };
  Node& node_;
  std::vector<Pending> pending_;
};

// A tensor whose values a backward reads in place.
class SavedValue {
 public:
  SavedValue() = default;
  explicit SavedValue(Tensor tensor);
  // Throws a logic_error that names the op if an optimizer's step or copy_from() has written the
  // values since (Tensor::version()).
  [[nodiscard]] const Tensor& get() const {
    if (version_ && *version_ != noted_) [[unlikely]]
      fail_changed();
    return tensor_;
  }

 private:
  [[noreturn]] void fail_changed() const;

  Tensor tensor_;
  std::shared_ptr<std::uint64_t> version_;  // null: without a graph or a tensor
  std::uint64_t noted_ = 0;
};

// A tensor that an op saves for its backward: the tensor itself, or a way to compute it again if
// the op that made it provided one.
class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(const Tensor& tensor);
  [[nodiscard]] Tensor get() const { return recompute_ ? (*recompute_)() : value_.get(); }

 private:
  SavedValue value_;
  std::shared_ptr<const std::function<Tensor()>> recompute_;
};

// True if `tensor` is the only handle to its memory. A backward may then overwrite it, unless it
// keeps its graph.
bool sole_owner(const Tensor& tensor);
// True if another backward may follow the thread's present one through the same nodes.
bool keeps_graph();

void backward(const Tensor& root, const Tensor& seed, bool retain_graph = false);

// Implements Tensor::register_hook().
HookHandle add_gradient_hook(const Tensor& tensor, std::function<Tensor(const Tensor&)> hook);

// Calls `callback` when the backward that now runs on this thread has finished (before backward()
// returns). If an exception ends the backward, calls `on_failure` instead; the caller gets that
// exception, whatever `on_failure` throws.
void at_end_of_backward(std::function<void()> callback, std::function<void()> on_failure = {});
bool in_backward();

// For tests: the ops of all nodes that lead to `root`.
std::vector<Op> recorded_ops(const Tensor& root);

}  // namespace autograd
}  // namespace tessera
