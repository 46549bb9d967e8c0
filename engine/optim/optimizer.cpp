// The common part of all optimizers: segments, state, step counts.
#include "engine/optim/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>

#include "base/error.h"
#include "engine/device/memory_kind.h"
#include "engine/nn/name_pattern.h"
#include "engine/optim/parts/shard_peers.h"

namespace tessera::optim {

bool decay_matrices(const nn::NamedParameter& parameter) {
  return parameter.shape.dimensions() >= 2;
}

namespace {

std::vector<bool> answers_of(const std::vector<nn::NamedParameter>& parameters,
                             const ParameterFilter& filter) {
  std::vector<bool> answers;
  for (std::size_t i = 0; filter && i < parameters.size(); ++i)
    answers.push_back(filter(parameters[i]));
  return answers;
}

}  // namespace

Optimizer::Optimizer(std::vector<nn::NamedParameter> parameters, const ParameterFilter& decay,
                     std::vector<ParameterGroup> groups, const ParameterFilter& apart)
    : parameters_(std::move(parameters)),
      groups_(std::move(groups)),
      segments_(find_segments(parameters_, answers_of(parameters_, apart))),
      segment_of_(parameters_.size()),
      member_of_(parameters_.size()),
      states_(segments_.size()),
      steps_(parameters_.size()),
      numbers_(parameters_.size()) {
  TESSERA_REQUIRE(!parameters_.empty(), "an optimizer needs parameters");
  std::unordered_set<const void*> seen;
  for (const auto& [name, tensor, shape] : parameters_) {
    TESSERA_REQUIRE(seen.insert(tensor.impl().get()).second,
                    "parameter {} is in the optimizer's list twice", name);
    TESSERA_REQUIRE(
        !tensor.requires_grad() || tensor.dtype() == float32 || tensor.dtype() == float64,
        "optimizers update fp32 parameters; {} is {}: shard the module with param_dtype "
        "instead, which keeps fp32 masters",
        name, name_of(tensor.dtype()));
    TESSERA_REQUIRE(!tensor.storage()->is_foreign(),
                    "parameter {} {} lies in memory of another owner, by from_blob() or DLPack; a "
                    "parameter owns its memory: make it of clone()",
                    name, tensor.shape().to_string());
    TESSERA_REQUIRE(!tensor.storage()->is_lent(),
                    "parameter {} of a sharded module has no gradient of its own; make the "
                    "optimizer from ShardedModel::parameters()",
                    name);
  }
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    for (std::size_t i = 0; i < segments_[s].parameters.size(); ++i) {
      segment_of_[segments_[s].parameters[i]] = s;
      member_of_[segments_[s].parameters[i]] = i;
    }
  }
  find_groups();
  find_decay_edges(decay);
}

void Optimizer::find_groups() {
  if (groups_.empty()) return;
  group_of_.resize(parameters_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const ParameterGroup& group = groups_[g];
    TESSERA_REQUIRE(group.lr_scale >= 0 && group.weight_decay.value_or(0) >= 0,
                    "parameter group \"{}\": lr_scale and weight_decay cannot be negative",
                    group.pattern);
    const NamePattern pattern(group.pattern, "parameter group");
    bool matches = false, concerns = false;
    const std::string* trained = nullptr;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i].tensor.requires_grad()) continue;
      if (trained == nullptr) trained = &parameters_[i].name;
      if (!pattern.matches(parameters_[i].name)) continue;
      matches = true;
      if (group_of_[i]) continue;
      concerns = true;
      group_of_[i] = g;
    }
    TESSERA_CHECK(matches, ErrorCode::configuration,
                  "parameter group \"{}\" matches no trained parameter's whole name; a name is as "
                  "{}",
                  group.pattern, trained == nullptr ? "none" : *trained);
    TESSERA_CHECK(concerns, ErrorCode::configuration,
                  "parameter group \"{}\" changes nothing: all that it matches belongs to groups "
                  "before it; give the narrower pattern first",
                  group.pattern);
  }
}

const ParameterGroup* Optimizer::group_of(std::size_t parameter) const {
  if (group_of_.empty() || !group_of_[parameter]) return nullptr;
  return &groups_[*group_of_[parameter]];
}

// Finds where decay begins and ends along each segment. Padding is treated like the parameter
// before it.
void Optimizer::find_decay_edges(const ParameterFilter& decay) {
  for (const Segment& segment : segments_) {
    std::vector<std::int64_t>& edges = edges_.emplace_back();
    for (std::size_t i = 0; i < segment.parameters.size(); ++i) {
      if (segment.places[i].count == 0) continue;
      const std::size_t parameter = segment.parameters[i];
      const ParameterGroup* const group = group_of(parameter);
      const bool decays = group != nullptr && group->weight_decay
                              ? *group->weight_decay > 0
                              : !decay || decay(parameters_[parameter]);
      const bool inside = edges.size() % 2 == 1;
      if (decays != inside) edges.push_back(segment.places[i].first);
    }
  }
}

void Optimizer::step() {
  for (std::size_t s = segments_.size(); s > 0; --s) step(s - 1);
}

void Optimizer::step(std::size_t segment) {
  if (!begin_step(segment)) return;
  const std::vector<GradientRun> runs = runs_of(segment);
  if (runs.empty()) return;  // this rank has no elements of them
  const Storage& storage = *segments_[segment].storage;
  if (storage.file() || storage.shard().state_folder || runs.front().storage->file()) {
    return step_through_files(segment, runs);
  }
  if (passes_host_link(segment)) return step_over_host_link(segment, runs);
  for (const GradientRun& run : runs) {
    update_run(segment, run, run.range, memory_in(segment, run, run.range));
  }
}

bool Optimizer::begin_step(std::size_t segment) {
  TESSERA_REQUIRE(!evaluates_,
                  "a step after begin_evaluation(): call end_evaluation() before the forward");
  TESSERA_REQUIRE(std::isfinite(learning_rate_),
                  "a step with the learning rate {}: give set_learning_rate() a finite number",
                  learning_rate_);
  segments_[segment].storage->will_step(learning_rate_);
  const std::size_t own_numbers = number_names().size();
  for (const std::size_t i : segments_[segment].parameters) {
    const auto& data = parameters_[i].tensor.impl();
    TESSERA_REQUIRE(!data->requires_grad || data->storage == segments_[segment].storage,
                    "parameter {} was sharded after this optimizer was made; make the optimizer "
                    "from ShardedModel::parameters()",
                    parameters_[i].name);
  }
  bool any = false;
  for (const std::size_t i : segments_[segment].parameters) {
    const auto& data = parameters_[i].tensor.impl();
    if (!data->requires_grad || !data->grad_ready) continue;
    if (!any) data->storage->will_write();
    any = true;
    parameters_[i].tensor.count_write();
    ++steps_[i];
    if (own_numbers == 0) continue;
    numbers_[i].resize(own_numbers);
    const ParameterGroup* const group = group_of(i);
    count_step(i, group == nullptr ? 1.0 : group->lr_scale, numbers_[i]);
  }
  return any;
}

std::vector<GradientRun> Optimizer::runs_of(std::size_t segment) const {
  return gradient_runs(parameters_, segments_[segment], [this](std::size_t a, std::size_t b) {
    return steps_[a] == steps_[b] && numbers_[a] == numbers_[b] && group_of(a) == group_of(b) &&
           !updates_one_by_one();
  });
}

void Optimizer::update_range(std::size_t segment, ElementRange range, const Memory& memory) {
  const auto element = static_cast<std::int64_t>(size_of(segments_[segment].dtype));
  const std::vector<GradientRun> runs = runs_of(segment);
  for (const GradientRun& run : runs) {
    TESSERA_REQUIRE(run.lies_as(runs.front()),
                    "the gradients of a segment are not laid out like its parameters; use step()");
    const ElementRange part = intersect(run.range, range);
    if (part.count == 0) continue;
    const std::int64_t offset = part.first - range.first;
    Memory own = memory;
    own.parameter = memory.parameter + offset * element;
    own.gradient = memory.gradient + offset * static_cast<std::int64_t>(size_of(run.dtype));
    for (std::size_t i = 0; i < own.states.size(); ++i)
      own.states[i] += state_offset(segment, i, offset);
    update_run(segment, run, part, std::move(own));
  }
}

void Optimizer::update_run(std::size_t segment, const GradientRun& run, ElementRange part,
                           Memory memory) {
  Update what = update_settings(segments_[segment].parameters[run.first], run.dtype,
                                run.storage->shard().pending_factor);
  what.device = memory.device;
  what.parameter = memory.parameter;
  what.gradient = memory.gradient;
  what.states = std::move(memory.states);
  what.count = part.count;
  if (updates_one_by_one()) {
    what.first = first_in_whole(what.parameter_index) + part.first -
                 segments_[segment].places[run.first].first;
  }
  // The edges inside the part, and its beginning if it decays.
  const std::vector<std::int64_t>& edges = edges_[segment];
  std::vector<std::int64_t> own_edges;
  const auto next = std::upper_bound(edges.begin(), edges.end(), part.first);
  if ((next - edges.begin()) % 2 == 1) own_edges.push_back(0);
  for (auto edge = next; edge != edges.end() && *edge < part.end(); ++edge) {
    own_edges.push_back(*edge - part.first);
  }
  what.decay_edges = own_edges;
  update(what);
}

Update Optimizer::update_settings(std::size_t parameter, DType gradient_dtype, float factor) const {
  Update settings;
  settings.parameter_index = parameter;
  settings.device = parameters_[parameter].tensor.device();
  settings.dtype = parameters_[parameter].tensor.dtype();
  settings.has_formats = has_formats(segment_of_[parameter]);
  settings.gradient_dtype = gradient_dtype;
  settings.gradient_scale = factor;
  settings.step = steps_[parameter];
  settings.numbers = numbers_[parameter];
  if (const ParameterGroup* const group = group_of(parameter)) {
    settings.lr_scale = group->lr_scale;
    settings.weight_decay = group->weight_decay;
  }
  return settings;
}

std::optional<Update> Optimizer::update_of(std::size_t parameter) {
  static constexpr std::array<std::int64_t, 1> all = {0};
  const auto& data = parameters_[parameter].tensor.impl();
  if (!data->requires_grad || !data->grad_ready) return std::nullopt;
  const detail::TensorData& gradient = *data->grad;
  Update what =
      update_settings(parameter, gradient.dtype, gradient.storage->shard().pending_factor);
  const std::size_t segment = segment_of_[parameter];
  const ElementRange place = segments_[segment].places[member_of_[parameter]];
  what.count = place.count;
  if (updates_one_by_one()) what.first = first_in_whole(parameter);
  if (place.count == 0) return what;
  const auto at = static_cast<std::int64_t>(gradient.offset / size_of(gradient.dtype));
  const std::size_t member = member_of_[parameter];
  Memory memory =
      memory_in(segment, {place, member, member + 1, gradient.storage, at, gradient.dtype}, place);
  what.parameter = memory.parameter;
  what.gradient = memory.gradient;
  what.states = std::move(memory.states);
  // Whether the parameter decays: an odd number of edges up to its beginning.
  const std::vector<std::int64_t>& edges = edges_[segment];
  const auto next = std::upper_bound(edges.begin(), edges.end(), place.first);
  if ((next - edges.begin()) % 2 == 1) what.decay_edges = all;
  return what;
}

Optimizer::Memory Optimizer::memory_of(std::size_t segment, ElementRange range) {
  const std::vector<GradientRun> runs = runs_of(segment);
  TESSERA_REQUIRE(!runs.empty(), "a segment without gradients has nothing to update");
  return memory_in(segment, runs.front(), range);
}

Optimizer::Memory Optimizer::memory_in(std::size_t segment, const GradientRun& run,
                                       ElementRange range) {
  const Segment& whole = segments_[segment];
  const std::int64_t offset = range.first * static_cast<std::int64_t>(size_of(whole.dtype));
  Memory memory;
  memory.device = whole.storage->device();
  memory.states.resize(state_names_of(whole.parameters.front()).size());
  std::vector<Tensor> states;
  for (std::size_t i = 0; i < memory.states.size(); ++i) {
    states.push_back(segment_state(segment, i));
  }
  if (memory.device.is_meta()) return memory;  // no addresses
  memory.parameter = whole.data() + offset;
  memory.gradient =
      run.data() + (range.first - run.range.first) * static_cast<std::int64_t>(size_of(run.dtype));
  for (std::size_t i = 0; i < states.size(); ++i) {
    memory.states[i] =
        states[i].data() + (format_in(segment, i).whole ? whole_offset(segment, i, run.first)
                                                        : state_offset(segment, i, range.first));
  }
  return memory;
}

StateFormat Optimizer::format_in(std::size_t segment, std::size_t which) const {
  StateFormat format = state_format(segments_[segment].parameters.front(), which);
  if (!format.dtype) format.dtype = segments_[segment].dtype;
  return format;
}

std::int64_t Optimizer::state_offset(std::size_t segment, std::size_t which,
                                     std::int64_t element) const {
  const StateFormat format = format_in(segment, which);
  return element / format.block * static_cast<std::int64_t>(size_of(*format.dtype));
}

std::int64_t Optimizer::whole_offset(std::size_t segment, std::size_t which, std::size_t member) {
  whole_offsets_.resize(segments_.size());
  auto& of_states = whole_offsets_[segment];
  if (of_states.size() <= which) of_states.resize(which + 1);
  std::vector<std::int64_t>& offsets = of_states[which];
  if (offsets.empty()) {
    const auto element = static_cast<std::int64_t>(size_of(*format_in(segment, which).dtype));
    offsets.push_back(0);
    for (const std::size_t i : segments_[segment].parameters)
      offsets.push_back(offsets.back() + element * state_format(i, which).elements_for(0));
  }
  return offsets.at(member);
}

bool Optimizer::has_formats(std::size_t segment) const {
  const std::size_t front = segments_[segment].parameters.front();
  const std::size_t states = state_names_of(front).size();
  for (std::size_t which = 0; which < states; ++which) {
    const StateFormat format = state_format(front, which);
    const bool same = format.dtype.value_or(segments_[segment].dtype) == segments_[segment].dtype;
    if (!same || format.block > 1 || format.whole) return true;
  }
  return false;
}

std::int64_t Optimizer::first_in_whole(std::size_t parameter) {
  firsts_in_whole_.resize(parameters_.size(), -1);
  std::int64_t& first = firsts_in_whole_[parameter];
  if (first < 0) {
    const Tensor& local = parameters_[parameter].tensor;
    const std::shared_ptr<ShardPeers>& peers = local.storage()->shard().peers;
    first = peers ? peers->parts_of(local).at(static_cast<std::size_t>(peers->rank())).first : 0;
  }
  return first;
}

void Optimizer::require_on_device(std::string_view optimizer) const {
  for (const nn::NamedParameter& parameter : parameters_) {
    if (!parameter.tensor.requires_grad()) continue;
    const Storage& storage = *parameter.tensor.storage();
    const auto& gradient = parameter.tensor.impl()->grad;
    TESSERA_CHECK(!storage.file() && !storage.shard().state_folder && !storage.shard().host_link &&
                      !(gradient && gradient->storage->file()),
                  ErrorCode::configuration,
                  "{} keeps parameters, gradients and moments on the device, and those of {} are "
                  "offloaded: leave out OffloadOptions, or take AdamW",
                  optimizer, parameter.name);
  }
}

void Optimizer::zero_grad() {
  for (auto& parameter : parameters_) parameter.tensor.zero_grad();
}

Tensor Optimizer::segment_state(std::size_t segment, std::size_t which) {
  std::vector<Tensor>& states = states_[segment];
  if (states.empty()) states.resize(state_names_of(segments_[segment].parameters.front()).size());
  Tensor& tensor = states.at(which);
  if (!tensor) tensor = make_state(segment, which);
  return tensor;
}

Tensor Optimizer::state(std::size_t index, const std::string& name) {
  const std::vector<std::string> names = state_names_of(index);
  const auto found = std::find(names.begin(), names.end(), name);
  TESSERA_REQUIRE(found != names.end(), "the optimizer has no state {} of {}", name,
                  parameters_[index].name);
  const std::size_t segment = segment_of_[index];
  const Tensor whole = segment_state(segment, static_cast<std::size_t>(found - names.begin()));
  const ElementRange place = segments_[segment].places[member_of_[index]];
  const auto which = static_cast<std::size_t>(found - names.begin());
  if (const std::optional<Shape> shape = state_format(index, which).whole) {
    const std::int64_t first = whole_offset(segment, which, member_of_[index]);
    return Tensor::view_of(whole.storage(), whole.impl()->offset + static_cast<std::size_t>(first),
                           *shape, whole.dtype());
  }
  const std::size_t offset =
      whole.impl()->offset + static_cast<std::size_t>(state_offset(segment, which, place.first));
  const StateFormat format = format_in(segment, which);
  const Shape shape = format.block == 1 ? parameters_[index].tensor.shape()
                                        : Shape{format.elements_for(place.count)};
  return Tensor::view_of(whole.storage(), place.count == 0 ? 0 : offset, shape, whole.dtype());
}

void Optimizer::set_step_counts(std::vector<std::int64_t> counts) {
  TESSERA_REQUIRE(counts.size() == steps_.size(), "{} step counts for {} parameters", counts.size(),
                  steps_.size());
  steps_ = std::move(counts);
}

std::size_t Optimizer::state_bytes() const {
  std::size_t total = 0;
  for (const auto& states : states_) {
    for (const Tensor& tensor : states) total += tensor ? tensor.bytes() : 0;
  }
  return total;
}

}  // namespace tessera::optim
