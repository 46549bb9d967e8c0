// Two sharded models that train against each other, with all that a program may do to parameters
// between steps: the critic is frozen while the generator trains, its weights are clamped, and in
// the end the generator is a module as any other. With a folder as argument the program saves both
// models there, before the first step and after the last.
//   tessera launch --nproc-per-node 2 -- build/examples/adversarial [FOLDER]
#include <tessera/tessera.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace ts = tessera;

struct LayersImpl : ts::nn::Module {
  LayersImpl(std::int64_t in, std::int64_t out) {
    first = register_module("first", ts::nn::Linear(in, 32));
    second = register_module("second", ts::nn::Linear(32, 32));
    third = register_module("third", ts::nn::Linear(32, out));
  }
  ts::Tensor forward(const ts::Tensor& x) const {
    return third(ts::relu(second(ts::relu(first(x)))));
  }
  ts::nn::Linear first, second, third;
};
TESSERA_MODULE(Layers);

constexpr std::int64_t batch_size = 64;

// Rows [first, first + batch_size) of an endless table. They depend only on their number, so they
// are the same on any number of ranks: points on a circle of radius 2, or noise of `width` numbers.
ts::Tensor circle(std::int64_t first) {
  std::vector<float> values;
  for (std::int64_t i = first; i < first + batch_size; ++i) {
    const double angle = 2.399963 * static_cast<double>(i);
    values.push_back(static_cast<float>(2 * std::cos(angle)));
    values.push_back(static_cast<float>(2 * std::sin(angle)));
  }
  return ts::Tensor::from(values, {batch_size, 2});
}
ts::Tensor noise(std::int64_t first, std::int64_t width) {
  std::vector<float> values;
  for (std::int64_t i = first * width; i < (first + batch_size) * width; ++i) {
    const double wave = std::sin(12.9898 * static_cast<double>(i)) * 43758.5453;
    values.push_back(static_cast<float>(2 * (wave - std::floor(wave)) - 1));
  }
  return ts::Tensor::from(values, {batch_size, width});
}

void set_trained(Layers& net, bool trained) {
  for (auto& parameter : net->named_parameters()) parameter.tensor.set_requires_grad(trained);
}

void clamp_weights(Layers& net, ts::ShardedModel& model, float bound) {
  model.write_unsharded([&] {
    for (auto& parameter : net->named_parameters()) {
      auto* const values = parameter.tensor.data_as<float>();
      for (std::int64_t i = 0; i < parameter.tensor.elements(); ++i)
        values[i] = std::clamp(values[i], -bound, bound);
    }
  });
}

// Prints the mean distance of generated points from the centre, and their distance from the circle.
void report(const ts::Context& context, const Layers& generator, const char* when) {
  const ts::NoGradGuard no_grad;
  const std::vector<double> points = generator(noise(1'000'000, 4)).to_vector();
  double radius = 0, error = 0;
  for (std::size_t i = 0; i < points.size(); i += 2) {
    const double r = std::hypot(points[i], points[i + 1]);
    radius += r * 2 / static_cast<double>(points.size());
    error += std::abs(r - 2) * 2 / static_cast<double>(points.size());
  }
  if (context.is_main())
    std::printf("%s: points at a radius of %.3f, off the circle by %.3f\n", when, radius, error);
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "";
  const ts::Context context = ts::init();
  ts::manual_seed(5);
  Layers generator(4, 2), critic(2, 1);
  ts::ShardedModel sharded_generator = ts::fully_shard(generator, context);
  ts::ShardedModel sharded_critic = ts::fully_shard(critic, context);
  ts::optim::AdamW generator_steps(sharded_generator.parameters(),
                                   {.lr = 2e-3, .beta1 = 0.5, .weight_decay = 0});
  ts::optim::AdamW critic_steps(sharded_critic.parameters(),
                                {.lr = 2e-3, .beta1 = 0.5, .weight_decay = 0});
  const auto save = [&](std::int64_t step) {
    if (folder.empty()) return;
    ts::save(context, folder + "/generator", sharded_generator, generator_steps, {.step = step});
    ts::save(context, folder + "/critic", sharded_critic, critic_steps, {.step = step});
  };
  save(0);
  report(context, generator, "before");
  std::int64_t row = context.rank() * batch_size;
  for (int step = 0; step < 600; ++step) {
    // The critic separates points of the circle from the generator's points. It needs no gradient
    // of the generator.
    const ts::Tensor fake = generator(noise(row, 4)).detach();
    const ts::Tensor apart = ts::mean(critic(fake)) - ts::mean(critic(circle(row)));
    apart.backward();
    critic_steps.step();
    critic_steps.zero_grad();
    clamp_weights(critic, sharded_critic, 0.2F);
    row += batch_size * context.world_size();
    if (step % 3 != 2) continue;

    set_trained(critic, false);  // its gradients are neither computed nor reduced
    const ts::Tensor mistaken = ts::mean(critic(generator(noise(row, 4)))) * -1.0;
    mistaken.backward();
    const double weights = sharded_generator.grad_norm(
        [](const ts::nn::NamedParameter& parameter) { return parameter.shape.dimensions() == 2; });
    const double all = sharded_generator.clip_grad_norm(1.0);
    generator_steps.step();
    generator_steps.zero_grad();
    set_trained(critic, true);
    if (step % 30 != 29) continue;
    const double distance = context.mean(apart.detach()).item();
    const double loss = context.mean(mistaken.detach()).item();
    if (context.is_main()) {
      std::printf("step %d: critic %.6f, generator %.6f, gradient norm %.6f, of weights %.6f\n",
                  step + 1, distance, loss, all, weights);
    }
  }
  save(600);
  report(context, generator, "after");
  sharded_generator.unwrap();  // whole on every rank
  report(context, generator, "unwrapped");
}
