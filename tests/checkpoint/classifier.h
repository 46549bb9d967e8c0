// A small classifier, a step with it, and the whole values of a model and its optimizer: for the
// tests of partial loads.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/sharded_state.h"
#include "checkpoint/support.h"
#include "sharding/sharding_testing.h"

namespace tessera::checkpoint::testing {

class TrunkImpl : public nn::Module {
 public:
  TrunkImpl() {
    in = register_module("in", nn::Linear(6, 7));
    norm = register_module("norm", nn::LayerNorm(7));
  }
  Tensor forward(const Tensor& x) const { return gelu(norm(in(x))); }
  nn::Linear in;
  nn::LayerNorm norm;
};
TESSERA_MODULE(Trunk);

class Classifier : public nn::Module {
 public:
  explicit Classifier(std::int64_t classes = 3, const std::string& trunk_name = "trunk") {
    trunk = register_module(trunk_name, Trunk(std::make_shared<TrunkImpl>()));
    head = register_module("head", nn::Linear(7, classes));
  }
  [[nodiscard]] Tensor loss(const Tensor& x) const { return mean(square(head(trunk(x)))); }
  Trunk trunk;
  nn::Linear head;
};

// Whole tensors of a model and its optimizer, by name, from the ranks' parts.
class Whole {
 public:
  void add(const ShardedModel& model, optim::Optimizer* optimizer) {
    const std::lock_guard lock(mutex_);
    for (const ShardedParameter& part : model.sharded_parameters()) {
      put(part.name, part, part.local);
      if (optimizer == nullptr) continue;
      for (std::size_t i = 0; i < optimizer->parameters().size(); ++i) {
        if (optimizer->parameters()[i].name != part.name) continue;
        counts[part.name] = optimizer->step_counts()[i];
        const std::vector<std::string> names = optimizer->state_names_of(i);
        for (std::size_t which = 0; which < names.size(); ++which) {
          const optim::StateFormat format = optimizer->state_format(i, which);
          ShardedParameter of_state = part;
          of_state.shape = Shape{format.elements_for(part.shape.elements())};
          of_state.first = format.whole ? 0 : format.elements_for(part.first);
          put(part.name + "." + names[which], of_state, optimizer->state(i, names[which]));
        }
      }
    }
  }
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, std::int64_t> counts;

 private:
  void put(const std::string& name, const ShardedParameter& part, const Tensor& local) {
    auto& whole = values[name];
    whole.resize(static_cast<std::size_t>(part.shape.elements()));
    const std::vector<double> mine = local.to_vector();
    std::copy(mine.begin(), mine.end(), whole.begin() + part.first);
  }
  std::mutex mutex_;
};

inline void train(const Classifier& net, optim::Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    std::vector<float> x;
    for (int i = 0; i < 24; ++i) x.push_back(0.1f * static_cast<float>((i * 7 + step) % 11 - 5));
    net.loss(Tensor::from(x, {4, 6})).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

// The contents of the step that pretrained() saves.
struct Pretrained {
  TemporaryFolder folder;
  Whole whole;
  [[nodiscard]] std::string dir() const { return folder.path().string(); }
  [[nodiscard]] std::string step() const { return dir() + "/step-5"; }
};

inline std::unique_ptr<Pretrained> pretrained(SaveOptions options = {}) {
  auto made = std::make_unique<Pretrained>();
  options.step = 5;
  launch(2, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    manual_seed(3);
    Classifier net;
    ShardedModel model = fully_shard(net, context, {.wrap = WrapPolicy::list({"trunk"})});
    optim::AdamW optimizer(model.parameters(), {.lr = 0.05});
    train(net, optimizer, 2);
    save(context, made->dir(), model, optimizer, options);
    made->whole.add(model, &optimizer);
  });
  return made;
}

using PartialBody = std::function<void(Context&, Classifier&, ShardedModel&, optim::Optimizer&)>;

// Calls `body` with a new model on `world` ranks and returns the values after it.
inline void with_new(int world, std::int64_t classes, const PartialBody& body,
                     Whole* after = nullptr) {
  launch(world, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    manual_seed(99);
    Classifier net(classes);
    ShardedModel model = fully_shard(net, context, {.wrap = WrapPolicy::list({"trunk"})});
    optim::AdamW optimizer(model.parameters(), {.lr = 0.05});
    body(context, net, model, optimizer);
    if (after != nullptr) after->add(model, &optimizer);
  });
}

inline bool is_trunk(const std::string& name) {
  return name.starts_with("trunk.");
}

inline void expect_equal_where(const Whole& one, const Whole& other, const NameFilter& where) {
  std::size_t compared = 0;
  for (const auto& [name, values] : one.values) {
    if (!where(name)) continue;
    EXPECT_EQ(values, other.values.at(name)) << name;
    ++compared;
  }
  EXPECT_GT(compared, 0u);
}

}  // namespace tessera::checkpoint::testing
