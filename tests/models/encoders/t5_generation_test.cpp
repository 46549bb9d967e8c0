// T5 with its decoder: Hugging Face's names, keys and head, the loss of labels, what a token sees,
// texts written one token after the other, and refusals.
#include "models/t5/t5_generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/autograd.h"
#include "engine/device/memory.h"
#include "engine/device/memory_step.h"
#include "engine/nn/lora.h"
#include "engine/tensor_ops.h"
#include "models/encoder_testing.h"
#include "models/model_testing.h"
#include "sharding/plan/plan.h"
#include "sharding/sharding_testing.h"
#include "support/errors.h"
#include "support/one_thread.h"

namespace tessera {
namespace {

using models::TokenBatch;
using nlohmann::json;
using Doubles = std::vector<double>;

json small_t5(const json& changes = json::object()) {
  json config = testing::tiny_encoder("t5");
  config.update({{"dropout_rate", 0.0},
                 {"relative_attention_num_buckets", 8},
                 {"relative_attention_max_distance", 6}});
  config.update(changes);
  return config;
}
json small_gated(const json& changes = json::object()) {
  json config = small_t5({{"feed_forward_proj", "gated-gelu"},
                          {"tie_word_embeddings", false},
                          {"num_decoder_layers", 1}});
  config.update(changes);
  return config;
}

std::unique_ptr<models::SequenceToSequence> made(const json& config) {
  manual_seed(5);
  return models::make_sequence_to_sequence(config, "folder/config.json");
}

Tensor labels_of(const std::vector<std::int32_t>& ids, std::int64_t batch) {
  return Tensor::from(ids, {batch, static_cast<std::int64_t>(ids.size()) / batch});
}

TEST(T5Generation, HasHuggingFaceNamesAndShapes) {
  const DeviceGuard meta(Device::meta());
  std::vector<std::string> decoder;
  for (const std::string& line : testing::names_and_shapes(*made(small_gated()))) {
    if (!line.starts_with("encoder.")) decoder.push_back(line);
  }
  EXPECT_EQ(decoder,
            (std::vector<std::string>{
                "shared.weight [29, 12]", "decoder.block.0.layer.0.SelfAttention.q.weight [15, 12]",
                "decoder.block.0.layer.0.SelfAttention.k.weight [15, 12]",
                "decoder.block.0.layer.0.SelfAttention.v.weight [15, 12]",
                "decoder.block.0.layer.0.SelfAttention.o.weight [12, 15]",
                "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight [8, 3]",
                "decoder.block.0.layer.0.layer_norm.weight [12]",
                "decoder.block.0.layer.1.EncDecAttention.q.weight [15, 12]",
                "decoder.block.0.layer.1.EncDecAttention.k.weight [15, 12]",
                "decoder.block.0.layer.1.EncDecAttention.v.weight [15, 12]",
                "decoder.block.0.layer.1.EncDecAttention.o.weight [12, 15]",
                "decoder.block.0.layer.1.layer_norm.weight [12]",
                "decoder.block.0.layer.2.DenseReluDense.wi_0.weight [20, 12]",
                "decoder.block.0.layer.2.DenseReluDense.wi_1.weight [20, 12]",
                "decoder.block.0.layer.2.DenseReluDense.wo.weight [12, 20]",
                "decoder.block.0.layer.2.layer_norm.weight [12]",
                "decoder.final_layer_norm.weight [12]", "lm_head.weight [29, 12]"}));
}

// transformers' counts of t5-small and of google/t5-v1_1-small with its own head.
TEST(T5Generation, HasTheKnownNumbersOfParameters) {
  const DeviceGuard meta(Device::meta());
  EXPECT_EQ(testing::parameter_count(*made({{"model_type", "t5"}})), 60'506'624);
  EXPECT_EQ(testing::parameter_count(*made({{"model_type", "t5"},
                                            {"num_layers", 8},
                                            {"num_heads", 6},
                                            {"d_ff", 1024},
                                            {"feed_forward_proj", "gated-gelu"},
                                            {"tie_word_embeddings", false}})),
            76'961'152);
}

TEST(T5Generation, ConfigurationsAreReadAndWritten) {
  const DeviceGuard meta(Device::meta());
  for (const json& config :
       {small_t5(), small_gated(),
        small_t5({{"eos_token_id", {1, 3}}, {"decoder_start_token_id", 2}, {"pad_token_id", 4}}),
        small_gated({{"dense_act_fn", "gelu_new"}, {"is_gated_act", true}})}) {
    const auto model = made(config);
    const json written = model->config(bfloat16);
    for (const auto& [key, value] : config.items()) EXPECT_EQ(written.at(key), value) << key;
    EXPECT_EQ(written.at("architectures"), json{"T5ForConditionalGeneration"});
    EXPECT_EQ(made(written)->config(bfloat16), written);
  }
}

// transformers 5 writes tie_word_embeddings = true always, and says by another key that the head
// stands alone.
TEST(T5Generation, TheHeadsKindStandsInBothSpellings) {
  const DeviceGuard meta(Device::meta());
  const auto has_head = [](const json& changes) {
    const auto lines = testing::names_and_shapes(*made(small_t5(changes)));
    return lines.back().starts_with("lm_head.");
  };
  EXPECT_FALSE(has_head(json::object()));
  EXPECT_FALSE(has_head({{"tie_word_embeddings", true}, {"scale_decoder_outputs", true}}));
  EXPECT_TRUE(has_head({{"tie_word_embeddings", true}, {"scale_decoder_outputs", false}}));
  EXPECT_TRUE(has_head({{"tie_word_embeddings", false}}));
}

TEST(T5Generation, GradientsAgreeWithDifferences) {
  for (const json& config : {small_t5({{"dropout_rate", 0.1}}), small_gated()}) {
    const nn::ParameterDTypeGuard fp64(float64);
    const auto model = made(config);
    std::vector<Tensor> leaves;
    for (const auto& parameter : model->named_parameters()) leaves.push_back(parameter.tensor);
    const TokenBatch source = testing::encoder_batch({4, 2}, 4);
    const Tensor labels = labels_of({5, 6, 7, 1, 8, 1, -100, -100}, 2);
    testing::check_gradients(
        [&] {
          begin_batch({.step = 3, .first_sample = 0, .samples = 2});
          return model->loss(source, labels);
        },
        leaves, {.step = 1e-5, .tolerance = 1e-6, .max_elements = 8});
  }
}

TEST(T5Generation, TheLossIsThatOfTheShiftedLabels) {
  const auto model = made(small_gated({{"decoder_start_token_id", 2}, {"pad_token_id", 4}}));
  const TokenBatch source = testing::encoder_batch({4, 3}, 4);
  const Tensor labels = labels_of({5, 6, -100, 8, 1, -100}, 2);
  const Tensor inputs = labels_of({2, 5, 6, 2, 8, 1}, 2);
  EXPECT_EQ(model->loss(source, labels).item(),
            cross_entropy(model->forward(source, inputs), labels).item());
  // -100 between labels becomes padding.
  EXPECT_EQ(model->loss(source, labels_of({5, -100, 6, 8, 1, 7}, 2)).item(),
            cross_entropy(model->forward(source, labels_of({2, 5, 4, 2, 8, 1}, 2)),
                          labels_of({5, -100, 6, 8, 1, 7}, 2))
                .item());
}

TEST(T5Generation, ATokenSeesOnlyThoseBeforeItAndNoPadding) {
  const testing::OneThread one_thread;
  const NoGradGuard no_grad;
  const auto model = made(small_t5());
  const auto logits = [&](const TokenBatch& source, const std::vector<std::int32_t>& ids) {
    return model->forward(source, labels_of(ids, 1));
  };
  const TokenBatch source = testing::encoder_batch({5}, 5);
  const Doubles whole = logits(source, {0, 5, 6, 7, 8, 9, 10, 11, 12}).to_vector();
  const Doubles other = logits(source, {0, 5, 6, 7, 20, 21, 22, 23, 24}).to_vector();
  const auto rows = [](const Doubles& all, std::int64_t first, std::int64_t last) {
    return Doubles(all.begin() + first * 29, all.begin() + last * 29);
  };
  EXPECT_EQ(rows(whole, 0, 4), rows(other, 0, 4));
  EXPECT_NE(rows(whole, 4, 5), rows(other, 4, 5));
  const TokenBatch wider = testing::encoder_batch({5}, 9);
  const Doubles padded = logits(wider, {0, 5, 6, 7, 8, 9, 10, 11, 12}).to_vector();
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(padded[i], whole[i], 1e-5);
}

// Row by row with the blocks' memory, as the whole forward says, and each text for itself.
TEST(T5Generation, WritesTheMostLikelyTokens) {
  const testing::OneThread one_thread;
  for (const json& config :
       {small_t5({{"eos_token_id", {1, 7}}, {"pad_token_id", 3}}), small_gated()}) {
    const auto model = made(config);
    model->eval();
    const NoGradGuard no_grad;
    const std::vector<std::int32_t> lengths{6, 2, 4};
    const TokenBatch sources = testing::encoder_batch(lengths, 6);
    const auto texts = model->write_greedily(sources, 10);
    ASSERT_EQ(texts.size(), 3u);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const TokenBatch alone =
          testing::encoder_batch({lengths[i]}, lengths[i], {static_cast<unsigned>(i)});
      std::vector<std::int32_t> seen{config.value("pad_token_id", 0)};
      std::vector<std::int32_t> wanted;
      while (wanted.size() < 10 &&
             (wanted.empty() || (wanted.back() != 1 &&
                                 (wanted.back() != 7 || config.contains("tie_word_embeddings"))))) {
        const Tensor logits = model->forward(alone, labels_of(seen, 1));
        const Tensor last = select(logits, 1, logits.size(1) - 1);
        wanted.push_back(static_cast<std::int32_t>(argmax(last, -1).to_vector().front()));
        seen.push_back(wanted.back());
      }
      EXPECT_EQ(texts[i], wanted) << i;
    }
  }
}

TEST(T5Generation, AnAdapterOfItsAttentionTrains) {
  const auto model = made(small_t5());
  const auto adapted = tessera::add_lora(
      *model, {.rank = 2, .alpha = 4, .target_modules = {"EncDecAttention.k", "SelfAttention.q"}});
  EXPECT_EQ(adapted.size(), 6u);
  const TokenBatch source = testing::encoder_batch({4, 3}, 4);
  model->loss(source, labels_of({5, 6, 8, 1}, 2)).backward();
  int trained = 0;
  for (const auto& parameter : model->named_parameters()) {
    if (!is_lora_parameter(parameter.name)) continue;
    EXPECT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
    ++trained;
  }
  EXPECT_EQ(trained, 12);
}

TEST(T5Generation, RecomputedBlocksGiveTheSameGradients) {
  const auto gradients = [](bool recomputes) {
    const auto model = made(small_gated({{"dropout_rate", 0.1}}));
    for (const auto& [name, module] : model->named_modules()) {
      if (recomputes && module->class_name() == "T5Block")
        module->set_recompute(RecomputeOptions{});
    }
    begin_batch({.step = 1, .first_sample = 0, .samples = 2});
    model->loss(testing::encoder_batch({4, 3}, 4), labels_of({5, 6, 8, 1}, 2)).backward();
    std::vector<Doubles> all;
    for (const auto& parameter : model->named_parameters()) {
      all.push_back(parameter.tensor.grad().to_vector());
    }
    return all;
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

// loss(ids, targets) over sources whose lengths depend only on their row.
class PairsNet : public nn::Module {
 public:
  explicit PairsNet(const json& config) : model_(models::make_sequence_to_sequence(config)) {
    register_children_of(*model_);
  }
  Tensor loss(const Tensor& ids, const Tensor& targets) {
    std::vector<std::int32_t> lengths;
    for (std::int64_t i = 0; i < ids.size(0); ++i) {
      lengths.push_back(static_cast<std::int32_t>(ids.size(1) - i % 3));
    }
    return model_->loss({ids, Tensor::from(lengths, {ids.size(0)}).to(ids.device())}, targets);
  }

 private:
  std::unique_ptr<models::SequenceToSequence> model_;
};

TEST(T5Generation, EveryStrategyGivesTheSameBits) {
  const testing::TrainingCase what{.max_norm = 0.5, .steps = 2};
  for (const json& config : {small_t5(), small_gated()}) {
    const auto train = [&](int world, const ShardingOptions& options) {
      return testing::train_ranks(world, options, what, [&](double dropout) {
        json dropped = config;
        dropped["dropout_rate"] = dropout;
        return std::make_unique<PairsNet>(dropped);
      });
    };
    const auto expected = train(2, {.strategy = Strategy::no_shard});
    for (ShardingOptions options : testing::all_strategies(2)) {
      SCOPED_TRACE(testing::describe(options));
      options.wrap = WrapPolicy::transformer({"T5Block"});
      EXPECT_TRUE(testing::same_bits(expected, train(2, options)));
    }
  }
}

// A plan counts every source and text as full: this batch is.
TEST(T5Generation, MemoryIsAsPlanned) {
  const json config = small_gated();
  const auto options_of = [](models::SequenceToSequence& model, const ShardingOptions& sharding) {
    PlanOptions options;
    options.sharding = sharding;
    options.loss = [&model](Device device) {
      const MemoryScope data(MemoryKind::other);
      const TokenBatch source = testing::encoder_batch({6, 6}, 6);
      const TokenBatch here{source.ids.to(device), source.lengths.to(device)};
      const Tensor labels = labels_of({5, 6, 7, 1, 8, 9, 2, 1}, 2).to(device);
      const MemoryScope compute(MemoryKind::activations);
      return model.loss(here, labels);
    };
    return options;
  };
  for (const Strategy strategy : {Strategy::no_shard, Strategy::full_shard}) {
    const ShardingOptions sharding{.strategy = strategy,
                                   .wrap = WrapPolicy::transformer({"T5Block"})};
    MemoryPlan planned;
    {
      const DeviceGuard deferred(Device::meta());
      const auto model = made(config);
      planned = plan(*model, {.ranks = 2}, options_of(*model, sharding));
    }
    RankMemory measured;
    launch(2, [&](Context& context) {
      const testing::OneThread one_thread;
      const auto model = made(config);
      ShardedModel sharded = fully_shard(*model, context, sharding);
      optim::AdamW optimizer(sharded.parameters(), {});
      const PlanOptions options = options_of(*model, sharding);
      for (int step = 0; step < 2; ++step) {
        const MemoryStep memory(context.device());
        options.loss(context.device()).backward();
        (void)sharded.clip_grad_norm(1.0, 1);
        optimizer.step();
        optimizer.zero_grad();
      }
      if (context.rank() == 0) measured = measure_memory(context);
    });
    for (const MemoryKind kind : {MemoryKind::parameters, MemoryKind::gradients,
                                  MemoryKind::optimizer, MemoryKind::communication}) {
      EXPECT_EQ(planned.memory.of(kind), measured.of(kind)) << name_of(kind);
    }
    const auto total = static_cast<double>(planned.total());
    EXPECT_NEAR(total, static_cast<double>(measured.total()), 0.02 * total);
  }
}

TEST(T5Generation, RefusesByName) {
  const DeviceGuard meta(Device::meta());
  const auto expect = [](const json& changes, const std::string& part) {
    const std::string message =
        testing::error_of([&] { (void)made(small_t5(changes)); }, ErrorCode::configuration);
    EXPECT_EQ(message.find("folder/config.json: "), 0u) << message;
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  };
  expect({{"model_type", "mt5"}}, "\"mt5\" has no encoder with a decoder here; use one of t5");
  const std::string message =
      testing::error_of([] { (void)models::make_language_model(small_t5(), "folder/config.json"); },
                        ErrorCode::configuration);
  EXPECT_NE(message.find("with its decoder it writes texts from texts"), std::string::npos);
  expect({{"feed_forward_proj", "gated-silu"}}, "feed_forward_proj is \"gated-silu\"");
  expect({{"dense_act_fn", "gelu"}}, "dense_act_fn = \"gelu\" is not the activation");
  expect({{"is_gated_act", true}}, "is_gated_act = true is not supported");
  expect({{"tie_word_embeddings", false}, {"scale_decoder_outputs", true}},
         "scale_decoder_outputs = true beside tie_word_embeddings = false");
  expect({{"is_encoder_decoder", false}}, "is_encoder_decoder = false is not supported");
  expect({{"is_decoder", true}}, "is_decoder = true is not supported");
  expect({{"decoder_start_token_id", 29}}, "decoder_start_token_id = 29 is not below vocab_size");
  expect({{"eos_token_id", {1, 40}}}, "eos_token_id has 40");
  expect({{"num_decoder_layers", 0}}, "num_decoder_layers is 0");
  // Enough for the encoder, whose rows are for both directions, and not for the decoder.
  expect({{"relative_attention_num_buckets", 32}, {"relative_attention_max_distance", 16}},
         "relative_attention_max_distance = 16 is not above half of");
}

TEST(T5Generation, RefusesBadInput) {
  const auto model = made(small_t5());
  const TokenBatch source = testing::encoder_batch({4, 3}, 4);
  const auto refusal = [&](const Tensor& labels) {
    return testing::misuse_of([&] { (void)model->loss(source, labels); });
  };
  EXPECT_EQ(
      refusal(labels_of({1, 2, 3}, 3)),
      "T5 takes labels of int32 or int64 [2, 1 to 16], as many texts as the source has; given "
      "int32 [3, 1]");
  EXPECT_NE(refusal(Tensor::zeros({2, 17}, int32)).find("given int32 [2, 17]"), std::string::npos);
  EXPECT_NE(refusal(Tensor::zeros({2, 3})).find("given float32 [2, 3]"), std::string::npos);
  EXPECT_NE(testing::misuse_of([&] { (void)model->write_greedily(source, 4); }).find("call eval()"),
            std::string::npos);
  model->eval();
  EXPECT_NE(testing::misuse_of([&] { (void)model->write_greedily(source, 17); }).find("given 17"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
