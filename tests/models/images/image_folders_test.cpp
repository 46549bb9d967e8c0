// Folders of image models: written sharded, read on another number of ranks, with a new head, from
// a step, and with the errors of what does not fit.
#include "models/load/folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/sharded_state.h"
#include "models/config/config_file.h"
#include "models/images/image_testing.h"
#include "models/load/image_models.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::ImageCase;
using testing::ImageNet;

// Two steps on two ranks, saved as a folder and as a checkpoint's step. Returns the parameters.
std::map<std::string, std::vector<double>> train_and_save(const ImageCase& what,
                                                          const std::string& folder) {
  testing::Collected collected;
  launch(2, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(17);
    const ImageNet net = testing::make_image_net(what);
    ShardedModel model = fully_shard(
        *net.module, context, testing::of_layers(testing::toy_options(Strategy::full_shard), what));
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    for (int step = 0; step < 2; ++step) {
      net.loss(step * 6 + context.rank() * 3, 3, context).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    models::save_pretrained(model, *net.module, folder + "/model");
    save(context, folder + "/steps", model, optimizer, {.step = 2});
    collected.add(model);
  });
  return collected.values();
}

// Reads on three ranks and goes on. Returns the parameters as read, and the losses after.
testing::Trajectory read_and_go_on(const ImageCase& what, const ShardingOptions& options,
                                   const std::string& folder, const std::string& step) {
  testing::Trajectory result;
  result.losses.resize(3);
  testing::Collected collected;
  launch(3, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(99);  // other values than those that are read
    const ImageNet net = testing::make_image_net(what);
    ShardedModel model = fully_shard(*net.module, context, testing::of_layers(options, what));
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    if (step.empty()) {
      models::load_pretrained(model, *net.module, folder);
    } else {
      load(context, step, model, optimizer);
    }
    collected.add(model);
    for (int i = 2; i < 4; ++i) {
      const Tensor loss = net.loss(i * 6 + context.rank() * 2, 2, context);
      loss.backward();
      result.losses[static_cast<std::size_t>(context.rank())].push_back(loss.item());
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  result.parameters = collected.values();
  return result;
}

TEST(ImageFolders, AreReadOnThreeRanksAsTwoWroteThem) {
  for (const bool clip : {false, true}) {
    const ImageCase what{.clip = clip};
    const testing::TemporaryFolder folder;
    const auto saved = train_and_save(what, folder.path().string());
    const std::string model = (folder.path() / "model").string();
    const std::string step = (folder.path() / "steps/step-2").string();
    const auto full = testing::toy_options(Strategy::full_shard);
    EXPECT_EQ(read_and_go_on(what, full, model, "").parameters, saved);
    // load_pretrained() reads a step as well.
    EXPECT_EQ(read_and_go_on(what, full, step, "").parameters, saved);
    const testing::Trajectory resumed = read_and_go_on(what, full, model, step);
    EXPECT_EQ(resumed.parameters, saved);
    for (const ShardingOptions& options : testing::all_strategies(3)) {
      EXPECT_TRUE(testing::same_bits(resumed, read_and_go_on(what, options, model, step)))
          << testing::describe(options);
    }
    if (clip) {
      EXPECT_EQ(models::load_clip_config(model).to_json(float32),
                testing::clip_config(models::read_config(model)).to_json(float32));
    } else {
      EXPECT_EQ(models::load_vit_config(model).labels.size(), 5u);
    }
  }
}

// A body's folder for a model with a head, another number of classes, and an adapted model.
TEST(ImageFolders, AHeadMayBeNew) {
  const testing::TemporaryFolder folder;
  (void)train_and_save({}, folder.path().string());
  const std::string saved = (folder.path() / "model").string();
  launch(1, [&](Context& context) {
    models::ViTConfig config = models::load_vit_config(saved);
    {
      models::ViTModel made(config, false);
      ShardedModel model = fully_shard(made, context, {});
      models::load_pretrained(model, made, saved);  // the head is passed over
      models::save_pretrained(model, made, folder.path() / "body");
    }
    config.labels = {"a", "b", "c"};
    models::ViTForImageClassification net(config);
    add_lora(net, {.rank = 2, .target_modules = {"query"}});
    ShardedModel model = fully_shard(net, context, {});
    const auto head = [](const std::string& name) { return name.starts_with("classifier."); };
    models::load_pretrained(model, net, saved, head);
    const Tensor from_whole = net.forward(testing::image_batch(0, 2));
    models::load_pretrained(model, net, folder.path() / "body", head);
    EXPECT_EQ(net.forward(testing::image_batch(0, 2)).to_vector(), from_whole.to_vector());
    EXPECT_EQ(from_whole.shape(), (Shape{2, 3}));
    const auto error_of_load = [&](const std::string& path) {
      return testing::error_of([&] { models::load_pretrained(model, net, path); },
                               ErrorCode::checkpoint);
    };
    EXPECT_NE(error_of_load(saved).find("classifier.weight"), std::string::npos);
    EXPECT_NE(error_of_load(folder.path() / "body").find("classifier.weight"), std::string::npos);
    const std::string adapted =
        testing::error_of([&] { models::save_pretrained(model, net, folder.path() / "adapted"); },
                          ErrorCode::configuration);
    EXPECT_NE(adapted.find("the model has adapters"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "adapted"));
  });
}

// transformers 5 may write the names that its modules have in memory.
TEST(ImageFolders, NewerNamesAreRead) {
  const models::ViTForImageClassification net(testing::vit_config());
  const auto aliases =
      net.hugging_face_names().aliases("vit.encoder.layer.1.attention.output.dense.weight");
  EXPECT_NE(std::ranges::find(aliases, "vit.layers.1.attention.o_proj.weight"), aliases.end());
  EXPECT_NE(std::ranges::find(aliases, "encoder.layer.1.attention.output.dense.weight"),
            aliases.end());
  const auto feed = net.hugging_face_names().aliases("vit.encoder.layer.0.output.dense.bias");
  EXPECT_NE(std::ranges::find(feed, "vit.layers.0.mlp.fc2.bias"), feed.end());
}

void change_config(const std::filesystem::path& folder, const std::function<void(json&)>& change) {
  json config = models::read_config(folder.string());
  change(config);
  std::ofstream(folder / "config.json") << config.dump();
}

TEST(ImageFolders, AConfigurationOfOtherWeightsTakesNoMemory) {
  const testing::TemporaryFolder folder;
  (void)train_and_save({}, folder.path().string());
  const auto model = folder.path() / "model";
  change_config(model, [](json& config) { config["hidden_size"] = 300'000; });
  EXPECT_NE(testing::error_of([&] { (void)models::load_vit_config(model.string()); },
                              ErrorCode::checkpoint)
                .find("they do not belong together"),
            std::string::npos);
  const testing::TemporaryFolder of_clip;
  (void)train_and_save({.clip = true}, of_clip.path().string());
  const auto clip = of_clip.path() / "model";
  for (const auto& [part, key, value] : {std::tuple{"text_config", "vocab_size", 1'000'000},
                                         {"vision_config", "num_hidden_layers", 900}}) {
    const json intact = models::read_config(clip.string());
    json changed = intact;
    changed[part][key] = value;
    change_config(clip, [&](json& config) { config = changed; });
    EXPECT_NE(testing::error_of([&] { (void)models::load_clip_config(clip.string()); },
                                ErrorCode::checkpoint)
                  .find("they do not belong together"),
              std::string::npos)
        << key;
    change_config(clip, [&](json& config) { config = intact; });
  }
  EXPECT_NE(testing::error_of([] { (void)models::load_vit_config("org/not-there"); },
                              ErrorCode::checkpoint)
                .find("nothing is downloaded here"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
