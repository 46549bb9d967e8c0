// ShardedModel over the runtime.
#include "sharding/fully_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/launch.h"
#include "engine/queue.h"
#include "kernels/base/error.h"
#include "sharding/runtime.h"

namespace tessera {
namespace {

constexpr comm::Tag norm_tag{0, 0, comm::Phase::optimizer};

std::string bytes_of(const kernels::ExactSum& sum) {
  std::string text(sizeof sum, '\0');
  std::memcpy(text.data(), &sum, sizeof sum);
  return text;
}

kernels::ExactSum sum_in(const std::string& bytes) {
  kernels::ExactSum sum;
  std::memcpy(&sum, bytes.data(), sizeof sum);
  return sum;
}

// Of the gradients that a rank holds: all units' sums in one accumulator of the device's memory,
// and one wait for it.
kernels::ExactSum local_sum_of_squares(const Runtime& runtime) {
  const Device device = runtime.device();
  const Tensor accumulator = Tensor::zeros({sizeof(kernels::ExactSum)}, uint8, device);
  for (const auto& unit : runtime.units()) {
    for (const auto& parameter : unit->local_parameters()) {
      const auto& data = parameter.tensor.impl();
      if (!data->requires_grad || !data->grad_ready || parameter.tensor.elements() == 0) continue;
      const Tensor gradient(data->grad);
      TESSERA_LAUNCH(device, sum_of_squares,
                     {gradient.data(), gradient.elements(), gradient.dtype(), data->grad_scale,
                      reinterpret_cast<kernels::ExactSum*>(accumulator.data())});
    }
  }
  kernels::ExactSum sum;
  current_queue(device).copy_to_host(&sum, accumulator.data(), sizeof sum);
  return sum;
}

// What the ranks must agree on, a line each.
std::string describe_structure(const Runtime& runtime) {
  const ShardingOptions& options = runtime.options();
  const auto dtype = [](const std::optional<DType>& choice) {
    return choice ? name_of(*choice) : std::string_view("their own");
  };
  std::string text = fmt::format("strategy {}, group_size {}, reduction_group {}, reduced as {}\n",
                                 name_of(options.strategy), options.group_size,
                                 options.reduction_group, dtype(options.reduce_dtype));
  for (const auto& unit : runtime.units()) {
    const std::string where = unit->name().empty() ? "the root unit" : "unit " + unit->name();
    for (const auto& slot : unit->layout().slots()) {
      text += fmt::format("{}: parameter {} {} {}{}\n", where, slot.spec.name,
                          slot.spec.shape.to_string(), name_of(slot.spec.compute_dtype),
                          slot.spec.trainable ? "" : ", frozen");
    }
  }
  return text;
}

// The first line of a that is not b's, and b's there.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  const auto differs = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  const auto line_break = a.substr(0, static_cast<std::size_t>(differs)).rfind('\n');
  const std::size_t begin = line_break == std::string::npos ? 0 : line_break + 1;
  const auto line = [&](const std::string& text) {
    return begin >= text.size() ? std::string("nothing more")
                                : text.substr(begin, text.find('\n', begin) - begin);
  };
  return {line(a), line(b)};
}

// Every rank must shard the same thing; a difference would show much later, as garbage.
void compare_structures(const Runtime& runtime, const Context& context) {
  const auto all = context.communicator().exchange(describe_structure(runtime));
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    const auto [first, other] = first_difference(all[0], all[r]);
    fail(ErrorCode::configuration,
         "ranks 0 and {} shard different modules or with different options: rank 0 has \"{}\" "
         "where rank {} has \"{}\"",
         r, first, r, other);
  }
}

}  // namespace

ShardedModel::ShardedModel(nn::Module& module, const Context& context,
                           const ShardingOptions& options)
    : context_(context),
      runtime_(std::make_unique<Runtime>(module, context_.communicator(), options)) {
  compare_structures(*runtime_, context_);
}

ShardedModel::~ShardedModel() = default;
ShardedModel::ShardedModel(ShardedModel&&) noexcept = default;
ShardedModel& ShardedModel::operator=(ShardedModel&&) noexcept = default;

std::vector<nn::NamedParameter> ShardedModel::parameters() const {
  std::vector<nn::NamedParameter> all;
  for (const auto& unit : runtime_->units()) {
    all.insert(all.end(), unit->local_parameters().begin(), unit->local_parameters().end());
  }
  return all;
}

std::vector<ShardedParameter> ShardedModel::sharded_parameters() const {
  std::vector<ShardedParameter> all;
  const auto copies = static_cast<std::int64_t>(runtime_->replicas());
  const auto copy = static_cast<std::int64_t>(runtime_->replica());
  for (const auto& unit : runtime_->units()) {
    for (std::size_t i = 0; i < unit->local_parameters().size(); ++i) {
      const auto& parameter = unit->local_parameters()[i];
      const ElementRange part = unit->layout().local_of(unit->layout().slots()[i], unit->shard());
      const std::int64_t begin = part.count * copy / copies;
      const std::int64_t end = part.count * (copy + 1) / copies;
      all.push_back(
          {parameter.name, parameter.shape, parameter.tensor, part.first, begin, end - begin});
    }
  }
  return all;
}

double ShardedModel::clip_grad_norm(double max_norm) {
  const std::string mine = bytes_of(local_sum_of_squares(*runtime_));
  kernels::ExactSum total;
  for (const std::string& part : runtime_->shard_group().exchange(mine, norm_tag))
    total.add(sum_in(part));
  const double norm = std::sqrt(total.value());
  if (max_norm > 0 && std::isfinite(norm) && norm > max_norm) {
    const auto factor = static_cast<float>(max_norm / (norm + 1e-6));
    for (const auto& parameter : parameters()) {
      const auto& data = parameter.tensor.impl();
      if (data->grad_ready) data->grad_scale *= factor;
    }
  }
  return norm;
}

ShardedModel::NoSync::NoSync(ShardedModel& model) : runtime_(*model.runtime_) {
  TESSERA_REQUIRE(runtime_.synchronises(), "no_sync inside no_sync");
  runtime_.set_synchronise(false);
}
ShardedModel::NoSync::~NoSync() {
  runtime_.set_synchronise(true);
}

ShardedModel::Unsharded::Unsharded(Runtime& runtime) : runtime_(runtime) {
  runtime_.pin();
}
ShardedModel::Unsharded::~Unsharded() {
  runtime_.unpin();
}
ShardedModel::Unsharded ShardedModel::unsharded() {
  return Unsharded(*runtime_);
}

CommunicationStatistics ShardedModel::communication() const {
  return runtime_->statistics();
}

HeldBytes ShardedModel::held_bytes() const {
  HeldBytes held;
  for (const auto& unit : runtime_->units()) {
    held.parameters += unit->master_bytes();
    held.gradients += unit->gradient_bytes();
  }
  return held;
}

std::string ShardedModel::describe() const {
  std::string text =
      fmt::format("{} over {} ranks, {} units\n", name_of(runtime_->options().strategy),
                  runtime_->world_size(), runtime_->units().size());
  for (const auto& unit : runtime_->units()) {
    std::int64_t parameters = 0;
    for (const auto& slot : unit->layout().slots()) parameters += slot.range.count;
    text += fmt::format("  {:<40} {:>14} parameters {:>14} bytes, share {:>12}\n",
                        unit->name().empty() ? "(root)" : unit->name(), parameters,
                        unit->layout().bytes(), unit->layout().share_bytes());
  }
  return text;
}

}  // namespace tessera
