// A run of your own module and data in one object: it steps, saves, and resumes on any number of
// ranks.
//   tessera launch --nproc-per-node 2 -- build/examples/trainer out/bands 60
//   tessera launch --nproc-per-node 4 -- build/examples/trainer out/bands 120   # from step 60 on
#include <tessera/tessera.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace ts = tessera;

struct Net : ts::nn::Module {
  Net() {
    fc1 = register_module("fc1", ts::nn::Linear(64, 128));
    drop = register_module("drop", ts::nn::Dropout(0.1));
    fc2 = register_module("fc2", ts::nn::Linear(128, 8));
  }
  ts::Tensor forward(const ts::Tensor& x) const { return fc2(drop(ts::relu(fc1(x)))); }
  ts::nn::Linear fc1, fc2;
  ts::nn::Dropout drop;
};

// Class c is a bright band in the picture.
ts::data::TensorDataset bright_bands(std::int64_t samples) {
  std::vector<float> pictures(static_cast<std::size_t>(samples) * 64, 0.0f);
  std::vector<std::int32_t> classes(static_cast<std::size_t>(samples));
  for (std::size_t i = 0; i < classes.size(); ++i) {
    classes[i] = static_cast<std::int32_t>(i % 8);
    for (std::size_t j = 0; j < 8; ++j) pictures[i * 64 + (i % 8) * 8 + j] = 1.0f;
  }
  return {ts::Tensor::from(pictures, {samples, 64}), ts::Tensor::from(classes, {samples})};
}

void show(const ts::RunEvents& events) {
  for (const ts::RunEvent& event : events) {
    if (const auto* resumed = std::get_if<ts::events::Resumed>(&event))
      std::printf("resumed from %s\n", resumed->folder.c_str());
    if (const auto* saved = std::get_if<ts::events::Saved>(&event))
      std::printf("saved %s\n", saved->folder.c_str());
    if (const auto* warning = std::get_if<ts::events::Warning>(&event))
      std::printf("warning: %s\n", warning->text.c_str());
  }
}

void train(const std::string& folder, std::int64_t steps) {
  const ts::Context context = ts::init();
  ts::manual_seed(7);
  Net net;
  const auto loss = [&net](const ts::Tensor& x, const ts::Tensor& y) {
    return ts::cross_entropy(net.forward(x), y);
  };
  ts::Trainer trainer(ts::tasks::make_tensor_task(net, bright_bands(1000), loss), context,
                      {.steps = steps,
                       .batch_size = 64 / context.world_size(),
                       .sharding = {.param_dtype = ts::bfloat16},
                       .optimizer = ts::optim::AdamWOptions{.lr = 3e-3},
                       .checkpoint = {.dir = folder, .every = 20, .save = {.keep = 2}}});
  ts::RunEvents events = trainer.resume();  // from the newest step in the folder, if there is one
  if (context.is_main()) show(events);
  trainer.prepare_folder();
  while (trainer.position().steps < steps) {
    const auto metrics = trainer.step();
    if (!metrics) break;  // a signal to stop, if options.signals reports them
    if (context.is_main()) {
      std::printf("step %lld loss %.4f\n", static_cast<long long>(metrics->step),
                  static_cast<double>(metrics->loss));
    }
    if (metrics->step % 20 != 0 && metrics->step != steps) continue;
    events = trainer.save();
    if (context.is_main()) show(events);
  }
}

int main(int argc, char** argv) {
  return ts::run([&] {
    if (argc != 3) throw std::invalid_argument("usage: trainer FOLDER STEPS");
    train(argv[1], std::stoll(argv[2]));
  });
}
