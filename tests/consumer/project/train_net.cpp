// A user's own module, trained under FULL_SHARD on any number of ranks. Exits with 0 only if the
// loss fell on every rank and the folder of the checkpoint was written.
#include <tessera/tessera.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/tensor.h"  // the consumer's own

namespace ts = tessera;

namespace {

constexpr std::int64_t features = 784;
constexpr std::int64_t classes = 10;
constexpr std::int64_t batch_size = 16;
constexpr std::int64_t samples = 2048;
constexpr consumer::Tensor own{.tension = 0.2};

struct Net : ts::nn::Module {
  Net() {
    fc1 = register_module("fc1", ts::nn::Linear(features, 512));
    fc2 = register_module("fc2", ts::nn::Linear(512, classes));
  }
  ts::Tensor forward(const ts::Tensor& x) { return fc2(ts::relu(fc1(x))); }
  ts::nn::Linear fc1, fc2;
};

// Simple digits: class c lights every tenth feature from c on, with a little seeded noise.
ts::data::TensorLoader make_loader() {
  std::vector<float> x(samples * features);
  std::vector<std::int32_t> y(samples);
  std::uint32_t noise = 2463534242U;
  for (std::int64_t i = 0; i < samples; ++i) {
    y[i] = static_cast<std::int32_t>(i * 7 % classes);
    for (std::int64_t j = 0; j < features; ++j) {
      noise = noise * 1664525U + 1013904223U;
      const float light = j % classes == y[i] ? 1.0F : 0.0F;
      x[i * features + j] = light + static_cast<float>(noise >> 24) / 1024.0F;
    }
  }
  return {{ts::Tensor::from(x, {samples, features}), ts::Tensor::from(y, {samples})},
          {.batch_size = batch_size, .shuffle = true}};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "out";
  if (folder == "--version") {
    std::puts(ts::version());
    return 0;
  }
  const ts::data::TensorLoader loader = make_loader();

  ts::Context context = ts::init();
  Net net;
  auto model = ts::fully_shard(net, context,
                               {.strategy = ts::Strategy::full_shard, .param_dtype = ts::bfloat16});
  ts::optim::AdamW optimizer(model.parameters(), {.lr = 3e-4});
  std::vector<double> losses;
  for (auto [x, y] : context.prepare(loader)) {
    ts::Tensor loss = ts::cross_entropy(net.forward(x), y);
    loss.backward();
    model.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.item());
  }
  ts::save(context, folder, model, optimizer);

  std::printf("rank %d of %d: %zu steps, loss %.3f to %.3f\n", context.rank(), context.world_size(),
              losses.size(), losses.front(), losses.back());
  const bool all_samples_seen =
      losses.size() * batch_size * context.world_size() == static_cast<std::size_t>(samples);
  return all_samples_seen && losses.back() < own.tension * losses.front() ? 0 : 1;
}
