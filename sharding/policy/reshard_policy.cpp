// Which parameters stay gathered.
#include "sharding/policy/reshard_policy.h"

#include <algorithm>

#include "base/error.h"

namespace tessera {
namespace {

// As in FSDP2, 1 means false, and all ranks means true.
ReshardAfterForward plain(ReshardAfterForward asked, int shards) {
  const int* const ranks = std::get_if<int>(&asked);
  if (ranks == nullptr) return asked;
  if (*ranks == 1) return false;
  if (*ranks == shards) return true;
  return asked;
}

std::optional<ReshardAfterForward> asked_of(const ShardingOptions& options, std::string_view unit) {
  const auto& single = options.reshard_after_forward_of;
  if (const auto found = single.find(std::string(unit)); found != single.end())
    return found->second;
  return options.reshard_after_forward;
}

void check_value(const ShardingOptions& options, ReshardAfterForward asked, int shards) {
  const StrategyRow& row = row_of(options.strategy);
  if (const int* const ranks = std::get_if<int>(&asked)) {
    TESSERA_CHECK(*ranks >= 1 && shards % *ranks == 0, ErrorCode::configuration,
                  "reshard_after_forward {} does not divide the {} ranks that hold one copy under "
                  "{}",
                  *ranks, shards, row.name);
  }
  TESSERA_CHECK(
      row.shards != ShardGroup::self || plain(asked, shards) == ReshardAfterForward(false),
      ErrorCode::configuration,
      "reshard_after_forward frees parameters that are gathered, and {} gathers none; "
      "leave it out, or use FULL_SHARD",
      row.name);
}

bool frees_all_after_forward(const ShardingOptions& options,
                             const std::vector<std::string_view>& units, int shards) {
  return units.size() > 1 &&
         std::all_of(units.begin() + 1, units.end(), [&](std::string_view unit) {
           return reshard_of(options, unit, shards).gathered == Gathered::per_pass;
         });
}

}  // namespace

ReshardPlan reshard_of(const ShardingOptions& options, std::string_view unit, int shards) {
  const Gathered usual = row_of(options.strategy).gathered;
  const Gathered kept = usual == Gathered::until_step ? usual : Gathered::until_backward;
  if (unit.empty()) return {kept, 0};
  std::optional<ReshardAfterForward> asked = asked_of(options, unit);
  if (!asked) return {usual, 0};
  asked = plain(*asked, shards);
  if (const int* const ranks = std::get_if<int>(&*asked)) return {Gathered::per_pass, *ranks};
  return {std::get<bool>(*asked) ? Gathered::per_pass : kept, 0};
}

void check_reshard(const ShardingOptions& options, const std::vector<std::string_view>& units,
                   int shards) {
  TESSERA_CHECK(options.limit_all_gathers >= 1, ErrorCode::configuration,
                "limit_all_gathers is {}: the unit at work counts as one; give 1 or more",
                options.limit_all_gathers);
  if (options.reshard_after_forward) check_value(options, *options.reshard_after_forward, shards);
  for (const auto& [name, asked] : options.reshard_after_forward_of) {
    TESSERA_CHECK(!name.empty(), ErrorCode::configuration,
                  "reshard_after_forward of the root unit: the root always stays until the "
                  "backward is done");
    TESSERA_CHECK(std::find(units.begin(), units.end(), name) != units.end(),
                  ErrorCode::configuration, "reshard_after_forward of {}: no unit has that name",
                  name);
    check_value(options, asked, shards);
  }
  TESSERA_CHECK(options.reshard_after_backward || !frees_all_after_forward(options, units, shards),
                ErrorCode::configuration,
                "reshard_after_backward: false has no effect, because no unit stays gathered after "
                "its forward; set reshard_after_forward: false as well");
}

int prefetched_units(const ShardingOptions& options) {
  const bool prefetches =
      options.forward_prefetch || options.backward_prefetch != BackwardPrefetch::none;
  constexpr int most = 1 << 20;  // more than units; plans add to it
  return prefetches ? std::min(options.limit_all_gathers - 1, most) : 0;
}

}  // namespace tessera
