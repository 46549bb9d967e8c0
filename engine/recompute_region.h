// A function that runs again in backward, as the tape sees it.
//
// In the first run each op's results get a stand-in: a node that saves nothing and leads to the one
// node that stands for the function. Who uses a result has an edge to its stand-in, so nobody has
// to know which of the values a function computes are its results. In backward the stand-ins hand
// over the gradients that arrived; the function runs again, its n-th op's node takes those of the
// n-th stand-in, and the engine runs these nodes in the place of the function's.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/autograd_node.h"
#include "engine/random.h"
#include "engine/recompute.h"

namespace tessera::autograd {

class Region {
 public:
  explicit Region(const RecomputeOptions& options);

  // Whether ops of the thread are part of a first run.
  static bool in_first_run();
  // Tells the runs that are under way on the thread of an op. True: it is part of a first run, and
  // the node has become its stand-in.
  static bool pass_op(const std::shared_ptr<Node>& node, Reads reads);

  // Notes what the first run left behind. again(last) is the second run, which may use up what is
  // kept where it is the last.
  void finish(std::function<void(bool last)> again);

  // Whether a gradient arrived at one of the results.
  [[nodiscard]] bool reached() const { return !gradients_.empty(); }
  void forget_gradients() { gradients_.clear(); }
  // The second run, of the function that `node` stood for: the nodes that gradients arrived at.
  // From `first` on nodes are the function's own. In a backward that keeps its graph there may be
  // another one.
  std::vector<std::shared_ptr<Node>> replay(const Node& node, std::uint64_t first);

  [[nodiscard]] ModuleCalls& calls() { return calls_; }
  // Those that have nodes in the second run, in their order.
  [[nodiscard]] const ModuleCalls& reached_calls() const { return reached_calls_; }
  // The value of the next op is of no use.
  [[nodiscard]] bool value_is_needed() const { return next_ < read_until_; }
  void note_read() { read_until_ = ops_.size(); }
  [[nodiscard]] bool keeps(Op op) const { return options_.keep.contains(op); }
  void keep(Op op, std::initializer_list<Tensor*> results);
  void take(Op op, std::initializer_list<Tensor*> results);

 private:
  void stand_in(const std::shared_ptr<Node>& function, Node& node, Reads reads);
  void note_leaves(const Node& node);
  void check_leaves() const;
  void check_inputs(const Node& node) const;
  void match(const std::shared_ptr<Node>& node);

  RecomputeOptions options_;
  GeneratorState before_, after_;
  Device device_;
  std::function<void(bool last)> again_;
  ModuleCalls calls_, reached_calls_;
  std::vector<Op> ops_;  // in the order of their recording
  // Leaves that ops of the first run used: the second one must find their values as they were.
  struct Leaf {
    std::shared_ptr<std::uint64_t> version;
    std::uint64_t noted;
    std::string_view op;
    std::shared_ptr<const ModulePosition> position;
    Shape shape;
  };
  std::vector<Leaf> leaves_;
  // Values of the ops from here on are read by no backward and by nothing else.
  std::size_t read_until_ = 0;
  struct Kept {
    Op op;
    std::vector<Tensor> results;
  };
  std::vector<Kept> kept_;
  std::size_t next_kept_ = 0;

  // In backward.
  std::vector<std::pair<std::size_t, std::vector<Tensor>>> gradients_;  // by place
  const Node* function_ = nullptr;
  std::uint64_t first_ = 0;
  std::size_t next_ = 0;
  std::vector<std::shared_ptr<Node>> roots_;
};

}  // namespace tessera::autograd
