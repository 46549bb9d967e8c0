// A layer with a buffer, the running mean of its inputs: trained, saved, and loaded by other ranks.
//   tessera launch --nproc-per-node 2 -- build/examples/buffers out
#include <tessera/tessera.h>

#include <cstdio>
#include <string>
#include <vector>

namespace ts = tessera;

struct CentreImpl : ts::nn::Module {  // subtracts a running mean of its inputs
  explicit CentreImpl(std::int64_t width) {
    register_buffer("running_mean", ts::nn::make_buffer({width}, ts::nn::constant(0)));
  }
  ts::Tensor forward(const ts::Tensor& x) {
    if (is_training()) {
      const ts::Tensor now = ts::mean(x.detach(), 0);
      set_buffer("running_mean", buffer("running_mean") * 0.9 + now * 0.1);
    }
    return x - buffer("running_mean").clone();
  }
};
TESSERA_MODULE(Centre);

struct Net : ts::nn::Module {
  Net()
      : layers(register_module("layers", ts::nn::Sequential(
                                             ts::nn::Linear(8, 16), Centre(16),
                                             [](const ts::Tensor& x) { return ts::relu(x); },
                                             ts::nn::Linear(16, 1)))) {}
  ts::Tensor forward(const ts::Tensor& x) const { return layers(x); }
  ts::nn::Sequential layers;
};

// Rows of eight numbers, another set on each rank, and the sums of their squares.
ts::Tensor rows(int rank) {
  std::vector<float> numbers(32 * 8);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<float>((i * 29 + static_cast<std::size_t>(rank) * 7) % 17) / 17;
  return ts::Tensor::from(numbers, {32, 8});
}

std::vector<double> train(const ts::Context& context, const std::string& folder) {
  ts::manual_seed(1);
  Net net;
  auto model = ts::fully_shard(net, context);
  ts::optim::AdamW optimizer(model.parameters(), {.lr = 0.01});
  const ts::Tensor x = rows(context.rank());
  const ts::Tensor wanted = ts::sum(ts::square(x), 1, true);
  for (int step = 0; step < 30; ++step) {
    const ts::Tensor loss = ts::mse_loss(net.forward(x), wanted);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    if (context.is_main() && step % 10 == 0) std::printf("loss %.4f\n", loss.item());
  }
  ts::save(context, folder, model, optimizer);
  return net.named_buffers()[0].tensor.to_vector();
}

int compare(const std::string& folder) {
  const ts::Context context = ts::init();
  const std::vector<double> trained = train(context, folder);
  ts::manual_seed(2);
  Net net;
  auto model = ts::fully_shard(net, context);
  (void)ts::load(context, folder + "/step-30", model);
  net.eval();  // forwards no longer change the mean
  (void)net.forward(rows(0));
  const std::vector<double> loaded = net.named_buffers()[0].tensor.to_vector();
  // Each rank's mean was that of its own rows; a checkpoint has rank 0's.
  const bool as_expected = (loaded == trained) == context.is_main();
  if (context.is_main()) std::printf("%s has %.4f\n", "layers.1.running_mean", loaded[0]);
  return as_expected ? 0 : 1;
}

int main(int argc, char** argv) {
  return ts::run([&] { return compare(argc > 1 ? argv[1] : "out"); });
}
