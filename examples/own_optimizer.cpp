// An optimizer of your own, RMSprop, which has the same bits under every strategy.
//   tessera launch --nproc-per-node 2 -- build/examples/own_optimizer FULL_SHARD
//   tessera launch --nproc-per-node 2 -- build/examples/own_optimizer FULL_SHARD out/rms 10   #
//   saves and resumes
#include <tessera/tessera.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ts = tessera;

struct RmsPropOptions {
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0;
};

// As torch.optim.RMSprop computes it: g += weight_decay*p; v = alpha*v + (1-alpha)*g*g;
// p -= lr * g / (sqrt(v) + eps).
class RmsProp : public ts::optim::Optimizer {
 public:
  RmsProp(std::vector<ts::nn::NamedParameter> parameters, const RmsPropOptions& options)
      : Optimizer(std::move(parameters), ts::optim::decay_matrices), options_(options) {
    set_learning_rate(options.lr);
    make_state_files(RmsProp::state_names());
  }
  std::vector<std::string> state_names() const override { return {"square_avg"}; }

 protected:
  void update(const ts::optim::Update& u) override {
    const double lr = learning_rate() * u.lr_scale;
    const double alpha = options_.alpha, eps = options_.eps;
    ts::optim::update_elements<1>(u, options_.weight_decay,
                                  [=](auto& p, auto g, auto decay, auto& v) {
                                    g += decay * p;
                                    v = alpha * v + (1 - alpha) * g * g;
                                    p -= lr * g / (std::sqrt(v) + eps);
                                  });
  }

 private:
  RmsPropOptions options_;
};

struct Net : ts::nn::Module {
  Net() {
    fc1 = register_module("fc1", ts::nn::Linear(64, 128));
    fc2 = register_module("fc2", ts::nn::Linear(128, 8));
  }
  ts::Tensor forward(const ts::Tensor& x) const { return fc2(ts::relu(fc1(x))); }
  ts::nn::Linear fc1, fc2;
};

// Class c is a bright band in the picture.
ts::data::TensorDataset bright_bands(std::size_t samples) {
  std::vector<float> pictures(samples * 64, 0.0f);
  std::vector<std::int32_t> classes(samples);
  for (std::size_t i = 0; i < samples; ++i) {
    classes[i] = static_cast<std::int32_t>(i % 8);
    for (std::size_t j = 0; j < 8; ++j) pictures[i * 64 + (i % 8) * 8 + j] = 1.0f;
  }
  const auto rows = static_cast<std::int64_t>(samples);
  return {ts::Tensor::from(pictures, {rows, 64}), ts::Tensor::from(classes, {rows})};
}

// `strategy` is a name of ts::strategy_table. Without a folder nothing is saved.
void train(const std::string& strategy, const std::string& folder, std::int64_t steps) {
  const ts::Context context = ts::init();
  ts::manual_seed(7);
  Net net;
  ts::ShardingOptions sharding{.wrap = ts::WrapPolicy::list({"fc1"}), .param_dtype = ts::bfloat16};
  sharding.group_size = context.world_size();
  for (const ts::StrategyRow& row : ts::strategy_table) {
    if (row.name == strategy) sharding.strategy = row.strategy;
  }
  const auto loss = [&net](const ts::Tensor& x, const ts::Tensor& y) {
    return ts::cross_entropy(net.forward(x), y);
  };
  const auto make = [](std::vector<ts::nn::NamedParameter> parameters) {
    return std::make_unique<RmsProp>(std::move(parameters), RmsPropOptions{.weight_decay = 0.01});
  };
  ts::TrainerOptions options;
  options.steps = steps;
  options.batch_size = 32 / context.world_size();
  options.sharding = sharding;
  options.optimizer = make;
  options.checkpoint.dir = folder;
  options.checkpoint.every = folder.empty() ? 0 : steps;
  ts::Trainer trainer(ts::tasks::make_tensor_task(net, bright_bands(512), loss), context, options);
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
