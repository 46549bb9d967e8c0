// Every encoder: gradients, bits that do not depend on padding or neighbours, recomputation, and
// the same run under every strategy.
#include <gtest/gtest.h>

#include "models/encoder_testing.h"
#include "models/model_testing.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::encoder_batch;
using testing::of_sequence;
using testing::tiny_encoder;

class TextEncoderTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, TextEncoderTest,
                         ::testing::Values("bert", "mpnet", "roberta", "distilbert", "modernbert",
                                           "t5"));

TEST_P(TextEncoderTest, Gradients) {
  testing::check_encoder_gradients(tiny_encoder(GetParam()));
}

TEST_P(TextEncoderTest, PaddingAndNeighboursChangeNoBit) {
  manual_seed(5);
  const auto model = models::make_text_encoder(tiny_encoder(GetParam()), "test");
  for (const bool training : {false, true}) {
    model->train(training);
    const auto states = [&](const models::TokenBatch& batch, std::int64_t first) {
      begin_batch({.step = 1, .first_sample = first, .samples = batch.ids.size(0)});
      return model->forward(batch);
    };
    const Tensor together = states(encoder_batch({4, 9, 1, 16}, 16), 0);
    for (const std::int32_t i : {0, 1, 2, 3}) {
      const std::int32_t length =
          std::vector<std::int32_t>{4, 9, 1, 16}[static_cast<std::size_t>(i)];
      const auto number = static_cast<unsigned>(i);
      for (const std::int64_t padded : {std::int64_t{length}, std::int64_t{16}}) {
        const Tensor alone = states(encoder_batch({length}, padded, {number}), i);
        EXPECT_EQ(of_sequence(alone, 0, length), of_sequence(together, i, length))
            << "sequence " << i << " padded to " << padded << " training " << training;
      }
    }
  }
}

TEST_P(TextEncoderTest, WeightsInTheLayoutForComputingChangeNoBit) {
  manual_seed(5);
  const auto model = models::make_text_encoder(tiny_encoder(GetParam()), "test");
  model->eval();
  const NoGradGuard no_grad;
  const auto batch = encoder_batch({4, 9, 1, 16}, 16);
  const auto before = model->forward(batch).to_vector();
  nn::lay_in_first(*model);
  EXPECT_EQ(model->forward(batch).to_vector(), before);
}

TEST_P(TextEncoderTest, ThePaddingIsNotRead) {
  manual_seed(5);
  const auto model = models::make_text_encoder(tiny_encoder(GetParam()), "test");
  model->eval();
  models::TokenBatch batch = encoder_batch({4, 6}, 6);
  const Tensor before = model->forward(batch);
  batch.ids.data_as<std::int32_t>()[5] = 28;
  EXPECT_EQ(of_sequence(model->forward(batch), 0, 4), of_sequence(before, 0, 4));
}

TEST_P(TextEncoderTest, LengthsAreChecked) {
  const auto model = models::make_text_encoder(tiny_encoder(GetParam()), "test");
  EXPECT_THROW(model->forward(encoder_batch({4, 0}, 6)), std::logic_error);
  EXPECT_THROW(model->forward(encoder_batch({4, 7}, 6)), std::logic_error);
  EXPECT_THROW(model->forward(encoder_batch({17}, 17)), std::logic_error);
}

TEST_P(TextEncoderTest, DropoutIsActiveInTrainingOnly) {
  manual_seed(5);
  const auto model = models::make_text_encoder(tiny_encoder(GetParam()), "test");
  const models::TokenBatch batch = encoder_batch({4, 6}, 6);
  const auto run = [&](std::uint64_t step) {
    begin_batch({.step = step, .first_sample = 0, .samples = 2});
    return of_sequence(model->forward(batch), 0, 4);
  };
  EXPECT_NE(run(1), run(2));
  EXPECT_EQ(run(1), run(1));
  model->eval();
  EXPECT_EQ(run(1), run(2));
}

TEST_P(TextEncoderTest, RecomputedLayersGiveTheSameGradients) {
  const auto gradients = [&](bool recomputed) {
    manual_seed(5);
    const auto model = models::make_text_encoder(tiny_encoder(GetParam()), "test");
    for (const auto& [name, module] : model->named_modules()) {
      if (recomputed && module->class_name() == model->layer_class()) {
        module->set_recompute(RecomputeOptions{});
      }
    }
    begin_batch({.step = 1, .first_sample = 0, .samples = 2});
    const Tensor states = model->forward(model->rows_of(encoder_batch({4, 6}, 6)));
    mean(square(states + 1.0)).backward();
    std::vector<std::vector<double>> all;
    for (const auto& parameter : model->named_parameters()) {
      all.push_back(parameter.tensor.grad().to_vector());
    }
    return all;
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

TEST_P(TextEncoderTest, MetaConstructionHasTheSameParameters) {
  const auto real = models::make_text_encoder(tiny_encoder(GetParam()), "test");
  const DeviceGuard meta(Device::meta());
  const auto model = models::make_text_encoder(tiny_encoder(GetParam()), "test");
  EXPECT_EQ(testing::names_and_shapes(*model), testing::names_and_shapes(*real));
  for (const auto& parameter : model->named_parameters()) EXPECT_TRUE(parameter.tensor.is_meta());
}

TEST_P(TextEncoderTest, EveryStrategyGivesTheSameBits) {
  const testing::TrainingCase what{.max_norm = 0.5, .steps = 2};
  const auto train = [&](int world, const ShardingOptions& options) {
    return testing::train_ranks(world, options, what, [&](double dropout) {
      nlohmann::json config = tiny_encoder(GetParam());
      testing::set_dropout(config, dropout);
      return std::make_unique<testing::EncoderNet>(config);
    });
  };
  const std::string layer_class =
      models::make_text_encoder(tiny_encoder(GetParam()), "test")->layer_class();
  for (const int world : {1, 2}) {
    const auto expected = train(world, {.strategy = Strategy::no_shard});
    for (ShardingOptions options : testing::all_strategies(world)) {
      SCOPED_TRACE(testing::describe(options));
      options.wrap = WrapPolicy::transformer({layer_class});
      EXPECT_TRUE(testing::same_bits(expected, train(world, options)));
    }
  }
}

}  // namespace
}  // namespace tessera
