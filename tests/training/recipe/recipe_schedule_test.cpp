// The recipe's keys for when parameters are gathered and freed: valid values, refused values, and
// the keys of Accelerate's files for them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "training/recipe/accelerate/config.h"
#include "training/recipe/recipe.h"

namespace tessera::training {
namespace {

Recipe of(const std::string& sharding) {
  return parse_recipe("data: {train: t}\nsharding: {" + sharding + "}\n", "r.yaml", {});
}

// The error in reading it or for this number of ranks; empty when it is accepted.
std::string refusal_of_sharding(const std::string& sharding, int world_size = 4) {
  try {
    validate(of(sharding), world_size);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

TEST(RecipeSchedule, IsRead) {
  const Recipe usual = of("forward_prefetch: true");
  EXPECT_FALSE(usual.sharding.reshard_after_forward.has_value());
  EXPECT_TRUE(usual.sharding.reshard_after_backward);
  EXPECT_EQ(usual.sharding.limit_all_gathers, 2);
  EXPECT_EQ(of("reshard_after_forward: true").sharding.reshard_after_forward,
            ReshardAfterForward(true));
  EXPECT_EQ(of("fsdp_reshard_after_forward: no").sharding.reshard_after_forward,
            ReshardAfterForward(false));
  EXPECT_EQ(of("reshard_after_forward: 2").sharding.reshard_after_forward, ReshardAfterForward(2));
  EXPECT_FALSE(of("reshard_after_forward: null").sharding.reshard_after_forward.has_value());
  EXPECT_EQ(of("limit_all_gathers: 5").sharding.limit_all_gathers, 5);
  EXPECT_EQ(of("limit_all_gathers: true").sharding.limit_all_gathers, 2);
  for (const char* keys : {"reshard_after_forward: 2, limit_all_gathers: 3",
                           "reshard_after_forward: false, reshard_after_backward: false"}) {
    const nlohmann::json json = to_json(of(keys));
    EXPECT_EQ(to_json(parse_recipe(json.dump(), "json", {})), json) << keys;
  }
}

TEST(RecipeSchedule, IsChecked) {
  EXPECT_EQ(refusal_of_sharding("reshard_after_forward: 2"), "");
  EXPECT_EQ(refusal_of_sharding("reshard_after_forward: 4"), "");
  EXPECT_EQ(refusal_of_sharding("reshard_after_forward: 3"),
            "r.yaml:2: sharding.reshard_after_forward 3 does not divide the 4 ranks of one copy "
            "under FULL_SHARD");
  EXPECT_EQ(refusal_of_sharding(
                "reshard_after_forward: 4, sharding_strategy: HYBRID_SHARD, group_size: 2"),
            "r.yaml:2: sharding.reshard_after_forward 4 does not divide the 2 ranks of one copy "
            "under HYBRID_SHARD");
  EXPECT_EQ(refusal_of_sharding("reshard_after_forward: true, sharding_strategy: NO_SHARD"),
            "r.yaml:2: sharding.reshard_after_forward frees parameters that were gathered, and "
            "NO_SHARD gathers none; leave it out, or use FULL_SHARD");
  EXPECT_EQ(refusal_of_sharding("reshard_after_forward: false, sharding_strategy: NO_SHARD"), "");
  EXPECT_EQ(refusal_of_sharding("reshard_after_forward: 0"),
            "r.yaml:2: sharding.reshard_after_forward must be true, false, or a number of ranks, "
            "got 0");
  EXPECT_EQ(refusal_of_sharding("reshard_after_forward: 1.5"),
            "r.yaml:2: sharding.reshard_after_forward must be true, false, or a number of ranks, "
            "got 1.5");
  EXPECT_EQ(refusal_of_sharding("reshard_after_backward: false"),
            "r.yaml:2: sharding.reshard_after_backward: false needs parameters that stay gathered "
            "after the forward; set sharding.reshard_after_forward: false as well");
  EXPECT_EQ(refusal_of_sharding("reshard_after_backward: false, reshard_after_forward: false"), "");
  EXPECT_EQ(refusal_of_sharding("reshard_after_backward: false, sharding_strategy: SHARD_GRAD_OP"),
            "");
  EXPECT_EQ(refusal_of_sharding("reshard_after_backward: false, auto_wrap_policy: NO_WRAP"), "");
  EXPECT_EQ(refusal_of_sharding("limit_all_gathers: 0"),
            "r.yaml:2: sharding.limit_all_gathers must be at least 1 and at most 1024, got 0");
}

Recipe under_keys(const std::string& fsdp_config) {
  const AccelerateConfig config = parse_accelerate_config(
      "distributed_type: FSDP\nfsdp_config: {" + fsdp_config + "}\n", "a.yaml");
  return parse_recipe("data: {train: t}\n", "r.yaml", {}, &config);
}

TEST(RecipeSchedule, AcceleratesKeyTakesANumberOfRanks) {
  const Recipe recipe = under_keys("fsdp_version: 2, fsdp_reshard_after_forward: 2");
  EXPECT_EQ(recipe.sharding.sharding_strategy, Strategy::full_shard);
  EXPECT_EQ(recipe.sharding.reshard_after_forward, ReshardAfterForward(2));
  // true and false select strategies, as before.
  EXPECT_FALSE(under_keys("fsdp_version: 2, fsdp_reshard_after_forward: false")
                   .sharding.reshard_after_forward.has_value());
  // In the first version it is a strategy, for which Accelerate uses numbers.
  const Recipe first = under_keys("fsdp_version: 1, fsdp_reshard_after_forward: 2");
  EXPECT_EQ(first.sharding.sharding_strategy, Strategy::shard_grad_op);
  EXPECT_FALSE(first.sharding.reshard_after_forward.has_value());
}

}  // namespace
}  // namespace tessera::training
