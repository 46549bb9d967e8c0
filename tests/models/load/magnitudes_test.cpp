// The first magnitudes of a sharded model on `meta`: the same bits under every strategy and world,
// those of a whole model, and no change of what the model computes.
#include "models/load/magnitudes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "models/load/adapter.h"
#include "models/model_testing.h"
#include "models/registry/registry.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using Values = std::map<std::string, std::vector<double>>;

const nlohmann::json magnitudes_config = {{"model_type", "gpt2"}, {"vocab_size", 50},
                                          {"n_positions", 12},    {"n_embd", 24},
                                          {"n_layer", 2},         {"n_head", 4}};
const LoraOptions magnitudes_lora{
    .rank = 3, .alpha = 6, .dora = true, .target_pattern = "all-linear"};

std::unique_ptr<models::LanguageModel> adapted_model(std::optional<DType> storage) {
  manual_seed(11);
  auto model = models::make_language_model(magnitudes_config);
  models::add_lora(*model, magnitudes_lora, storage);
  return model;
}

Values magnitudes_of_whole(std::optional<DType> storage) {
  Values found;
  const auto model = adapted_model(storage);
  for (const nn::NamedParameter& parameter : model->named_parameters()) {
    if (is_lora_magnitude(parameter.name)) found[parameter.name] = parameter.tensor.to_vector();
  }
  return found;
}

// Each rank's parts.
Values parts_of(const ShardedModel& sharded) {
  Values parts;
  for (const ShardedParameter& part : sharded.sharded_parameters()) {
    if (is_lora_magnitude(part.name)) parts[part.name] = part.local.to_vector();
  }
  return parts;
}

TEST(Magnitudes, AreThoseOfAWholeModelUnderEveryStrategy) {
  for (const std::optional<DType> storage : {std::optional<DType>(), {bfloat16}}) {
    const Values wanted = magnitudes_of_whole(storage);
    ASSERT_EQ(wanted.size(), 8u);
    for (const int world : {1, 2, 3}) {
      for (ShardingOptions options : testing::all_strategies(world)) {
        options.wrap = WrapPolicy::transformer({"GPT2Block"});
        options.param_dtype = storage;
        launch(world, [&](Context& context) {
          const testing::OneThread one_thread;
          std::unique_ptr<models::LanguageModel> model;
          {
            const DeviceGuard deferred(Device::meta());
            model = adapted_model(storage);
          }
          ShardedModel sharded = fully_shard(*model, context, options);
          for (const auto& [name, values] : parts_of(sharded)) {
            for (const double value : values) EXPECT_TRUE(std::isnan(value)) << name;
          }
          models::begin_magnitudes(sharded, *model);
          const auto batch = testing::counting_batch(1, 8, 50);
          for (const ShardedParameter& part : sharded.sharded_parameters()) {
            if (!is_lora_magnitude(part.name)) continue;
            const std::vector<double>& whole = wanted.at(part.name);
            const auto first = whole.begin() + part.first;
            EXPECT_EQ(part.local.to_vector(),
                      std::vector<double>(first, first + part.local.elements()))
                << part.name << " " << testing::describe(options) << " of " << world;
          }
          model->eval();
          const NoGradGuard no_grad;
          const double adapted = model->loss(batch.ids, batch.targets).item();
          const WithoutLora alone;
          EXPECT_NEAR(adapted, model->loss(batch.ids, batch.targets).item(), storage ? 2e-2 : 1e-5);
        });
      }
    }
  }
}

// A model without DoRA has nothing to gather.
TEST(Magnitudes, OfPlainLoraAreNoWork) {
  launch(2, [](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(11);
    const auto model = models::make_language_model(magnitudes_config);
    models::add_lora(*model, {.rank = 3, .target_pattern = "all-linear"});
    ShardedModel sharded = fully_shard(*model, context, {});
    const auto before = sharded.communication().bytes;
    models::begin_magnitudes(sharded, *model);
    EXPECT_EQ(sharded.communication().bytes, before);
  });
}

}  // namespace
}  // namespace tessera
