// A module of your own, sharded: the README's example, with generated data.
//   tessera launch --nproc-per-node 2 -- build/examples/own_module out
#include <tessera/tessera.h>

#include <cstdio>

namespace ts = tessera;

struct Net : ts::nn::Module {
  Net() {
    fc1 = register_module("fc1", ts::nn::Linear(784, 512));
    fc2 = register_module("fc2", ts::nn::Linear(512, 10));
  }
  ts::Tensor forward(const ts::Tensor& x) { return fc2(ts::relu(fc1(x))); }
  ts::nn::Linear fc1, fc2;
};

// Class c is a bright band in the image.
ts::data::TensorLoader bright_bands(std::int64_t samples) {
  std::vector<float> pictures(static_cast<std::size_t>(samples) * 784, 0.0f);
  std::vector<std::int32_t> classes(static_cast<std::size_t>(samples));
  for (std::size_t i = 0; i < classes.size(); ++i) {
    classes[i] = static_cast<std::int32_t>(i % 10);
    for (std::size_t j = 0; j < 78; ++j) pictures[i * 784 + (i % 10) * 78 + j] = 1.0f;
  }
  return {{ts::Tensor::from(pictures, {samples, 784}), ts::Tensor::from(classes, {samples})},
          {.batch_size = 32, .shuffle = true}};
}

void train(int argc, char** argv) {
  auto loader = bright_bands(4096);
  ts::Context context = ts::init();  // torchrun's variables, or one rank
  Net net;
  auto model = ts::fully_shard(net, context,
                               {.strategy = ts::Strategy::full_shard, .param_dtype = ts::bfloat16});
  ts::optim::AdamW optimizer(model.parameters(), {.lr = 3e-4});
  for (auto [x, y] : context.prepare(loader)) {
    ts::Tensor loss = ts::cross_entropy(net.forward(x), y);
    loss.backward();
    model.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (context.is_main()) std::printf("loss %.4f\n", loss.item());
  }
  ts::save(context, argc > 1 ? argv[1] : "out", model, optimizer);
}

int main(int argc, char** argv) {
  return ts::run([&] { train(argc, argv); });  // errors: one line, an exit code
}
