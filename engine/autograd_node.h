// The tape's nodes, private to the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/autograd.h"
#include "engine/hook_list.h"
#include "engine/module_call.h"

namespace tessera::autograd {

class Region;

// The hooks on a node's results, by result number.
struct GradientHooks {
  std::map<int, HookList<std::function<void(Tensor&)>>> of_output;
};

// The destination of an input's gradient: the node that made the input, or the leaf itself.
struct Edge {
  std::shared_ptr<Node> node;
  int output = 0;
  std::shared_ptr<detail::TensorData> leaf;
  Shape shape;
  DType dtype = DType::float32;
  Device device;

  [[nodiscard]] bool wanted() const { return node != nullptr || leaf != nullptr; }
};

class Node {
 public:
  Node() = default;
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  Op op{};
  std::string_view name;  // of the op, as the program wrote it
  std::uint64_t sequence = 0;
  std::vector<Edge> inputs;
  std::vector<Tensor> output_gradients;  // filled while backward runs
  BackwardFunction backward;
  std::shared_ptr<ModuleCall> call;
  std::shared_ptr<const ModulePosition> position;  // of the innermost module's call, for messages
  std::unique_ptr<GradientHooks> hooks;            // null: there are none

  // In a node that stands for a function that runs again: used instead of `backward`.
  std::shared_ptr<Region> region;
  // For an op in the first run of such a function: the function, by its node's number, and the op's
  // place.
  std::uint64_t made_in = 0;
  std::size_t place = 0;
};

// The node whose backward runs on the thread, or null.
const Node* running_node();

// Node numbers start at 1 and grow in order of creation.
std::uint64_t take_sequence_number();

// Ops record nodes again during its lifetime.
class GradGuard {
 public:
  GradGuard();
  ~GradGuard();
  GradGuard(const GradGuard&) = delete;
  GradGuard& operator=(const GradGuard&) = delete;

 private:
  bool previous_;
};

}  // namespace tessera::autograd
