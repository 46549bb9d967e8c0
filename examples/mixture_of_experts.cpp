// A mixture of experts in a network of your own: the same bits under every strategy, saved, and
// resumed on another number of ranks.
//   tessera launch --nproc-per-node 2 -- build/examples/mixture_of_experts FULL_SHARD out/mixture
//   10 tessera launch --nproc-per-node 3 -- build/examples/mixture_of_experts FULL_SHARD
//   out/mixture 20
#include <tessera/models/mixture_of_experts.h>
#include <tessera/tessera.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ts = tessera;

constexpr std::int64_t width = 32, experts = 6, kinds = 4, batch = 48;

// Adds the outputs of two of six experts to each token.
struct SparseBlockImpl : ts::nn::Module {
  SparseBlockImpl() {
    norm = register_module("norm", ts::nn::RmsNorm(width));
    mixture = register_module(
        "mixture",
        ts::models::MixtureOfExperts(ts::models::MixtureOfExpertsOptions{
            .width = width, .inner = 48, .experts = experts, .per_token = 2, .deviation = 0.2}));
  }
  // Blocks pass on how the tokens were spread, for the load-balancing loss.
  std::pair<ts::Tensor, ts::Tensor> forward(const ts::Tensor& x, const ts::Tensor& routing) const {
    const auto [mixed, added] = mixture(norm(x), routing);
    return {x + mixed, added};
  }
  ts::nn::RmsNorm norm;
  ts::models::MixtureOfExperts mixture;
};
TESSERA_MODULE(SparseBlock);

struct Net : ts::nn::Module {
  Net() {
    first = register_module("first", SparseBlock(std::make_shared<SparseBlockImpl>()));
    second = register_module("second", SparseBlock(std::make_shared<SparseBlockImpl>()));
    head = register_module("head", ts::nn::Linear(width, kinds));
  }
  ts::Tensor loss(const ts::Tensor& x, const ts::Tensor& classes) const {
    const auto [h, once] = first(x, ts::models::no_routing(experts, x.device()));
    const auto [y, routing] = second(h, once);
    const ts::Tensor balance = ts::models::load_balance_loss(routing, 2 * x.size(0));
    return ts::cross_entropy(head(y), classes) + ts::cast(balance * 0.01, ts::float32);
  }
  SparseBlock first, second;
  ts::nn::Linear head;
};

// Four kinds of signals, each a wave of its own length.
ts::data::TensorDataset waves(std::size_t samples) {
  std::vector<float> signals;
  std::vector<std::int32_t> classes;
  for (std::size_t i = 0; i < samples; ++i) {
    const std::size_t kind = i % kinds, length = 3 + 2 * kind;
    for (std::size_t t = 0; t < width; ++t) {
      signals.push_back(static_cast<float>((t + i * 7) % length) / static_cast<float>(length));
    }
    classes.push_back(static_cast<std::int32_t>(kind));
  }
  const auto rows = static_cast<std::int64_t>(samples);
  return {ts::Tensor::from(signals, {rows, width}), ts::Tensor::from(classes, {rows})};
}

// `strategy` is a name of ts::strategy_table. Without a folder nothing is saved.
void train(const std::string& strategy, const std::string& folder, std::int64_t steps) {
  const ts::Context context = ts::init();
  ts::manual_seed(7);
  Net net;
  ts::ShardingOptions sharding{.wrap = ts::WrapPolicy::list({"first", "second"})};
  sharding.group_size = context.world_size();
  bool known = false;
  for (const ts::StrategyRow& row : ts::strategy_table) {
    if (row.name != strategy) continue;
    sharding.strategy = row.strategy;
    known = true;
  }
  if (!known) throw std::invalid_argument(strategy + ": there is no such strategy");
  const auto loss = [&net](const ts::Tensor& x, const ts::Tensor& y) { return net.loss(x, y); };
  ts::TrainerOptions options;
  options.steps = steps;
  options.batch_size = batch / context.world_size();
  options.sharding = sharding;
  options.optimizer = ts::optim::AdamWOptions{.lr = 3e-3};
  options.checkpoint.dir = folder;
  options.checkpoint.every = folder.empty() ? 0 : steps;
  ts::Trainer trainer(ts::tasks::make_tensor_task(net, waves(480), loss), context, options);
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
