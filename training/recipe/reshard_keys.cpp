// Reports the errors that sharding/memory/reshard.cpp would find, by key and line.
#include "training/recipe/reshard_keys.h"

#include <charconv>
#include <optional>
#include <variant>

#include "base/counted.h"
#include "base/error.h"
#include "training/recipe/schema_rows.h"

namespace tessera::training {
namespace {

// The number of ranks that hold one copy; nullopt if only the run knows it (the ranks of a node).
std::optional<std::int64_t> ranks_of_a_copy(const Recipe& recipe, int world_size) {
  switch (row_of(recipe.sharding.sharding_strategy).shards) {
    case ShardGroup::self:
      return 1;
    case ShardGroup::world:
      return world_size;
    case ShardGroup::group:
      break;
  }
  return recipe.sharding.group_size;
}

void validate_reshard_after_forward(const Recipe& recipe, int world_size) {
  const auto& asked = recipe.sharding.reshard_after_forward;
  if (!asked) return;
  const char* const key = "sharding.reshard_after_forward";
  const StrategyRow& row = row_of(recipe.sharding.sharding_strategy);
  const int* const ranks = std::get_if<int>(&*asked);
  const bool frees = ranks != nullptr ? *ranks > 1 : std::get<bool>(*asked);
  TESSERA_CHECK(!frees || row.shards != ShardGroup::self, ErrorCode::configuration,
                "{}: {} frees parameters that were gathered, and {} gathers none; leave it out, or "
                "use FULL_SHARD",
                where(recipe, key), key, row.name);
  const std::optional<std::int64_t> copy = ranks_of_a_copy(recipe, world_size);
  TESSERA_CHECK(ranks == nullptr || !copy || *copy % *ranks == 0, ErrorCode::configuration,
                "{}: {} {} does not divide the {} of one copy under {}", where(recipe, key), key,
                ranks == nullptr ? 0 : *ranks, counted(copy.value_or(0), "rank"), row.name);
}

// The units stay gathered after their forward.
bool keeps_after_forward(const Recipe& recipe) {
  const auto& asked = recipe.sharding.reshard_after_forward;
  if (!asked) return row_of(recipe.sharding.sharding_strategy).gathered != Gathered::per_pass;
  return *asked == ReshardAfterForward(false) || *asked == ReshardAfterForward(1);
}

}  // namespace

void validate_schedule(const Recipe& recipe, int world_size) {
  validate_reshard_after_forward(recipe, world_size);
  const bool has_units = recipe.sharding.auto_wrap_policy != AutoWrapPolicy::none;
  TESSERA_CHECK(
      recipe.sharding.reshard_after_backward || !has_units || keeps_after_forward(recipe),
      ErrorCode::configuration,
      "{}: sharding.reshard_after_backward: false needs parameters that stay gathered after the "
      "forward; set sharding.reshard_after_forward: false as well",
      where(recipe, "sharding.reshard_after_backward"));
}

// FSDP2's key: true, false, or a number of ranks.
RecipeKey reshard_after_forward_key() {
  const std::string name = "sharding.reshard_after_forward";
  RecipeKey row;
  row.name = name;
  row.type = "true \\| false \\| whole number";
  row.range = at_least(1).text();
  row.fallback = "set by `sharding_strategy`";
  row.help =
      "After a unit's forward: free its parameters and gather them again for the backward (true), "
      "keep them (false), or free them and keep a copy sharded over this number of consecutive "
      "ranks, from which they are gathered until the optimizer changes them (ZeRO++'s hpZ). The "
      "number must divide the ranks that hold one copy.";
  row.optional = true;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    if (is_truth(node)) {
      recipe.sharding.reshard_after_forward = read_bool(node, name);
      return;
    }
    int ranks = 0;
    const char* const end = node.text.data() + node.text.size();
    const auto [rest, error] = std::from_chars(node.text.data(), end, ranks);
    if (node.kind != YamlNode::Kind::scalar || error != std::errc() || rest != end || ranks < 1)
      refuse_value(node, name, "true, false, or a number of ranks");
    recipe.sharding.reshard_after_forward = ranks;
  };
  row.write = [](const Recipe& recipe) -> nlohmann::json {
    const auto& chosen = recipe.sharding.reshard_after_forward;
    if (!chosen) return nullptr;
    if (const int* const ranks = std::get_if<int>(&*chosen)) return *ranks;
    return std::get<bool>(*chosen);
  };
  return row;
}

}  // namespace tessera::training
