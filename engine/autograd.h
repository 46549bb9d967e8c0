// Tape autograd. Every differentiable op records a node; backward() runs the reachable nodes in the
// reverse order of their making and frees them on the way.
//
// Nodes know in which module call they were made (engine/module_call.h), so that hooks fire when
// backward enters and leaves a module, whatever tensors flowed in and out of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/op_list.h"
#include "engine/tensor.h"

namespace tessera {

// Whether ops of the calling thread record nodes.
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

// Computes gradients of the inputs from those of the outputs (undefined where none arrived) and
// hands them to the sink.
using BackwardFunction =
    std::function<void(std::vector<Tensor>& output_gradients, GradientSink& sink)>;

// True when a node must be recorded and what it saves kept: gradients are on, an input wants one,
// and the op is not part of a function that runs again in backward (engine/recompute.h).
bool needs_graph(std::initializer_list<Tensor> inputs);

// The values that a backward reads, beside the gradients of the outputs. What no backward reads is
// not computed a second time.
enum class Reads : std::uint8_t { anything, inputs, nothing };

// An op as errors name it: by its entry in the list, or by what the program wrote ({Op::unary,
// "tanh"}). The text must live as long as the graph: a literal.
struct NamedOp {
  NamedOp(Op entry) : op(entry), name(name_of(entry)) {}
  NamedOp(Op entry, std::string_view written) : op(entry), name(written) {}
  Op op;
  std::string_view name;
};

// Records `op` from inputs (undefined ones allowed, they get no gradient) to outputs. No-op when no
// input wants a gradient.
void record(NamedOp op, std::initializer_list<Tensor> inputs, std::initializer_list<Tensor> outputs,
            BackwardFunction backward, Reads reads = Reads::anything);

// For ops that take long, where they compute; record() follows. False: a function runs again only
// for its backward, which needs this value no more. The memory of the results may stay undefined.
bool value_is_needed();
// Runs `compute`, which fills the `results` of an op's forward; in a function that runs again and
// was told to keep what this op computed, takes that instead.
void compute_or_take(Op op, std::initializer_list<Tensor*> results,
                     const std::function<void()>& compute);
// The host, or something that is no op, reads values.
void note_read();

// Where an op's backward puts the gradient of its i-th input. A gradient is written by `slot` (into
// memory that the sink chooses, which for a parameter is the communication buffer itself) or handed
// over finished by `add`.
class GradientSink {
 public:
  struct Slot {
    Tensor tensor;            // write here
    bool accumulate = false;  // add to what it holds instead of overwriting
  };

  [[nodiscard]] bool wants(int input) const;
  // For kernels that can accumulate, of the input's dtype.
  Slot slot(int input);
  // For kernels that can also write float32 from 16-bit types: the slot of a 16-bit input is of
  // either dtype, whichever the place has where the gradient belongs.
  Slot wide_slot(int input);
  // A finished gradient; its memory may be kept. dtype and element count must be the input's.
  void add(int input, const Tensor& gradient);

  GradientSink(const GradientSink&) = delete;
  GradientSink& operator=(const GradientSink&) = delete;

 private:
  friend class Engine;
  explicit GradientSink(Node& node) : node_(node) {}
  Slot slot(int input, bool may_be_wide);
  void commit();  // moves gradients that could not be written in place to where they belong

  struct Pending {
    int input;
    Tensor tensor;
  };
  Node& node_;
  std::vector<Pending> pending_;
};

// A tensor whose values a backward reads, where they lie.
class SavedValue {
 public:
  SavedValue() = default;
  explicit SavedValue(Tensor tensor);
  // A logic_error that names the op where the values have been written since (Tensor::version()):
  // by an optimizer's step, or by copy_from().
  [[nodiscard]] const Tensor& get() const {
    if (version_ && *version_ != noted_) [[unlikely]]
      fail_changed();
    return tensor_;
  }

 private:
  [[noreturn]] void fail_changed() const;

  Tensor tensor_;
  std::shared_ptr<std::uint64_t> version_;  // null: there is no graph, or no tensor
  std::uint64_t noted_ = 0;
};

// What an op keeps of a tensor for its backward: the tensor, or, where its maker has said how, the
// way to compute it again.
class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(const Tensor& tensor);
  [[nodiscard]] Tensor get() const { return recompute_ ? (*recompute_)() : value_.get(); }

 private:
  SavedValue value_;
  std::shared_ptr<const std::function<Tensor()>> recompute_;
};

// True when `tensor` is the only handle to its memory: a backward may then overwrite it, unless it
// keeps its graph.
bool sole_owner(const Tensor& tensor);
// Whether the thread's backward will be followed by another one through the same nodes.
bool keeps_graph();

void backward(const Tensor& root, const Tensor& seed, bool retain_graph = false);

// Tensor::register_hook().
HookHandle add_gradient_hook(const Tensor& tensor, std::function<Tensor(const Tensor&)> hook);

// Calls `callback` when the backward that runs now on this thread has finished (before backward()
// returns), or `on_failure` when an exception ended it: that exception is what
// the caller gets, whatever `on_failure` throws.
void at_end_of_backward(std::function<void()> callback, std::function<void()> on_failure = {});
bool in_backward();

// For tests: the ops of all nodes that lead to `root`.
std::vector<Op> recorded_ops(const Tensor& root);

}  // namespace autograd
}  // namespace tessera
