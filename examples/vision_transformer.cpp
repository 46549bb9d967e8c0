// A vision transformer with a loss of your own: the same bits under every strategy, saved, and
// resumed on another number of ranks.
//   tessera launch --nproc-per-node 2 -- build/examples/vision_transformer FULL_SHARD out/vision 10
//   tessera launch --nproc-per-node 3 -- build/examples/vision_transformer FULL_SHARD out/vision 20
#include <tessera/tessera.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ts = tessera;

constexpr std::int64_t side = 16, patch = 4, width = 48, heads = 4, kinds = 4, batch = 48;

// Images [samples, 3, side, side] to rows [samples, 1 + patches, width]: a learned first row, whose
// result classifies the image, and the patches with their positions.
struct PatchesImpl : ts::nn::Module {
  PatchesImpl() {
    projection = register_module(
        "projection", ts::nn::Conv2d(3, width, patch, ts::Convolution2dOptions{.stride = patch}));
    const std::int64_t rows = 1 + (side / patch) * (side / patch);
    register_parameter("first", ts::nn::make_parameter({1, 1, width}, ts::nn::normal(0, 0.02)));
    register_parameter("positions", ts::nn::make_parameter({rows, width}, ts::nn::normal(0, 0.02)));
  }
  ts::Tensor forward(const ts::Tensor& images) const {
    const std::int64_t samples = images.size(0);
    const ts::Tensor columns = ts::reshape(projection(images), {samples, width, -1});
    const ts::Tensor first = ts::expand(parameter("first"), {samples, 1, width});
    return ts::concatenate({first, ts::transpose(columns, 1, 2)}, 1) + parameter("positions");
  }
  ts::nn::Conv2d projection;
};
TESSERA_MODULE(Patches);

struct BlockImpl : ts::nn::Module {
  BlockImpl() {
    before = register_module("before", ts::nn::LayerNorm(width));
    qkv = register_module("qkv", ts::nn::Linear(width, 3 * width));
    out = register_module("out", ts::nn::Linear(width, width));
    between = register_module("between", ts::nn::LayerNorm(width));
    up = register_module("up", ts::nn::Linear(width, 4 * width));
    down = register_module("down", ts::nn::Linear(4 * width, width));
  }
  ts::Tensor forward(const ts::Tensor& x) const {
    const ts::Tensor h =
        x + out(ts::packed_attention(qkv(before(x)), ts::AttentionOptions{.heads = heads}));
    return h + down(ts::gelu(up(between(h))));
  }
  ts::nn::LayerNorm before, between;
  ts::nn::Linear qkv, out, up, down;
};
TESSERA_MODULE(Block);

struct Net : ts::nn::Module {
  Net() {
    patches = register_module("patches", Patches(std::make_shared<PatchesImpl>()));
    std::vector<Block> list;
    for (int i = 0; i < 2; ++i) list.emplace_back(std::make_shared<BlockImpl>());
    blocks = register_module("blocks", ts::nn::ModuleList<Block>(std::move(list)));
    norm = register_module("norm", ts::nn::LayerNorm(width));
    head = register_module("head", ts::nn::Linear(width, kinds));
  }
  ts::Tensor forward(const ts::Tensor& images) const {
    ts::Tensor x = patches(images);
    for (std::size_t i = 0; i < blocks->size(); ++i) x = (*blocks)[i](x);
    return head(norm(ts::select(x, 1, 0)));
  }
  Patches patches;
  ts::nn::ModuleList<Block> blocks;
  ts::nn::LayerNorm norm;
  ts::nn::Linear head;
};

// The focal loss: images that are classified well count less.
ts::Tensor focal_loss(const ts::Tensor& logits, const ts::Tensor& classes) {
  const ts::Tensor at = ts::unsqueeze(classes, -1);
  const ts::Tensor log_p = ts::gather(ts::log_softmax(ts::cast(logits, ts::float32)), -1, at);
  return ts::mean(-(ts::square(1.0 - ts::exp(log_p)) * log_p));
}

// Stripes in four directions, in one of the three colours.
ts::data::TensorDataset stripes(std::size_t samples) {
  std::vector<float> images;
  std::vector<std::int32_t> classes;
  constexpr int directions[kinds][2] = {{1, 0}, {0, 1}, {1, 1}, {1, -1}};
  for (std::size_t i = 0; i < samples; ++i) {
    const auto kind = static_cast<std::int32_t>(i % kinds);
    classes.push_back(kind);
    for (std::size_t colour = 0; colour < 3; ++colour) {
      for (int y = 0; y < side; ++y) {
        for (int x = 0; x < side; ++x) {
          const int at = directions[kind][0] * x + directions[kind][1] * y + static_cast<int>(i);
          images.push_back(colour == i / kinds % 3 ? std::sin(1.3f * static_cast<float>(at)) : 0);
        }
      }
    }
  }
  const auto rows = static_cast<std::int64_t>(samples);
  return {ts::Tensor::from(images, {rows, 3, side, side}), ts::Tensor::from(classes, {rows})};
}

// `strategy` is a name of ts::strategy_table. Without a folder nothing is saved.
void train(const std::string& strategy, const std::string& folder, std::int64_t steps) {
  const ts::Context context = ts::init();
  ts::manual_seed(7);
  Net net;
  ts::TrainerOptions options;
  options.steps = steps;
  options.batch_size = batch / context.world_size();
  options.sharding.wrap = ts::WrapPolicy::transformer({"Block"});
  options.sharding.group_size = context.world_size();
  bool known = false;
  for (const ts::StrategyRow& row : ts::strategy_table) {
    if (row.name != strategy) continue;
    options.sharding.strategy = row.strategy;
    known = true;
  }
  if (!known) throw std::invalid_argument(strategy + ": there is no such strategy");
  options.optimizer = ts::optim::AdamWOptions{.lr = 2e-3};
  options.checkpoint.dir = folder;
  options.checkpoint.every = folder.empty() ? 0 : steps;
  const auto loss = [&net](const ts::Tensor& images, const ts::Tensor& classes) {
    return focal_loss(net.forward(images), classes);
  };
  ts::Trainer trainer(ts::tasks::make_tensor_task(net, stripes(480), loss), context, options);
  if (!folder.empty()) trainer.resume();
  while (trainer.position().steps < steps) {
    const auto metrics = trainer.step();
    if (metrics && context.is_main()) {
      std::printf("step %lld loss %a norm %a\n", static_cast<long long>(metrics->step),
                  metrics->loss, metrics->grad_norm);
    }
  }
  if (!folder.empty()) trainer.save();
}

int main(int argc, char** argv) {
  return ts::run([&] {
    train(argc > 1 ? argv[1] : "FULL_SHARD", argc > 2 ? argv[2] : "",
          argc > 3 ? std::stoll(argv[3]) : 20);
  });
}
