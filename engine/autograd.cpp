// The tape and its engine.
#include "engine/autograd.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <unordered_set>

#include "base/error.h"
#include "base/text/print.h"
#include "engine/autograd_node.h"
#include "engine/device/launch.h"
#include "engine/device/memory_kind.h"
#include "engine/device/pass.h"
#include "engine/module_call.h"
#include "engine/op_checks.h"
#include "engine/recompute_region.h"

namespace tessera {
namespace {
thread_local bool thread_grad_enabled = true;
}

bool grad_enabled() {
  return thread_grad_enabled;
}
NoGradGuard::NoGradGuard() : previous_(thread_grad_enabled) {
  thread_grad_enabled = false;
}
NoGradGuard::~NoGradGuard() {
  thread_grad_enabled = previous_;
}
autograd::GradGuard::GradGuard() : previous_(thread_grad_enabled) {
  thread_grad_enabled = true;
}
autograd::GradGuard::~GradGuard() {
  thread_grad_enabled = previous_;
}

namespace autograd {

using detail::TensorData;

// Takes a graph that is dropped without a backward apart from its root in a loop: destroying it
// node by node would overflow the call stack on a long chain. The inputs stay alive while
// `backward`, whose saved tensors refer to them, is destroyed.
Node::~Node() {
  std::vector<std::shared_ptr<Node>> pending;
  const auto take_apart = [&](Node& node) {
    for (Edge& edge : node.inputs) {
      if (edge.node) pending.push_back(std::move(edge.node));
    }
    node.backward = nullptr;
    node.region = nullptr;
  };
  take_apart(*this);
  while (!pending.empty()) {
    const std::shared_ptr<Node> node = std::move(pending.back());
    pending.pop_back();
    if (node.use_count() == 1) take_apart(*node);
  }
}

namespace {

thread_local std::uint64_t next_sequence = 1;

struct Run {
  std::vector<std::function<void()>> callbacks;
  std::vector<std::function<void()>> on_failure;
  bool retain_graph = false;
};
thread_local Run* active_run = nullptr;
thread_local const Node* node_that_runs = nullptr;

// Marks the running node, for the messages of functions that its backward calls.
class RunningNode {
 public:
  explicit RunningNode(const Node& node)
      : place_(node.position, ModulePlace::Pass::backward),
        previous_(std::exchange(node_that_runs, &node)) {}
  ~RunningNode() { node_that_runs = previous_; }
  RunningNode(const RunningNode&) = delete;
  RunningNode& operator=(const RunningNode&) = delete;

 private:
  ModulePlace place_;
  const Node* previous_;
};

Edge edge_to(const Tensor& input) {
  Edge edge;
  if (!input.defined() || !input.requires_grad()) return edge;
  const auto& data = input.impl();
  edge.shape = input.shape();
  edge.dtype = input.dtype();
  edge.device = input.device();
  if (data->grad_node) {
    edge.node = data->grad_node;
    edge.output = data->grad_output;
  } else {
    edge.leaf = data;
  }
  return edge;
}

void add_into(const Tensor& destination, const Tensor& source) {
  TESSERA_LAUNCH(destination.device(), cast,
                 {source.data(), destination.raw_data(), source.elements(), source.dtype(),
                  destination.dtype(), 1.0f, true});
}

// The leaf's gradient tensor, made on first use. Applies a pending clipping factor before more is
// added, since it concerns only the present contents.
Tensor leaf_gradient(const std::shared_ptr<TensorData>& leaf) {
  if (!leaf->grad) {
    const MemoryScope kind(MemoryKind::gradients);
    leaf->grad = Tensor::empty(leaf->shape, leaf->dtype, leaf->storage->device()).impl();
  }
  Tensor gradient(leaf->grad);
  gradient.multiply_pending_factor();
  return gradient;
}

void give_to_leaf(const std::shared_ptr<TensorData>& leaf, const Tensor& gradient) {
  Tensor destination = leaf_gradient(leaf);
  if (leaf->grad_ready) {
    add_into(destination, gradient);
  } else {
    destination.copy_from(Tensor::view_of(gradient.storage(), gradient.impl()->offset,
                                          destination.shape(), gradient.dtype()));
    leaf->grad_ready = true;
  }
}

bool wants_gradient(std::span<const Tensor> inputs) {
  if (!grad_enabled()) return false;
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const Tensor& t) { return t.defined() && t.requires_grad(); });
}

}  // namespace

std::uint64_t take_sequence_number() {
  return next_sequence++;
}

bool needs_graph(std::initializer_list<Tensor> inputs) {
  return !Region::in_first_run() && wants_gradient({inputs.begin(), inputs.size()});
}

void record(NamedOp op, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
            BackwardFunction backward, Reads reads) {
  const bool wanted = wants_gradient(inputs);
  Region::note_inputs(op.name, inputs, outputs, wanted, reads);
  if (!wanted) return note_read();
  auto node = std::make_shared<Node>();
  node->op = op.op;
  node->name = op.name;
  node->position = ModulePlace::current();
  node->sequence = take_sequence_number();
  for (const Tensor& input : inputs) node->inputs.push_back(edge_to(input));
  node->output_gradients.resize(outputs.size());
  if (!Region::pass_op(node, reads)) {
    node->backward = std::move(backward);
    node->call = current_module_call();
  }
  int index = 0;
  for (const Tensor& output : outputs) {
    if (output.defined()) {
      output.impl()->requires_grad = true;
      output.impl()->grad_node = node;
      output.impl()->grad_output = index;
    }
    ++index;
  }
}

bool GradientSink::wants(int input) const {
  return node_.inputs[static_cast<std::size_t>(input)].wanted();
}

GradientSink::Slot GradientSink::slot(int input) {
  return slot(input, false);
}

GradientSink::Slot GradientSink::wide_slot(int input) {
  return slot(input, true);
}

GradientSink::Slot GradientSink::slot(int input, bool may_be_wide) {
  const Edge& edge = node_.inputs[static_cast<std::size_t>(input)];
  TESSERA_REQUIRE(edge.wanted(), "{}: gradient slot of an input that requires no gradient",
                  node_.name);
  if (edge.leaf) {
    Tensor gradient = leaf_gradient(edge.leaf);
    const bool wide = may_be_wide && gradient.dtype() == DType::float32 && size_of(edge.dtype) == 2;
    if (gradient.dtype() == edge.dtype || wide) {
      const bool accumulate = edge.leaf->grad_ready;
      edge.leaf->grad_ready = true;
      return {gradient, accumulate};
    }
  } else {
    Tensor& gradient = edge.node->output_gradients[static_cast<std::size_t>(edge.output)];
    if (gradient.defined()) {
      // A gradient that was handed over may share its memory with another gradient. Add in place
      // only if this is its sole owner.
      if (sole_owner(gradient)) return {gradient, true};
    } else {
      gradient = Tensor::empty(edge.shape, edge.dtype, edge.device);
      return {gradient, false};
    }
  }
  Tensor temporary = Tensor::empty(edge.shape, edge.dtype, edge.device);
  pending_.push_back({input, temporary});
  return {temporary, false};
}

void GradientSink::add(int input, const Tensor& gradient) {
  const Edge& edge = node_.inputs[static_cast<std::size_t>(input)];
  if (!edge.wanted()) return;
  TESSERA_REQUIRE(gradient.elements() == edge.shape.elements(),
                  "{}: gradient of shape {} for an input of shape {}", node_.name,
                  gradient.shape().to_string(), edge.shape.to_string());
  if (edge.leaf) {
    give_to_leaf(edge.leaf, gradient);
    return;
  }
  Tensor& held = edge.node->output_gradients[static_cast<std::size_t>(edge.output)];
  if (!held.defined()) {
    held =
        Tensor::view_of(gradient.storage(), gradient.impl()->offset, edge.shape, gradient.dtype());
  } else if (sole_owner(held)) {
    add_into(held, gradient);
  } else {
    Tensor sum = held.clone();
    add_into(sum, gradient);
    held = sum;
  }
}

void GradientSink::commit() {
  for (const Pending& item : pending_) add(item.input, item.tensor);
  pending_.clear();
}

const Node* running_node() {
  return node_that_runs;
}

bool keeps_graph() {
  return active_run != nullptr && active_run->retain_graph;
}

// One backward pass: orders the nodes, walks the module calls, runs the hooks.
class Engine {
 public:
  void run(const Tensor& root, const Tensor& seed) {
    const std::shared_ptr<Node>& node = root.impl()->grad_node;
    order({node}, 0);
    forget_gradients();
    announce_calls();
    node->output_gradients[static_cast<std::size_t>(root.impl()->grad_output)] =
        seed.defined() ? seed : Tensor::full(root.shape(), 1.0, root.dtype(), root.device());
    run_ordered();
  }

 private:
  void run_ordered() {
    const std::shared_ptr<ModuleCall> here = call_;
    for (auto& node : nodes_) {
      move_to(node->call);
      execute(*node);
      node.reset();
    }
    move_to(here);
  }

  // Orders the nodes that lead to the roots, except nodes older than `first`.
  void order(std::vector<std::shared_ptr<Node>> roots, std::uint64_t first) {
    nodes_ = std::move(roots);
    std::unordered_set<const Node*> seen;
    for (const auto& root : nodes_) seen.insert(root.get());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      TESSERA_REQUIRE(nodes_[i]->backward || nodes_[i]->region,
                      "backward() a second time through {}: the first one freed its graph; add the "
                      "losses and run one backward, or let the first one keep the graph: "
                      "backward(seed, retain_graph = true)",
                      nodes_[i]->name);
      for (std::size_t k = 0; k < nodes_[i]->inputs.size(); ++k) {
        const std::shared_ptr<Node> next = nodes_[i]->inputs[k].node;
        if (next && next->sequence >= first && seen.insert(next.get()).second)
          nodes_.push_back(next);
      }
    }
    std::sort(nodes_.begin(), nodes_.end(),
              [](const auto& a, const auto& b) { return a->sequence > b->sequence; });
  }

  // Drops the gradients that a failed pass left behind.
  void forget_gradients() const {
    for (const auto& node : nodes_) {
      for (Tensor& gradient : node->output_gradients) gradient = {};
      if (node->region) node->region->forget_gradients();
    }
  }

  // Announces the pass to the calls that it will reach, in the order in which move_to() will enter
  // them. This includes calls in functions that run again, which have no nodes yet.
  void announce_calls() const {
    std::unordered_set<const ModuleCall*> told;
    const ModuleCall* last = nullptr;
    for (const auto& node : nodes_) {
      if (node->region) {
        const ModuleCalls& inside = node->region->reached_calls();
        for (auto call = inside.rbegin(); call != inside.rend(); ++call)
          announce(call->get(), told);
        last = nullptr;
      } else if (node->call.get() != last) {
        last = node->call.get();
        announce(last, told);
      }
    }
  }

  static void announce(const ModuleCall* reached, std::unordered_set<const ModuleCall*>& told) {
    std::vector<const ModuleCall*> inner_first;
    for (const ModuleCall* call = reached; call != nullptr && told.insert(call).second;
         call = call->parent.get()) {
      inner_first.push_back(call);
    }
    for (auto call = inner_first.rbegin(); call != inner_first.rend(); ++call) {
      const auto& hook = (*call)->hooks->expect_backward;
      if (hook) hook(**call);
    }
  }

  void execute(Node& node) {
    const bool reached = std::any_of(node.output_gradients.begin(), node.output_gradients.end(),
                                     [](const Tensor& t) { return t.defined(); });
    const RunningNode running(node);
    if (node.region) {
      run_again(node);
    } else if (reached) {
      std::vector<Tensor> gradients(node.output_gradients.size());
      gradients.swap(node.output_gradients);
      if (node.hooks) run_hooks(node, gradients);
      GradientSink sink(node);
      node.backward(gradients, sink);
      gradients.clear();
      sink.commit();
    }
    if (keeps_graph()) return;
    node.backward = nullptr;  // frees the saved tensors
    node.inputs.clear();
    node.hooks = nullptr;
  }

  static void run_hooks(const Node& node, std::vector<Tensor>& gradients) {
    for (const auto& [output, hooks] : node.hooks->of_output) {
      Tensor& gradient = gradients[static_cast<std::size_t>(output)];
      if (gradient.defined()) hooks.run(gradient);
    }
  }

  // The function's own nodes run in the place of the node that stands for the function. Their
  // gradients go directly to the nodes and leaves that the function used, which come later.
  void run_again(Node& node) {
    const std::shared_ptr<Region> region = node.region;
    if (!keeps_graph()) node.region = nullptr;
    if (!region->reached()) return;
    const std::uint64_t first = next_sequence;
    std::vector<std::shared_ptr<Node>> roots = region->replay(node, first);
    Engine inner;
    inner.call_ = call_;
    inner.order(std::move(roots), first);
    inner.run_ordered();
  }

  // Leaves calls up to the common ancestor of this call and `target`, then enters those below it.
  void move_to(const std::shared_ptr<ModuleCall>& target) {
    if (target == call_) return;
    std::vector<std::shared_ptr<ModuleCall>> entered;
    std::shared_ptr<ModuleCall> up = target;
    const auto depth = [](const auto& call) { return call ? call->depth : 0; };
    while (depth(up) > depth(call_)) {
      entered.push_back(up);
      up = up->parent;
    }
    while (call_ != up) {
      if (depth(call_) < depth(up) || (depth(call_) == depth(up) && up)) {
        entered.push_back(up);
        up = up->parent;
      }
      if (depth(call_) > depth(up)) {
        const auto left = call_;
        call_ = call_->parent;
        if (left->hooks->after_backward) left->hooks->after_backward(*left);
      }
    }
    for (auto it = entered.rbegin(); it != entered.rend(); ++it) {
      if ((*it)->hooks->before_backward) (*it)->hooks->before_backward(**it);
      call_ = *it;
    }
  }

  std::vector<std::shared_ptr<Node>> nodes_;
  std::shared_ptr<ModuleCall> call_;
};

void backward(const Tensor& root, const Tensor& seed, bool retain_graph) {
  TESSERA_REQUIRE(root.defined(), "backward() of an undefined tensor");
  TESSERA_REQUIRE(root.requires_grad(),
                  "backward() of a tensor that does not depend on a parameter");
  TESSERA_REQUIRE(seed.defined() || root.elements() == 1,
                  "backward() of a tensor of shape {} needs the gradient to begin with",
                  root.shape().to_string());
  TESSERA_REQUIRE(
      !seed.defined() || (seed.elements() == root.elements() && seed.dtype() == root.dtype()),
      "backward() of a tensor of {} {} from a gradient of {} {}", name_of(root.dtype()),
      root.shape().to_string(), name_of(seed.dtype()), seed.shape().to_string());
  if (seed.defined()) ops::require_same_device("backward()", root, seed);
  TESSERA_REQUIRE(active_run == nullptr, "backward() within backward()");
  TESSERA_REQUIRE(!Region::in_first_run(), "backward() in a function that backward will run again");
  const NoGradGuard no_grad;
  if (!root.impl()->grad_node) {  // a leaf's gradient with respect to itself
    give_to_leaf(root.impl(), seed.defined()
                                  ? seed
                                  : Tensor::full(root.shape(), 1.0, root.dtype(), root.device()));
    return;
  }
  Run run;
  run.retain_graph = retain_graph;
  active_run = &run;
  current_pass().backward = true;
  struct Reset {
    ~Reset() {
      active_run = nullptr;
      current_pass().backward = false;
    }
  } const reset;
  try {
    Engine().run(root, seed);
    for (const auto& callback : run.callbacks) callback();
  } catch (...) {
    for (const auto& callback : run.on_failure) {
      try {
        callback();
      } catch (const std::exception& error) {  // the caller gets the exception that ended the pass
        print_err("after a backward that failed: {}\n", error.what());
      }
    }
    throw;
  }
}

void at_end_of_backward(std::function<void()> callback, std::function<void()> on_failure) {
  TESSERA_REQUIRE(active_run != nullptr, "no backward runs on this thread");
  active_run->callbacks.push_back(std::move(callback));
  if (on_failure) active_run->on_failure.push_back(std::move(on_failure));
}

bool in_backward() {
  return active_run != nullptr;
}

std::vector<Op> recorded_ops(const Tensor& root) {
  std::vector<Op> ops;
  std::vector<const Node*> pending{root.impl()->grad_node.get()};
  std::unordered_set<const Node*> seen;
  while (!pending.empty()) {
    const Node* node = pending.back();
    pending.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    ops.push_back(node->op);
    for (const Edge& edge : node->inputs) pending.push_back(edge.node.get());
  }
  return ops;
}

}  // namespace autograd
}  // namespace tessera
