// First and second runs of recomputed functions.
#include "engine/recompute.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "engine/activation_offload.h"
#include "engine/device/pass.h"
#include "engine/recompute_region.h"

namespace tessera {
namespace autograd {
namespace {

// The runs on this thread: the node of the function in its first run, and the region in its second.
// A function inside a second run has its own first run.
thread_local std::shared_ptr<Node> first_run;
thread_local Region* second_run = nullptr;

[[noreturn]] void fail_differs(const char* what) {
  misuse(
      "a recomputed function {} in its second run: it must repeat the same work on the same "
      "inputs (was train() or eval() called between forward and backward?)",
      what);
}

// Restores the thread's state from the beginning of the first run.
class SecondRun {
 public:
  SecondRun(Region& region, const GeneratorState& generator, Device device)
      : generator_(generator_state()),
        device_(device),
        previous_(std::exchange(second_run, &region)) {
    current_pass().second_run = true;
    set_generator_state(generator);
  }
  ~SecondRun() {
    set_generator_state(generator_);
    second_run = previous_;
    current_pass().second_run = previous_ != nullptr;
  }
  SecondRun(const SecondRun&) = delete;
  SecondRun& operator=(const SecondRun&) = delete;

 private:
  GradGuard grad_;
  GeneratorState generator_;
  DeviceGuard device_;
  Region* previous_;
};

}  // namespace

Region::Region(const RecomputeOptions& options)
    : options_(options), before_(generator_state()), device_(default_device()) {
  for (const Op op : all_ops) {
    TESSERA_REQUIRE(!options.keep.contains(op) || keepable_ops.contains(op),
                    "recompute: the result of {} cannot be kept", name_of(op));
  }
}

bool Region::in_first_run() {
  return first_run != nullptr;
}

bool Region::pass_op(const std::shared_ptr<Node>& node, Reads reads) {
  if (second_run != nullptr) second_run->check_inputs(*node);
  if (first_run) first_run->region->stand_in(first_run, *node, reads);
  if (second_run != nullptr) second_run->match(node);
  return first_run != nullptr;
}

void Region::stand_in(const std::shared_ptr<Node>& function, Node& node, Reads reads) {
  const std::shared_ptr<ModuleCall>& call = current_module_call();
  if (call && (reached_calls_.empty() || reached_calls_.back() != call))
    reached_calls_.push_back(call);
  node.made_in = function->sequence;
  node.place = ops_.size();
  ops_.push_back(node.op);
  for (const Edge& edge : node.inputs) {
    if (!edge.node) continue;
    if (edge.node->made_in == function->sequence) {
      if (reads == Reads::inputs) read_until_ = std::max(read_until_, edge.node->place + 1);
      continue;
    }
    // From outside: the function's node must come before it in backward.
    const auto& known = function->inputs;
    if (std::none_of(known.begin(), known.end(),
                     [&](const Edge& other) { return other.node == edge.node; })) {
      function->inputs.push_back(edge);
    }
  }
  if (reads == Reads::anything) note_read();
  node.inputs.assign(1, {});
  node.inputs[0].node = function;
  node.call = function->call;
  node.backward = [this, place = node.place](std::vector<Tensor>& gradients, GradientSink&) {
    gradients_.emplace_back(place, std::move(gradients));
    gradients.clear();
  };
}

void Region::note_inputs(std::string_view op, std::span<const Tensor> inputs,
                         std::span<const Tensor> results, bool in_graph, Reads reads) {
  if (first_run) first_run->region->note_sources(op, inputs, results, in_graph, reads);
}

void Region::note_saved(const Tensor& tensor) {
  if (first_run) first_run->region->add_sources(tensor, "");
}

// Adds the sources that the values of `tensor` come from, of which it may be one, to noted_.
void Region::add_sources(const Tensor& tensor, std::string_view op) {
  const auto& data = tensor.impl();
  if (data->grad_node && data->grad_node->made_in == first_run->sequence) return;
  if (const auto made = derived_.find(data->storage); made != derived_.end()) {
    noted_.insert(noted_.end(), made->second.begin(), made->second.end());
    return;
  }
  const std::shared_ptr<std::uint64_t>& version = tensor.version();
  const auto [known, is_new] = latest_source_.try_emplace(version.get(), sources_.size());
  if (!is_new && sources_[known->second].noted != *version) known->second = sources_.size();
  if (known->second == sources_.size()) {
    sources_.push_back({version, *version, data->storage, op, ModulePlace::current(),
                        tensor.shape(), tensor.requires_grad() && !data->grad_node});
  }
  noted_.push_back(known->second);
}

void Region::note_sources(std::string_view op, std::span<const Tensor> inputs,
                          std::span<const Tensor> results, bool in_graph, Reads reads) {
  const std::size_t saved = noted_.size();
  for (const Tensor& input : inputs) {
    if (input.defined()) add_sources(input, op);
  }
  if (in_graph) {
    for (std::size_t k = 0; k < noted_.size(); ++k) {
      Source& source = sources_[noted_[k]];
      if (source.op.empty()) source.op = op;
      source.in_graph = true;
      source.place = std::min(source.place, ops_.size());
      source.is_read =
          source.is_read || k < saved || reads != Reads::nothing || source.is_parameter;
    }
    noted_.clear();
    return;
  }
  for (const Tensor& result : results) {
    if (!result.defined()) continue;
    const std::shared_ptr<Storage>& storage = result.impl()->storage;
    const bool is_view = !derived_.contains(storage) &&
                         std::any_of(inputs.begin(), inputs.end(), [&](const Tensor& input) {
                           return input.defined() && input.impl()->storage == storage;
                         });
    if (is_view) continue;
    std::vector<std::size_t>& of_result = derived_[storage];
    of_result.insert(of_result.end(), noted_.begin(), noted_.end());
    std::sort(of_result.begin(), of_result.end());
    of_result.erase(std::unique(of_result.begin(), of_result.end()), of_result.end());
  }
  noted_.clear();
}

void Region::check_sources(bool at_end_of_first_run) const {
  for (const Source& source : sources_) {
    if (*source.version == source.noted || source.storage.expired()) continue;
    if (!source.is_read && source.place >= read_until_) continue;
    const ModulePlace place(source.position, ModulePlace::Pass::backward);
    const std::string_view what = source.is_parameter ? "a parameter" : "a tensor";
    TESSERA_REQUIRE(!at_end_of_first_run,
                    "{}: {} of shape {}, which a recomputed function reads, has been written by "
                    "the function after that, so that its second run would read other values: "
                    "read it after the write, or keep what is written outside of the function",
                    source.op, what, source.shape.to_string());
    TESSERA_REQUIRE(
        *source.version == source.noted,
        "{}: {} of shape {}, which a recomputed function reads, has been written since "
        "the forward (by an optimizer's step, a load, set_buffer() or copy_from()): run backward "
        "before that, or the forward again after it",
        source.op, what, source.shape.to_string());
  }
}

void Region::finish(std::function<void(bool last)> again) {
  after_ = generator_state();
  again_ = std::move(again);
  latest_source_.clear();
  derived_.clear();
  noted_.clear();
  std::erase_if(sources_, [](const Source& source) { return !source.in_graph; });
  check_sources(true);
}

std::vector<std::shared_ptr<Node>> Region::replay(const Node& node, std::uint64_t first) {
  function_ = &node;
  first_ = first;
  check_sources(false);
  next_ = next_kept_ = 0;
  roots_.clear();
  // After the last run the inputs are freed when the function has returned; its nodes hold
  // everything that is still needed.
  const bool last = !keeps_graph();
  const std::function<void(bool)> again = last ? std::move(again_) : again_;
  ModuleCallReplay calls(node.call, calls_);
  const SecondRun run(*this, before_, device_);
  again(last);
  if (next_ != ops_.size() || !calls.complete()) fail_differs("does less");
  if (generator_state() != after_) fail_differs("draws other random numbers");
  gradients_.clear();
  return std::move(roots_);
}

// A gradient for a node outside the function requires that this node still has to run.
void Region::check_inputs(const Node& node) const {
  for (const Edge& edge : node.inputs) {
    if (!edge.node || edge.node->sequence >= first_) continue;
    const auto& known = function_->inputs;
    if (std::none_of(known.begin(), known.end(),
                     [&](const Edge& other) { return other.node == edge.node; })) {
      fail_differs("uses another tensor");
    }
  }
}

void Region::match(const std::shared_ptr<Node>& node) {
  if (next_ >= ops_.size() || ops_[next_] != node->op) fail_differs("takes other steps");
  const auto arrived = std::find_if(gradients_.begin(), gradients_.end(),
                                    [this](const auto& entry) { return entry.first == next_; });
  if (arrived != gradients_.end()) {
    node->output_gradients = std::move(arrived->second);
    roots_.push_back(node);
  }
  ++next_;
}

void Region::keep(Op op, std::initializer_list<Tensor*> results) {
  Kept kept{op, {}};
  for (const Tensor* result : results) kept.results.push_back(result->detach());
  kept_.push_back(std::move(kept));
}

void Region::take(Op op, std::initializer_list<Tensor*> results) {
  if (next_kept_ >= kept_.size() || kept_[next_kept_].op != op) fail_differs("takes other steps");
  Kept& here = kept_[next_kept_++];
  Kept kept = keeps_graph() ? here : std::move(here);
  auto from = kept.results.begin();
  for (Tensor* result : results) *result = std::move(*from++);
}

bool value_is_needed() {
  return second_run == nullptr || second_run->value_is_needed();
}

void compute_or_take(Op op, std::initializer_list<Tensor*> results,
                     const std::function<void()>& compute) {
  if (second_run != nullptr && second_run->keeps(op)) {
    second_run->take(op, results);
  } else {
    compute();
  }
  if (first_run && first_run->region->keeps(op)) first_run->region->keep(op, results);
}

void note_read() {
  if (first_run) first_run->region->note_read();
}

void note_values(std::string_view op, std::initializer_list<Tensor> inputs,
                 std::initializer_list<Tensor> results) {
  Region::note_inputs(op, {inputs.begin(), inputs.size()}, {results.begin(), results.size()}, false,
                      Reads::anything);
  note_read();
}

}  // namespace autograd

namespace detail {

// Also restores the previous state if an exception ends the run.
struct FirstRun::Scopes {
  explicit Scopes(const std::shared_ptr<autograd::Node>& node)
      : previous(std::exchange(autograd::first_run, node)), calls(node->region->calls()) {}
  ~Scopes() { autograd::first_run = previous; }
  Scopes(const Scopes&) = delete;
  Scopes& operator=(const Scopes&) = delete;

  std::shared_ptr<autograd::Node> previous;
  ModuleCallRecording calls;
};

std::function<void()> send_away(const RecomputeOptions& options,
                                const std::vector<Tensor*>& inputs) {
  if (!options.offload) return {};
  return [kept = options.offload->keep(inputs)] { kept->bring_back(); };
}

bool recompute_applies() {
  return grad_enabled() && !autograd::Region::in_first_run();
}

FirstRun::FirstRun(const RecomputeOptions& options) : node_(std::make_shared<autograd::Node>()) {
  node_->op = Op::recompute;
  node_->name = name_of(Op::recompute);
  node_->position = ModulePlace::current();
  node_->sequence = autograd::take_sequence_number();
  node_->call = current_module_call();
  node_->region = std::make_shared<autograd::Region>(options);
  scopes_ = std::make_unique<Scopes>(node_);
}

FirstRun::~FirstRun() = default;

void FirstRun::finish(std::function<void(bool last)> again) {
  scopes_.reset();
  node_->region->finish(std::move(again));
}

}  // namespace detail
}  // namespace tessera
