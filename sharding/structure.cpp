// Plans as text, and the comparison of texts.
#include "sharding/structure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"

namespace tessera {
namespace {

// Nothing is added to what is frozen: it stays as it was made.
DType master_dtype_of(const Tensor& parameter) {
  const bool low = parameter.dtype() == bfloat16 || parameter.dtype() == float16;
  return low && parameter.requires_grad() ? float32 : parameter.dtype();
}

DType compute_dtype_of(const Tensor& parameter, const ShardingOptions& options) {
  const bool cast = is_floating(parameter.dtype()) && options.param_dtype.has_value();
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

// What the ranks must agree on, a line each.
std::string describe(const ShardingOptions& options, const std::vector<UnitPlan>& plan) {
  const auto dtype = [](const std::optional<DType>& choice) {
    return choice ? name_of(*choice) : std::string_view("their own");
  };
  std::string text = fmt::format("strategy {}, group_size {}, reduction_group {}, reduced as {}\n",
                                 name_of(options.strategy), options.group_size,
                                 options.reduction_group, dtype(options.reduce_dtype));
  text += fmt::format("forward_prefetch {}, backward_prefetch {}\n", options.forward_prefetch,
                      name_of(options.backward_prefetch));
  text +=
      fmt::format("activation_checkpointing {}, every {}, of classes [{}]\n",
                  name_of(options.activation_checkpointing), options.activation_checkpointing_every,
                  fmt::join(options.activation_checkpointing_cls, ", "));
  if (options.offload.parameters != Placement::device)
    text += fmt::format("parameters on {}\n", name_of(options.offload.parameters));
  for (const UnitPlan& planned : plan) {
    const std::string where =
        planned.unit.name.empty() ? "the root unit" : "unit " + planned.unit.name;
    text += where + "\n";  // also one that owns nothing
    for (const ParameterSpec& spec : planned.specs) {
      text += fmt::format("{}: parameter {} {} {}", where, spec.name, spec.shape.to_string(),
                          name_of(spec.compute_dtype));
      if (spec.master_dtype != spec.compute_dtype) {
        text += fmt::format(" of {} masters", name_of(spec.master_dtype));
      }
      text += spec.trainable ? "\n" : ", frozen\n";
    }
  }
  return text;
}

// FNV-1a. Texts of a large model are megabytes; ranks that agree exchange this.
std::string digest_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return fmt::format("{:016x} {}", hash, text.size());
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

}  // namespace

std::vector<UnitPlan> plan_units(nn::Module& root, const ShardingOptions& options) {
  std::vector<UnitPlan> plan;
  for (UnitModule& unit : choose_units(root, options.wrap)) {
    UnitPlan& planned = plan.emplace_back();
    for (const OwnedParameter& parameter : unit.parameters) {
      const Tensor& tensor = parameter.tensor;
      planned.specs.push_back({parameter.name, tensor.shape(), master_dtype_of(tensor),
                               compute_dtype_of(tensor, options), tensor.requires_grad()});
    }
    planned.unit = std::move(unit);
  }
  return plan;
}

void compare_structures(comm::Communicator& world, const ShardingOptions& options,
                        const std::vector<UnitPlan>& plan) {
  const std::string mine = describe(options, plan);
  const auto digests = world.exchange(digest_of(mine));
  if (std::all_of(digests.begin(), digests.end(),
                  [&](const std::string& digest) { return digest == digests.front(); })) {
    return;
  }
  const auto all = world.exchange(mine);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    const auto [first, other] = first_difference(all[0], all[r]);
    fail(ErrorCode::configuration,
         "ranks 0 and {} shard different modules or with different options: rank 0 has \"{}\" "
         "where rank {} has \"{}\"",
         r, first, r, other);
  }
}

}  // namespace tessera
