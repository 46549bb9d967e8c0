// Shared by the tests of image models: small configurations, images and texts by number, and runs
// of several ranks.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/nn/lora.h"
#include "engine/tensor_ops.h"
#include "models/clip/clip.h"
#include "models/vit/vit.h"
#include "sharding/sharding_testing.h"

namespace tessera::testing {

constexpr std::int64_t image_classes = 5, image_side = 8, text_length = 7, end_of_text = 28;

// Images of four patches.
inline nlohmann::json tiny_vit() {
  return {{"model_type", "vit"},      {"hidden_size", 12},       {"num_hidden_layers", 2},
          {"num_attention_heads", 3}, {"intermediate_size", 20}, {"image_size", image_side},
          {"patch_size", 4},          {"num_channels", 2},       {"num_labels", image_classes},
          {"initializer_range", 0.3}, {"layer_norm_eps", 1e-6}};
}

inline nlohmann::json tiny_clip() {
  const nlohmann::json text = {{"vocab_size", 29},        {"hidden_size", 12},
                               {"num_hidden_layers", 2},  {"num_attention_heads", 3},
                               {"intermediate_size", 20}, {"max_position_embeddings", 9},
                               {"initializer_factor", 3}, {"eos_token_id", end_of_text}};
  const nlohmann::json vision = {{"hidden_size", 16},        {"num_hidden_layers", 1},
                                 {"num_attention_heads", 2}, {"intermediate_size", 20},
                                 {"image_size", image_side}, {"patch_size", 4},
                                 {"num_channels", 2},        {"initializer_range", 0.3}};
  return {{"model_type", "clip"},
          {"projection_dim", 10},
          {"text_config", text},
          {"vision_config", vision}};
}

inline models::ViTConfig vit_config(const nlohmann::json& config = tiny_vit()) {
  return models::ViTConfig::parse(config, "test");
}
inline models::CLIPConfig clip_config(const nlohmann::json& config = tiny_clip()) {
  return models::CLIPConfig::parse(config, "test");
}

// Images, classes and texts [first, first + count) of an endless data set, on the CPU. A text has
// one end, and other tokens behind it.
inline Tensor image_batch(std::int64_t first, std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = first; i < first + count; ++i) {
    for (std::int64_t j = 0; j < 2 * image_side * image_side; ++j) {
      values.push_back(
          static_cast<float>(std::sin(0.7 * static_cast<double>((i % 7 + 1) * j + i))));
    }
  }
  return Tensor::from(values, {count, 2, image_side, image_side});
}
inline Tensor class_batch(std::int64_t first, std::int64_t count) {
  std::vector<std::int32_t> classes;
  for (std::int64_t i = first; i < first + count; ++i)
    classes.push_back(static_cast<std::int32_t>(i % image_classes));
  return Tensor::from(classes, {count});
}
inline Tensor text_batch(std::int64_t first, std::int64_t count) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = first; i < first + count; ++i) {
    for (std::int64_t t = 0; t < text_length; ++t) {
      const bool ends = t == 2 + i % (text_length - 2);
      ids.push_back(ends ? static_cast<std::int32_t>(end_of_text)
                         : static_cast<std::int32_t>((i * 5 + t * t) % end_of_text));
    }
  }
  return Tensor::from(ids, {count, text_length});
}

// A model of either kind with its loss for samples [first, first + count).
struct ImageNet {
  std::unique_ptr<models::FolderModel> module;
  std::function<Tensor(std::int64_t first, std::int64_t count, const Context& context)> loss;
};

struct ImageCase {
  bool clip = false;
  double dropout = 0;
  bool lora = false;
  std::int64_t least_unit = 0;  // units by size; 0: the layers are units
};

inline ImageNet make_image_net(const ImageCase& what) {
  ImageNet net;
  if (what.clip) {
    nlohmann::json config = tiny_clip();
    for (const char* part : {"text_config", "vision_config"})
      config[part]["attention_dropout"] = what.dropout;
    auto model = std::make_unique<models::CLIPModel>(clip_config(config));
    net.loss = [net = model.get()](std::int64_t first, std::int64_t count, const Context& context) {
      const MemoryScope compute(MemoryKind::activations);
      const Device device = context.device();
      return net->loss(image_batch(first, count).to(device), text_batch(first, count).to(device),
                       context);
    };
    net.module = std::move(model);
  } else {
    nlohmann::json config = tiny_vit();
    config["hidden_dropout_prob"] = config["attention_probs_dropout_prob"] = what.dropout;
    auto model = std::make_unique<models::ViTForImageClassification>(vit_config(config));
    net.loss = [net = model.get()](std::int64_t first, std::int64_t count, const Context& context) {
      const MemoryScope compute(MemoryKind::activations);
      const Device device = context.device();
      return net->loss(image_batch(first, count).to(device), class_batch(first, count).to(device));
    };
    net.module = std::move(model);
  }
  if (what.lora) {
    const std::vector<std::string> targets =
        what.clip ? std::vector<std::string>{"q_proj", "fc1"}
                  : std::vector<std::string>{"query", "intermediate.dense"};
    freeze(*net.module);
    add_lora(*net.module, {.rank = 2, .dropout = what.dropout, .target_modules = targets});
  }
  return net;
}

inline ShardingOptions of_layers(ShardingOptions options, const ImageCase& what) {
  options.wrap = what.least_unit > 0
                     ? WrapPolicy::size(what.least_unit)
                     : WrapPolicy::transformer({what.clip ? "CLIPEncoderLayer" : "ViTLayer"});
  return options;
}

// Three steps of six samples, divided among the ranks.
inline Trajectory train_images(int world, const ShardingOptions& options, const ImageCase& what) {
  Trajectory result;
  result.losses.resize(static_cast<std::size_t>(world));
  Collected collected;
  launch(world, [&](Context& context) {
    const OneThread one_thread;
    manual_seed(17);
    const ImageNet net = make_image_net(what);
    ShardedModel model = fully_shard(*net.module, context, of_layers(options, what));
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    const std::int64_t batch = 6 / world;
    std::vector<double> norms;
    for (int step = 0; step < 3; ++step) {
      const std::int64_t first = step * 6 + context.rank() * batch;
      begin_batch({static_cast<std::uint64_t>(step), first, batch});
      const Tensor loss = net.loss(first, batch, context);
      loss.backward();
      result.losses[static_cast<std::size_t>(context.rank())].push_back(loss.item());
      norms.push_back(model.clip_grad_norm(0.5));
      optimizer.step();
      optimizer.zero_grad();
    }
    collected.add(model);
    if (context.is_main()) result.norms = norms;
  });
  result.parameters = collected.values();
  return result;
}

}  // namespace tessera::testing
