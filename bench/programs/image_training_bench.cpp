// Training of a vision transformer (models/vit) on random images. Start a process for each rank:
//   tessera launch --nproc-per-node 2 -- build/bench/image_training_bench [--dtype bfloat16]
// The default model is ViT-S: 12 layers, 384 wide, 6 heads, patches of 16 x 16 of 224 x 224 pixels,
// 1,000 classes. FULL_SHARD, a unit for each layer, AdamW, clipping. Rank 0 prints one JSON object.
// bench/compare_images.py runs it and PyTorch FSDP2 in turns.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/harness/median.h"
#include "bench/programs/options.h"
#include "tessera/models/vit.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

struct Arguments {
  std::int64_t layers = 12, width = 384, heads = 6, image = 224, patch = 16, classes = 1000,
               batch = 4, steps = 5, warmup = 2;
  std::string dtype = "float32";

  Arguments(int count, char** words) {
    const auto size = [](const char* name, std::int64_t& value, const char* meaning) {
      return bench::number<std::int64_t>(name, value, 1, meaning);
    };
    bench::read_options(
        count, words, "The training of a vision transformer on random images.",
        {size("--layers", layers, "layers"), size("--width", width, "hidden size"),
         size("--heads", heads, "attention heads"),
         size("--image", image, "rows and columns of an image"),
         size("--patch", patch, "rows and columns of a patch"),
         size("--classes", classes, "classes"), size("--batch", batch, "images of a rank's step"),
         size("--steps", steps, "timed steps"), size("--warmup", warmup, "steps before them"),
         bench::text("--dtype", dtype, "compute dtype, float32 or bfloat16")});
    if (dtype != "float32" && dtype != "bfloat16") {
      throw Error(ErrorCode::configuration, fmt::format("--dtype {}: float32 or bfloat16", dtype));
    }
  }

  [[nodiscard]] models::ViTConfig model() const {
    models::ViTConfig config;
    config.hidden_size = width;
    config.num_hidden_layers = layers;
    config.num_attention_heads = heads;
    config.intermediate_size = 4 * width;
    config.pooler_output_size = width;
    config.image_size = image;
    config.patch_size = patch;
    config.labels.clear();
    for (std::int64_t i = 0; i < classes; ++i) config.labels.push_back(fmt::format("LABEL_{}", i));
    return config;
  }
};

void measure(const Arguments& arguments) {
  const Context context = init();
  manual_seed(1);
  models::ViTForImageClassification net(arguments.model());
  const std::int64_t samples = arguments.batch * context.world_size() * 4;
  const Tensor images =
      nn::make_parameter({samples, 3, arguments.image, arguments.image}, nn::normal(0, 1)).detach();
  std::vector<std::int32_t> classes(static_cast<std::size_t>(samples));
  for (std::size_t i = 0; i < classes.size(); ++i) {
    classes[i] = static_cast<std::int32_t>(i * 31 % static_cast<std::size_t>(arguments.classes));
  }
  TrainerOptions options;
  options.steps = arguments.warmup + arguments.steps;
  options.batch_size = arguments.batch;
  options.max_grad_norm = 1.0;
  options.sharding.strategy = Strategy::full_shard;
  options.sharding.wrap = WrapPolicy::transformer({net.layer_class()});
  if (arguments.dtype == "bfloat16") options.sharding.param_dtype = bfloat16;
  options.optimizer = optim::AdamWOptions{.lr = 1e-4, .weight_decay = 0.1};
  const auto loss = [&net](const Tensor& rows, const Tensor& labels) {
    return net.loss(rows, labels);
  };
  Trainer trainer(tasks::make_tensor_task(
                      net, data::TensorDataset{images, Tensor::from(classes, {samples})}, loss),
                  context, options);
  std::vector<double> rates, seconds;
  std::vector<float> losses;
  std::int64_t peak = 0;
  while (trainer.position().steps < options.steps) {
    const auto metrics = trainer.step();
    if (!metrics) continue;
    losses.push_back(metrics->loss);
    peak = std::max(peak, metrics->peak_bytes);
    if (metrics->step <= arguments.warmup) continue;
    rates.push_back(metrics->samples_per_s);
    seconds.push_back(metrics->step_s);
  }
  if (!context.is_main()) return;
  const nlohmann::json result = {{"ranks", context.world_size()},
                                 {"dtype", arguments.dtype},
                                 {"batch", arguments.batch},
                                 {"images_per_s", bench::median(rates)},
                                 {"step_s", bench::median(seconds)},
                                 {"peak_mib", static_cast<double>(peak) / (1 << 20)},
                                 {"losses", losses}};
  fmt::print("{}\n", result.dump());
}

}  // namespace

int main(int argc, char** argv) {
  return tessera::run([&] { measure(Arguments(argc, argv)); });
}
