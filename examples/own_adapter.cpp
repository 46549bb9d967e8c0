// Trains adapters for a module of your own: the module is trained on one task, saved and frozen;
// adapters on its linear layers are trained on another task and saved as a PEFT folder.
//   tessera launch --nproc-per-node 2 -- build/examples/own_adapter
#include <tessera/tessera.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace ts = tessera;

struct Net : ts::nn::Module {
  Net() {
    up = register_module("up", ts::nn::Linear(8, 64));
    down = register_module("down", ts::nn::Linear(64, 1));
  }
  ts::Tensor forward(const ts::Tensor& x) const { return down(ts::gelu(up(x))); }
  ts::nn::Linear up, down;
};

constexpr std::int64_t batch_size = 32;

// Points of a batch, the same on any number of ranks, and a sine of their sum, shifted by `phase`.
struct Points {
  ts::Tensor inputs, targets;
};
Points points(const ts::Context& context, int step, double phase) {
  std::vector<float> inputs;
  std::vector<float> targets;
  for (std::int64_t i = 0; i < batch_size; ++i) {
    const std::int64_t number = (step * context.world_size() + context.rank()) * batch_size + i;
    double sum = 0;
    for (std::int64_t j = 0; j < 8; ++j) {
      inputs.push_back(static_cast<float>(std::sin(static_cast<double>(37 * number + 11 * j))));
      sum += inputs.back();
    }
    targets.push_back(static_cast<float>(std::sin(sum + phase)));
  }
  const ts::Device device = context.device();
  return {ts::Tensor::from(inputs, {batch_size, 8}).to(device),
          ts::Tensor::from(targets, {batch_size, 1}).to(device)};
}

double train(const ts::Context& context, Net& net, ts::ShardedModel& model,
             ts::optim::Optimizer& optimizer, double phase, int steps) {
  double last = 0;
  for (int step = 0; step < steps; ++step) {
    const Points batch = points(context, step, phase);
    const ts::Tensor loss = ts::mean(ts::square(net.forward(batch.inputs) + batch.targets * -1.0));
    loss.backward();
    model.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    last = context.mean(loss.item());
  }
  return last;
}

// The options for saving and loading only the adapters.
ts::SaveOptions adapters_alone(const ts::LoraOptions& lora, const std::string& base) {
  const ts::checkpoint::PeftConfig config{
      .rank = lora.rank, .alpha = lora.alpha, .target_modules = lora.target_modules, .base = base};
  ts::SaveOptions options;
  options.names = ts::checkpoint::peft_names(lora.modules_to_save);
  options.model_file = "adapter_model";
  options.files["adapter_config.json"] = ts::checkpoint::to_text(config);
  return options;
}

int adapt(int argc, char** argv) {
  const ts::Context context = ts::init();
  const std::string out = argc > 1 ? argv[1] : "out/own_adapter";
  if (context.is_main()) std::filesystem::remove_all(out);
  context.barrier();
  ts::manual_seed(7);
  {
    Net net;
    ts::ShardedModel model = ts::fully_shard(net, context);
    ts::optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    const double loss = train(context, net, model, optimizer, 0.0, 300);
    ts::save(context, out + "/base", model, optimizer, {.step = 0});
    if (context.is_main()) std::printf("the base: loss %.1e\n", loss);
  }
  Net net;
  const ts::LoraOptions lora{.rank = 4, .alpha = 8, .target_modules = {"up", "down"}};
  ts::freeze(net);
  ts::add_lora(net, lora);
  ts::ShardedModel model = ts::fully_shard(net, context);
  ts::load(context, out + "/base/step-0", model, [](const std::string& name, bool /*trained*/) {
    return ts::is_lora_parameter(name) ? std::string() : name;
  });
  ts::optim::AdamW optimizer(model.parameters(),
                             {.lr = 1e-2, .groups = {{".*lora_B.weight", 4.0}}});
  const double before = train(context, net, model, optimizer, 0.5, 1);
  const double after = train(context, net, model, optimizer, 0.5, 300);
  ts::save(context, out + "/adapter", model, optimizer, adapters_alone(lora, out + "/base/step-0"));
  if (context.is_main()) std::printf("the other task: loss %.1e, adapted %.1e\n", before, after);
  return after < before / 2 ? 0 : 1;
}

int main(int argc, char** argv) {
  return ts::run([&] { return adapt(argc, argv); });
}
