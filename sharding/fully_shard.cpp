// The implementation of ShardedModel over the runtime.
#include "sharding/fully_shard.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "base/error.h"
#include "comm/exchange_values.h"
#include "engine/device/launch.h"
#include "engine/device/queue.h"
#include "sharding/runtime/runtime.h"

namespace tessera {
namespace {

constexpr comm::Tag norm_tag{0, 0, comm::Phase::optimizer};

// A rank's part of a norm.
struct NormPart {
  kernels::ExactSum sum;
  std::uint64_t filter;  // digest of the answers of its filter
};

// Gradients in a file come piece by piece; the end of a piece is the end of a block of the sum.
template <class Add>
void for_pieces(const optim::GradientRun& run, const Add& add) {
  const FilePlace& place = run.storage->file();
  if (!place) return add(run.data(), run.range.count);
  const StreamedArray array{place.file->window(), place.offset, size_of(run.dtype)};
  stream_arrays(
      std::span(&array, 1), {run.at, run.range.count}, 0,
      [&](ElementRange range, std::span<std::byte* const> where) { add(where[0], range.count); });
}

// The sum of squares of the gradients that a rank holds. All units' sums go into one accumulator in
// the gradients' memory, with one wait for it. Padding is zero and each parameter begins a block of
// the sum, so a run over several gives the same bits as each by itself. Gradients on the host
// arrive in the order of the backward; each is summed as soon as it has arrived.
kernels::ExactSum local_sum_of_squares(const Runtime& runtime,
                                       const optim::ParameterFilter& filter) {
  const bool on_host = runtime.options().offload.gradients == Placement::host;
  const Device device = on_host ? runtime.device().host() : runtime.device();
  Tensor accumulator = Tensor::zeros({sizeof(kernels::ExactSum)}, uint8, device);
  for (auto unit = runtime.units().rbegin(); unit != runtime.units().rend(); ++unit) {
    const auto& parameters = (*unit)->local_parameters();
    const auto counts = [&](std::size_t i) { return !filter || filter(parameters[i]); };
    const auto alike = [&](std::size_t a, std::size_t b) { return counts(a) == counts(b); };
    for (const optim::Segment& segment : (*unit)->optimizer_segments()) {
      for (const auto& run : optim::gradient_runs(parameters, segment, alike)) {
        if (!counts(segment.parameters[run.first])) continue;
        const auto add = [&](const std::byte* data, std::int64_t count) {
          TESSERA_LAUNCH(device, sum_of_squares,
                         {data, count, run.dtype, run.storage->shard().pending_factor,
                          reinterpret_cast<kernels::ExactSum*>(accumulator.data())});
        };
        for_pieces(run, add);
      }
    }
  }
  kernels::ExactSum sum;
  current_queue(device).copy_to_host(&sum, accumulator.data(), sizeof sum);
  return sum;
}

// '1' for each of the parameters that the filter takes, '0' for the others.
std::string answers_of(const Runtime& runtime, const optim::ParameterFilter& filter) {
  std::string answers;
  for (const auto& unit : runtime.units()) {
    for (const nn::NamedParameter& parameter : unit->local_parameters())
      answers += !filter || filter(parameter) ? '1' : '0';
  }
  return answers;
}

// Collective; the answers differ. Says of which parameter.
[[noreturn]] void refuse_filters(Runtime& runtime, const std::string& mine) {
  const std::vector<std::string> all = runtime.groups().control().exchange(mine, norm_tag);
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const std::string& answers) { return answers != all[0]; });
  const auto differs = std::mismatch(all[0].begin(), all[0].end(), other->begin()).first;
  auto index = static_cast<std::size_t>(differs - all[0].begin());
  std::string name;
  for (const auto& unit : runtime.units()) {
    const auto& parameters = unit->local_parameters();
    if (name.empty() && index < parameters.size()) name = parameters[index].name;
    index -= std::min(index, parameters.size());
  }
  // Ranks of one copy of the model are neighbours.
  const auto first = static_cast<std::size_t>(runtime.groups().replica()) * all.size();
  const auto rank = first + static_cast<std::size_t>(other - all.begin());
  const bool first_takes = *differs == '1';
  fail(ErrorCode::configuration,
       "grad_norm: the filter takes {} on rank {} and not on rank {}; it must return the same on "
       "all ranks",
       name, first_takes ? first : rank, first_takes ? rank : first);
}

// The norm over all ranks' gradients. The ranks that hold one copy of the model compare their
// filters on the way: sums over different parameters would add up to the norm of nothing.
double norm_of(Runtime& runtime, const optim::ParameterFilter& filter) {
  const std::string answers = answers_of(runtime, filter);
  const NormPart mine{local_sum_of_squares(runtime, filter),
                      XXH3_64bits(answers.data(), answers.size())};
  kernels::ExactSum total;
  const ComputeScope exchange(runtime.recorder(), SpanKind::exchange);
  bool same = true;
  for (const NormPart& part : comm::exchange_values(runtime.groups().control(), mine, norm_tag)) {
    same = same && part.filter == mine.filter;
    total.add(part.sum);
  }
  if (!same) refuse_filters(runtime, answers);
  return std::sqrt(total.value());
}

void check_max_norm(double max_norm) {
  TESSERA_REQUIRE(max_norm >= 0,
                  "clip_grad_norm(): max_norm is {}; give the largest norm that the gradients may "
                  "have, or 0 to measure the norm only",
                  max_norm);
}

}  // namespace

ShardedModel::ShardedModel(nn::Module& module, const Context& context,
                           const ShardingOptions& options, std::shared_ptr<nn::Module> owner)
    : context_(context),
      runtime_(
          std::make_shared<Runtime>(module, context_.communicator(), options, std::move(owner))) {
  runtime_->allocate();
}

Runtime& ShardedModel::runtime() const {
  TESSERA_REQUIRE(runtime_ != nullptr,
                  "this ShardedModel has ended: it was moved from, or unwrapped");
  return *runtime_;
}

ShardedModel::~ShardedModel() = default;
ShardedModel::ShardedModel(ShardedModel&&) noexcept = default;
ShardedModel& ShardedModel::operator=(ShardedModel&&) noexcept = default;

std::vector<nn::NamedParameter> ShardedModel::parameters() const {
  std::vector<nn::NamedParameter> all;
  for (const auto& unit : runtime().units()) {
    all.insert(all.end(), unit->local_parameters().begin(), unit->local_parameters().end());
  }
  return all;
}

std::vector<nn::NamedParameter> ShardedModel::ignored_parameters() const {
  return runtime().ignored().list();
}

void ShardedModel::compare_ignored_parameters() const {
  runtime().ignored().compare(context_.communicator());
}

std::vector<ShardedParameter> ShardedModel::sharded_parameters() const {
  std::vector<ShardedParameter> all;
  const auto copies = static_cast<std::int64_t>(runtime().groups().replicas());
  const auto copy = static_cast<std::int64_t>(runtime().groups().replica());
  for (const auto& unit : runtime().units()) {
    for (std::size_t i = 0; i < unit->local_parameters().size(); ++i) {
      const auto& parameter = unit->local_parameters()[i];
      const ElementRange part = unit->layout().local_of(unit->layout().slots()[i], unit->shard());
      const std::int64_t begin = part.count * copy / copies;
      const std::int64_t end = part.count * (copy + 1) / copies;
      all.push_back({parameter.name, parameter.shape, parameter.tensor, part.first, begin,
                     end - begin, unit->layout().slots()[i].spec.trainable});
    }
  }
  const std::int64_t ranks = runtime().groups().world_size();
  for (const nn::NamedParameter& parameter : runtime().ignored().list()) {
    const std::int64_t begin = parameter.tensor.elements() * runtime().groups().rank() / ranks;
    const std::int64_t end = parameter.tensor.elements() * (runtime().groups().rank() + 1) / ranks;
    const DType dtype = parameter.tensor.dtype();
    all.push_back({parameter.name, parameter.shape, parameter.tensor, 0, begin, end - begin,
                   dtype == float32 || dtype == float64});
  }
  return all;
}

std::vector<ShardedParameter> ShardedModel::sharded_buffers() const {
  std::vector<ShardedParameter> all;
  const bool writes = runtime().groups().rank() == 0;
  for (const nn::NamedBuffer& buffer : runtime().buffers().list()) {
    if (!buffer.persistent) continue;
    all.push_back({buffer.name, buffer.tensor.shape(), buffer.tensor, 0, 0,
                   writes ? buffer.tensor.elements() : 0, false});
  }
  return all;
}

double ShardedModel::clip_grad_norm(double max_norm) {
  check_max_norm(max_norm);
  const ComputeScope scope(runtime().recorder(), SpanKind::optimizer);
  require_reduced("clip_grad_norm()");
  const double norm = norm_of(runtime(), {});
  if (max_norm > 0 && std::isfinite(norm) && norm > max_norm) {
    const auto factor = static_cast<float>(max_norm / (norm + 1e-6));
    for (const auto& unit : runtime().units()) unit->scale_gradient(factor);
  }
  return norm;
}

double ShardedModel::clip_grad_norm(double max_norm, double loss_scale) {
  TESSERA_REQUIRE(std::isfinite(loss_scale) && loss_scale > 0,
                  "clip_grad_norm(): the loss scale is {}; give the positive number that the loss "
                  "was multiplied by, or 1",
                  loss_scale);
  // Before anything is divided.
  check_max_norm(max_norm);
  require_reduced("clip_grad_norm()");
  runtime().gradients().note_loss_scale();
  if (loss_scale != 1) {
    const auto factor = static_cast<float>(1 / loss_scale);
    for (const auto& unit : runtime().units()) unit->unscale_gradient(factor);
  }
  return clip_grad_norm(max_norm);
}

double ShardedModel::grad_norm(const optim::ParameterFilter& filter) const {
  const ComputeScope scope(runtime().recorder(), SpanKind::optimizer);
  require_reduced("grad_norm()");
  return norm_of(runtime(), filter);
}

void ShardedModel::require_reduced(std::string_view what) const {
  runtime().gradients().require_reduced(what);
}

ShardedModel::NoSync::NoSync(ShardedModel& model) : runtime_(model.runtime_) {
  model.runtime().begin_no_sync();
}
ShardedModel::NoSync::~NoSync() {
  if (const auto runtime = runtime_.lock()) runtime->end_no_sync();
}

void ShardedModel::set_requires_gradient_sync(bool sync) {
  runtime().set_requires_gradient_sync(sync);
}

void ShardedModel::set_requires_all_reduce(bool all_reduce) {
  runtime().set_requires_all_reduce(all_reduce);
}

void ShardedModel::set_reshard_after_backward(bool reshard) {
  runtime().set_reshard_after_backward(reshard);
}

void ShardedModel::unshard(std::string_view unit, bool async_op) {
  runtime().unshard(unit, async_op);
}

void ShardedModel::reshard(std::string_view unit) {
  runtime().reshard(unit);
}

std::vector<std::string> ShardedModel::units() const {
  std::vector<std::string> names;
  for (const auto& unit : runtime().units()) names.push_back(unit->name());
  return names;
}

ShardedModel::Unsharded::Unsharded(const std::shared_ptr<Runtime>& runtime) : runtime_(runtime) {
  runtime->unshard_all();
}
ShardedModel::Unsharded::~Unsharded() {
  if (const auto runtime = runtime_.lock()) runtime->release_all();
}
ShardedModel::Unsharded ShardedModel::unsharded() {
  (void)runtime();
  return Unsharded(runtime_);
}

void ShardedModel::write_unsharded(const std::function<void()>& write) {
  require_reduced("write_unsharded()");
  runtime().write_unsharded(write);
}

void ShardedModel::unwrap() {
  require_reduced("unwrap()");
  runtime().unwrap();
  runtime_.reset();
}

CommunicationStatistics ShardedModel::communication() const {
  return runtime().statistics();
}

std::shared_ptr<StepRecorder> ShardedModel::record() {
  return runtime().record();
}

HeldBytes ShardedModel::held_bytes() const {
  HeldBytes held;
  for (const auto& unit : runtime().units()) {
    held.parameters += unit->master_bytes();
    held.gradients += unit->gradient_bytes();
  }
  held.parameters += runtime().ignored().bytes() + runtime().buffers().bytes();
  held.parameters += runtime().files().held_bytes(MemoryKind::parameters);
  held.gradients += runtime().files().held_bytes(MemoryKind::gradients);
  return held;
}

std::string ShardedModel::describe() const {
  std::string text =
      fmt::format("{} over {} ranks, {} units\n", name_of(runtime().options().strategy),
                  runtime().groups().world_size(), runtime().units().size());
  for (const auto& unit : runtime().units()) {
    std::int64_t parameters = 0;
    for (const auto& slot : unit->layout().slots()) parameters += slot.range.count;
    text += fmt::format("  {:<40} {:>14} parameters {:>14} bytes, share {:>12}\n",
                        unit->name().empty() ? "(root)" : unit->name(), parameters,
                        unit->layout().bytes(), unit->layout().share_bytes());
  }
  std::int64_t ignored = 0;
  for (const auto& parameter : runtime().ignored().list()) ignored += parameter.tensor.elements();
  if (ignored > 0) {
    text += fmt::format("  {:<40} {:>14} parameters {:>14} bytes, whole\n", "(ignored)", ignored,
                        runtime().ignored().bytes());
  }
  return text;
}

}  // namespace tessera
