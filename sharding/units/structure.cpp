// Writes plans as text and compares the texts.
#include "sharding/units/structure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/error.h"
#include "sharding/units/kept_precision.h"

namespace tessera {
namespace {

// Frozen parameters keep their dtype, because nothing is added to them.
DType master_dtype_of(const Tensor& parameter) {
  const bool low = parameter.dtype() == bfloat16 || parameter.dtype() == float16;
  return low && parameter.requires_grad() ? float32 : parameter.dtype();
}

DType compute_dtype_of(const Tensor& parameter, bool kept, const ShardingOptions& options) {
  if (!is_floating(parameter.dtype())) return parameter.dtype();
  if (kept) return parameter.dtype() == float64 ? float64 : float32;
  const bool cast = options.param_dtype.has_value();
  return cast ? *options.param_dtype : parameter.dtype();
}

std::string_view name_of(ActivationCheckpointing how) {
  switch (how) {
    case ActivationCheckpointing::none:
      return "none";
    case ActivationCheckpointing::full:
      return "full";
    case ActivationCheckpointing::selective:
      break;
  }
  return "selective";
}

std::string text_of(const ReshardAfterForward& reshard) {
  if (const int* const ranks = std::get_if<int>(&reshard)) return std::to_string(*ranks);
  return std::get<bool>(reshard) ? "true" : "false";
}

std::string_view name_of(BackwardPrefetch prefetch) {
  switch (prefetch) {
    case BackwardPrefetch::none:
      return "none";
    case BackwardPrefetch::pre:
      return "pre";
    case BackwardPrefetch::post:
      break;
  }
  return "post";
}

// The values that the ranks must agree on, one on each line.
std::string describe(const ShardingOptions& options, const std::vector<UnitPlan>& plan,
                     const IgnoredModules& ignored) {
  // Strategies without groups ignore group_size, which may then differ between nodes (as the number
  // of a node's ranks).
  const bool grouped = row_of(options.strategy).shards == ShardGroup::group;
  const auto dtype = [](const std::optional<DType>& choice) {
    return choice ? name_of(*choice) : std::string_view("their own");
  };
  std::string text = fmt::format("strategy {}, group_size {}, reduction_group {}, reduced as {}\n",
                                 name_of(options.strategy), grouped ? options.group_size : 0,
                                 options.reduction_group, dtype(options.reduce_dtype));
  text += fmt::format("forward_prefetch {}, backward_prefetch {}\n", options.forward_prefetch,
                      name_of(options.backward_prefetch));
  text += fmt::format("reshard_after_forward {}, reshard_after_backward {}, limit_all_gathers {}\n",
                      options.reshard_after_forward ? text_of(*options.reshard_after_forward)
                                                    : "as the strategy says",
                      options.reshard_after_backward, options.limit_all_gathers);
  for (const auto& [unit, reshard] : options.reshard_after_forward_of)
    text += fmt::format("reshard_after_forward of {}: {}\n", unit, text_of(reshard));
  text += fmt::format("sync_module_states {}, keep_unsharded_memory {}\n",
                      options.sync_module_states, options.keep_unsharded_memory);
  text += fmt::format("defer_replica_sums {}\n", options.defer_replica_sums);
  if (options.output_dtype)
    text += fmt::format("output_dtype {}\n", name_of(*options.output_dtype));
  text += fmt::format("gathered as {}, reduced as {} on the wire\n", name_of(options.gather_wire),
                      name_of(options.reduce_wire));
  text +=
      fmt::format("activation_checkpointing {}, every {}, of classes [{}]\n",
                  name_of(options.activation_checkpointing), options.activation_checkpointing_every,
                  fmt::join(options.activation_checkpointing_cls, ", "));
  if (options.offload.parameters != Placement::device)
    text += fmt::format("parameters on {}\n", name_of(options.offload.parameters));
  for (const OwnedParameter& parameter : ignored.parameters()) {
    text += fmt::format("ignored parameter {} {} {}{}\n", parameter.name,
                        parameter.tensor.shape().to_string(), name_of(parameter.tensor.dtype()),
                        parameter.tensor.requires_grad() ? "" : ", frozen");
  }
  for (const UnitPlan& planned : plan) {
    const std::string where = unit_title(planned.unit.name);
    text += where + "\n";  // also a unit without parameters
    for (const ParameterSpec& spec : planned.specs) {
      text += fmt::format("{}: parameter {} {} {}", where, spec.name, spec.shape.to_string(),
                          name_of(spec.compute_dtype));
      if (spec.master_dtype != spec.compute_dtype) {
        text += fmt::format(" of {} masters", name_of(spec.master_dtype));
      }
      if (spec.apart) text += ", apart";
      if (spec.block != parameter_alignment) text += fmt::format(", in blocks of {}", spec.block);
      text += spec.trainable ? "\n" : ", frozen\n";
    }
  }
  return text;
}

// FNV-1a. Texts of a large model are megabytes; ranks that agree exchange only this digest.
std::string digest_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return fmt::format("{:016x} {}", hash, text.size());
}

// The first line of `a` that differs from `b`, and the line of `b` there.
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

}  // namespace

std::vector<UnitPlan> plan_units(nn::Module& root, const ShardingOptions& options,
                                 const IgnoredModules& ignored) {
  // 1 is what optim::needs_of() says of an optimizer without blocks.
  TESSERA_REQUIRE(
      options.block == 1 || (options.block > 0 && options.block % parameter_alignment == 0),
      "ShardingOptions::block is {}: it must be 1 or a multiple of {}", options.block,
      parameter_alignment);
  const std::int64_t block = std::max(options.block, std::int64_t{parameter_alignment});
  std::vector<UnitPlan> plan;
  const KeptModules kept(root, options, ignored);
  for (UnitModule& unit : choose_units(root, options.wrap, ignored)) {
    UnitPlan& planned = plan.emplace_back();
    for (const OwnedParameter& parameter : unit.parameters) {
      const Tensor& tensor = parameter.tensor;
      planned.specs.push_back({parameter.name, tensor.shape(), master_dtype_of(tensor),
                               compute_dtype_of(tensor, kept.contain(parameter), options),
                               tensor.requires_grad()});
      planned.specs.back().apart = tensor.requires_grad() && options.apart &&
                                   options.apart({parameter.name, tensor, tensor.shape()});
      if (tensor.requires_grad()) planned.specs.back().block = block;
    }
    planned.unit = std::move(unit);
  }
  return plan;
}

std::optional<LineDifference> find_different_line(comm::Communicator& world,
                                                  const std::string& mine) {
  const auto digests = world.exchange(digest_of(mine));
  if (std::all_of(digests.begin(), digests.end(),
                  [&](const std::string& digest) { return digest == digests.front(); })) {
    return std::nullopt;
  }
  const auto all = world.exchange(mine);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    auto [first, other] = first_difference(all[0], all[r]);
    return LineDifference{r, std::move(first), std::move(other)};
  }
  return std::nullopt;
}

void compare_structures(comm::Communicator& world, const ShardingOptions& options,
                        const std::vector<UnitPlan>& plan, const IgnoredModules& ignored,
                        const std::string& buffers) {
  const auto difference = find_different_line(world, describe(options, plan, ignored) + buffers);
  if (!difference) return;
  fail(ErrorCode::configuration,
       "ranks 0 and {} shard different modules or with different options: rank 0 has \"{}\" "
       "where rank {} has \"{}\"",
       difference->rank, difference->first, difference->rank, difference->other);
}

}  // namespace tessera
