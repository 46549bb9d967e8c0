// A function that runs again in backward, as the tape sees it.
//
// In the first run the results of each op get a stand-in: a node that saves nothing and leads to
// the one node that stands for the function. A later op that uses a result has an edge to its
// stand-in, so the results of the function need not be known. In backward the stand-ins collect the
// gradients that arrive. The function then runs again, the node of its n-th op takes the gradients
// of the n-th stand-in, and the engine runs these nodes in the place of the function's.
#pragma once

#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/autograd_node.h"
#include "engine/random.h"
#include "engine/recompute.h"

namespace tessera::autograd {

class Region {
 public:
  explicit Region(const RecomputeOptions& options);

  // True if ops of the thread are part of a first run.
  static bool in_first_run();
  // Passes an op to the active runs of the thread. True: the op is part of a first run, and the
  // node has become its stand-in.
  static bool pass_op(const std::shared_ptr<Node>& node, Reads reads);
  // Notes the tensors that an op reads in a first run. Comes before pass_op(). `in_graph`: a node
  // is recorded for the op.
  static void note_inputs(std::string_view op, std::span<const Tensor> inputs,
                          std::span<const Tensor> results, bool in_graph, Reads reads);
  // Notes a tensor that the op saves for its backward, such as ids. Comes before note_inputs().
  static void note_saved(const Tensor& tensor);

  // Records the state at the end of the first run. again(last) is the second run; it may use up the
  // kept inputs if it is the last.
  void finish(std::function<void(bool last)> again);

  // True if a gradient arrived at one of the results.
  [[nodiscard]] bool reached() const { return !gradients_.empty(); }
  void forget_gradients() { gradients_.clear(); }
  // Runs the function of `node` a second time and returns the nodes at which gradients arrived.
  // Nodes numbered from `first` on are the function's own. A backward that keeps its graph may be
  // followed by another replay.
  std::vector<std::shared_ptr<Node>> replay(const Node& node, std::uint64_t first);

  [[nodiscard]] ModuleCalls& calls() { return calls_; }
  // The calls that have nodes in the second run, in their order.
  [[nodiscard]] const ModuleCalls& reached_calls() const { return reached_calls_; }
  // False if the value of the next op is not used.
  [[nodiscard]] bool value_is_needed() const { return next_ < read_until_; }
  void note_read() { read_until_ = ops_.size(); }
  [[nodiscard]] bool keeps(Op op) const { return options_.keep.contains(op); }
  void keep(Op op, std::initializer_list<Tensor*> results);
  void take(Op op, std::initializer_list<Tensor*> results);

 private:
  void stand_in(const std::shared_ptr<Node>& function, Node& node, Reads reads);
  void add_sources(const Tensor& tensor, std::string_view op);
  void note_sources(std::string_view op, std::span<const Tensor> inputs,
                    std::span<const Tensor> results, bool in_graph, Reads reads);
  void check_sources(bool at_end_of_first_run) const;
  void check_inputs(const Node& node) const;
  void match(const std::shared_ptr<Node>& node);

  RecomputeOptions options_;
  GeneratorState before_, after_;
  Device device_;
  std::function<void(bool last)> again_;
  ModuleCalls calls_, reached_calls_;
  std::vector<Op> ops_;  // in the order of their recording
  // Tensors that the function did not make: its inputs, parameters, buffers, what it captured. A
  // value of the graph that comes from one must be the same in the second run, so it must not have
  // been written since.
  struct Source {
    std::shared_ptr<std::uint64_t> version;
    std::uint64_t noted;
    std::weak_ptr<Storage> storage;  // expired: the function made it
    std::string_view op;
    std::shared_ptr<const ModulePosition> position;
    Shape shape;
    bool is_parameter;
    bool in_graph = false;  // values of the graph come from it
    bool is_read = false;   // by a backward; else it matters if the value of the op at `place` does
    std::size_t place = std::numeric_limits<std::size_t>::max();
  };
  std::vector<Source> sources_;
  // Only in the first run. Where the present version of a tensor is in sources_, and the sources of
  // values that are computed without a node.
  std::unordered_map<const std::uint64_t*, std::size_t> latest_source_;
  std::vector<std::size_t> noted_;  // the sources of the op that is about to be recorded
  std::map<std::weak_ptr<Storage>, std::vector<std::size_t>, std::owner_less<>> derived_;
  // Values of the ops from here on are not read, by a backward or otherwise.
  std::size_t read_until_ = 0;
  struct Kept {
    Op op;
    std::vector<Tensor> results;
  };
  std::vector<Kept> kept_;
  std::size_t next_kept_ = 0;

  // Used in backward.
  std::vector<std::pair<std::size_t, std::vector<Tensor>>> gradients_;  // by place
  const Node* function_ = nullptr;
  std::uint64_t first_ = 0;
  std::size_t next_ = 0;
  std::vector<std::shared_ptr<Node>> roots_;
};

// For ops without a node: notes in a first run that `results` come from `inputs`, whose values a
// gradient that depends on them needs again. Undefined tensors are allowed. Includes note_read().
void note_values(std::string_view op, std::initializer_list<Tensor> inputs,
                 std::initializer_list<Tensor> results);

}  // namespace tessera::autograd
