// Loads of a part: a new head, an encoder out of a whole model, moments through a freeze, steps
// with tensors besides, optimizers of a part of the model, and weights from Hugging Face folders.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/sharded_state.h"
#include "checkpoint/support.h"
#include "sharding/sharding_testing.h"

namespace tessera::checkpoint {
namespace {

using tessera::testing::OneThread;
using testing::error_of;
using testing::has;
using testing::TemporaryFolder;

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
        for (const std::string& name : optimizer->state_names()) {
          put(part.name + "." + name, part, optimizer->state(i, name));
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

void train(const Classifier& net, optim::Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    std::vector<float> x;
    for (int i = 0; i < 24; ++i) x.push_back(0.1f * static_cast<float>((i * 7 + step) % 11 - 5));
    net.loss(Tensor::from(x, {4, 6})).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

// What is in the step that pretrained() saves.
struct Pretrained {
  TemporaryFolder folder;
  Whole whole;
  [[nodiscard]] std::string dir() const { return folder.path().string(); }
  [[nodiscard]] std::string step() const { return dir() + "/step-5"; }
};

std::unique_ptr<Pretrained> pretrained(SaveOptions options = {}) {
  auto made = std::make_unique<Pretrained>();
  options.step = 5;
  launch(2, [&](Context& context) {
    const OneThread one_thread;
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

// A new model on `world` ranks, and what it holds after `body`.
void with_new(int world, std::int64_t classes, const PartialBody& body, Whole* after = nullptr) {
  launch(world, [&](Context& context) {
    const OneThread one_thread;
    manual_seed(99);
    Classifier net(classes);
    ShardedModel model = fully_shard(net, context, {.wrap = WrapPolicy::list({"trunk"})});
    optim::AdamW optimizer(model.parameters(), {.lr = 0.05});
    body(context, net, model, optimizer);
    if (after != nullptr) after->add(model, &optimizer);
  });
}

bool is_trunk(const std::string& name) {
  return name.starts_with("trunk.");
}

void expect_equal_where(const Whole& one, const Whole& other, const NameFilter& where) {
  std::size_t compared = 0;
  for (const auto& [name, values] : one.values) {
    if (!where(name)) continue;
    EXPECT_EQ(values, other.values.at(name)) << name;
    ++compared;
  }
  EXPECT_GT(compared, 0u);
}

TEST(PartialLoad, ANewHeadOnAPretrainedTrunk) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    const auto from = pretrained({.type = type});
    for (const int world : {1, 3}) {
      Whole fresh, loaded;
      with_new(
          world, 5, [](auto&&...) {}, &fresh);
      with_new(
          world, 5,
          [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer& optimizer) {
            const std::string text =
                error_of([&] { (void)load(context, from->step(), model, optimizer); });
            EXPECT_TRUE(has(text, "model tensor 'head.weight' has shape [3, 7], wanted [5, 7]"));
            EXPECT_TRUE(has(text, "optimizer tensor 'head.bias.exp_avg' has shape [3]"));
            EXPECT_TRUE(has(text, "LoadOptions"));
            const LoadResult result = load(context, from->step(), model, optimizer,
                                           LoadOptions{.model = is_trunk, .optimizer = is_trunk});
            EXPECT_TRUE(result.model.missing.empty() && result.model.unexpected.empty());
          },
          &loaded);
      expect_equal_where(loaded, from->whole, is_trunk);
      expect_equal_where(loaded, fresh,
                         [](const std::string& name) { return name.starts_with("head."); });
      EXPECT_EQ(loaded.counts.at("trunk.in.weight"), 2);
      EXPECT_EQ(loaded.counts.at("head.weight"), 0);
    }
  }
}

TEST(PartialLoad, ShapesAreCheckedWithoutStrict) {
  const auto from = pretrained();
  with_new(2, 5, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer&) {
    const std::string text =
        error_of([&] { (void)load(context, from->step(), model, LoadOptions{.strict = false}); });
    EXPECT_TRUE(has(text, "'head.weight' has shape [3, 7], wanted [5, 7]"));
  });
}

TEST(PartialLoad, AnEncoderOutOfAWholeModel) {
  const auto from = pretrained();
  Whole loaded;
  launch(3, [&](Context& context) {
    const OneThread one_thread;
    manual_seed(1);
    TrunkImpl net;
    ShardedModel model = fully_shard(net, context);
    optim::AdamW optimizer(model.parameters(), {});
    std::string prefix = "trunk.";
    const StateNames names = [prefix](const std::string& name, bool) { return prefix + name; };
    EXPECT_TRUE(has(error_of([&] { (void)load(context, from->step(), model, names); }),
                    "unexpected model tensor 'head.bias'"));
    const LoadResult result =
        load(context, from->step(), model, optimizer, LoadOptions{.strict = false, .names = names});
    const std::vector<std::string> head{"head.bias", "head.weight"};
    EXPECT_EQ(result.model.unexpected, head);
    EXPECT_EQ(result.model.missing, std::vector<std::string>());
    EXPECT_EQ(result.optimizer.unexpected.size(), 4u);
    EXPECT_EQ(optimizer.step_counts(), (std::vector<std::int64_t>(4, 2)));
    // The same without a word of what else is there.
    const LoadResult filtered =
        load(context, from->step(), model, LoadOptions{.names = names, .model = is_trunk});
    EXPECT_TRUE(filtered.model.unexpected.empty());
    loaded.add(model, &optimizer);
  });
  for (const auto& [name, values] : loaded.values) {
    EXPECT_EQ(values, from->whole.values.at("trunk." + name)) << name;
  }
}

TEST(PartialLoad, WhatIsMissingKeepsItsValueAndIsListed) {
  const auto from = pretrained();
  launch(2, [&](Context& context) {
    manual_seed(5);
    struct Larger : Classifier {
      Larger() { register_parameter("scale", nn::make_parameter({4}, nn::constant(7))); }
    } net;
    ShardedModel model = fully_shard(net, context);
    optim::AdamW optimizer(model.parameters(), {});
    EXPECT_TRUE(has(error_of([&] { (void)load(context, from->step(), model, optimizer); }),
                    "missing model tensor 'scale'; missing optimizer tensor 'scale.exp_avg'"));
    const LoadResult result =
        load(context, from->step(), model, optimizer, LoadOptions{.strict = false});
    EXPECT_EQ(result.model.missing, std::vector<std::string>{"scale"});
    EXPECT_EQ(result.optimizer.missing,
              (std::vector<std::string>{"scale.exp_avg", "scale.exp_avg_sq"}));
    for (const auto& part : model.sharded_parameters()) {
      if (part.name != "scale") continue;
      for (const double value : part.local.to_vector()) EXPECT_EQ(value, 7);
    }
    for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
      EXPECT_EQ(optimizer.step_counts()[i], optimizer.parameters()[i].name == "scale" ? 0 : 2);
    }
  });
}

// What would fill nothing is another model's, however few its tensors are.
TEST(PartialLoad, WhatHasNothingInCommonIsRefused) {
  const auto from = pretrained();
  launch(2, [&](Context& context) {
    nn::LinearImpl net(6, 7);
    ShardedModel model = fully_shard(net, context);
    EXPECT_TRUE(has(
        error_of([&] { (void)load(context, from->step(), model, LoadOptions{.strict = false}); }),
        "none of its 6 model tensors ('head.bias') is one of the 2 here"));
  });
}

TEST(PartialLoad, MomentsOfTheOthersThroughAFreeze) {
  const auto from = pretrained();
  Whole loaded;
  launch(2, [&](Context& context) {
    const OneThread one_thread;
    Classifier net;
    for (auto& parameter : net.trunk->named_parameters()) {
      parameter.tensor.set_requires_grad(false);
    }
    ShardedModel model = fully_shard(net, context);
    optim::AdamW optimizer(model.parameters(), {.lr = 0.05});
    EXPECT_TRUE(has(error_of([&] { (void)load(context, from->step(), model, optimizer); }),
                    "unexpected optimizer tensor 'trunk.in.bias.exp_avg'"));
    load(context, from->step(), model, optimizer,
         LoadOptions{.optimizer = [](const std::string& name) { return !is_trunk(name); }});
    loaded.add(model, &optimizer);
    EXPECT_EQ(loaded.counts.at("head.weight"), 2);
    train(net, optimizer, 1);
    EXPECT_EQ(optimizer.step_counts().back(), 3);
  });
  for (const char* name : {"trunk.in.weight", "head.weight", "head.weight.exp_avg",
                           "head.weight.exp_avg_sq", "head.bias.exp_avg"}) {
    EXPECT_EQ(loaded.values.at(name), from->whole.values.at(name)) << name;
  }
}

// Averages of the weights beside them, by pieces of the program's own.
TEST(PartialLoad, AStepWithTensorsBesides) {
  TemporaryFolder folder;
  Whole saved, loaded;
  const auto moved = [&](Context& context, bool saves, const PartialBody& body, Whole& after) {
    const OneThread one_thread;
    manual_seed(saves ? 3 : 99);
    Classifier net;
    ShardedModel model = fully_shard(net, context);
    optim::AdamW optimizer(model.parameters(), {.lr = 0.05});
    body(context, net, model, optimizer);
    after.add(model, &optimizer);
  };
  launch(2, [&](Context& context) {
    moved(
        context, true,
        [&](Context&, Classifier& net, ShardedModel& model, optim::Optimizer& optimizer) {
          train(net, optimizer, 1);
          State state = state_to_save(model, optimizer, {});
          const std::size_t own = state.model.size();
          for (std::size_t i = 0; i < own; ++i) {
            state.model.push_back(state.model[i]);
            state.model.back().name = "ema." + state.model[i].name;
          }
          checkpoint::save(context.communicator(), folder.path(), 1, state, {});
        },
        saved);
  });
  const std::string step = folder.path() / "step-1";
  launch(3, [&](Context& context) {
    moved(
        context, false,
        [&](Context&, Classifier&, ShardedModel& model, optim::Optimizer& optimizer) {
          EXPECT_TRUE(has(error_of([&] { (void)load(context, step, model, optimizer); }),
                          "unexpected model tensor 'ema.head.bias'"));
          load(context, step, model, optimizer, LoadOptions{.model = [](const std::string& name) {
                 return !name.starts_with("ema.");
               }});
          // The averages alone, as the weights.
          load(context, step, model,
               LoadOptions{
                   .names = [](const std::string& name, bool) { return "ema." + name; },
                   .model = [](const std::string& name) { return name.starts_with("ema."); }});
        },
        loaded);
  });
  EXPECT_EQ(loaded.values, saved.values);
  EXPECT_EQ(loaded.counts, saved.counts);
}

// Counts of steps go by the names in the checkpoint, whatever parameters are called on either side.
TEST(PartialLoad, StepsOfRenamedParametersComeBack) {
  const StateNames renamed = [](const std::string& name, bool) { return "module." + name; };
  const auto from = pretrained({.names = renamed});
  const auto counts_after = [&](const StateNames& names) {
    Whole loaded;
    with_new(
        2, 3,
        [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer& optimizer) {
          (void)load(context, from->step(), model, optimizer, names);
        },
        &loaded);
    EXPECT_EQ(loaded.values, from->whole.values);
    return loaded.counts;
  };
  EXPECT_EQ(counts_after(renamed), from->whole.counts);
}

TEST(PartialLoad, HalfOfAParametersStateIsRefused) {
  const auto from = pretrained();
  launch(2, [&](Context& context) {
    Classifier net;
    ShardedModel model = fully_shard(net, context);
    // Of state names that have one in common with AdamW's.
    struct Other : optim::Optimizer {
      explicit Other(std::vector<nn::NamedParameter> parameters)
          : Optimizer(std::move(parameters)) {}
      [[nodiscard]] std::vector<std::string> state_names() const override {
        return {"exp_avg", "slow"};
      }
      void update(const optim::Update&) override {}
    } optimizer(model.parameters());
    EXPECT_TRUE(has(error_of([&] {
                      (void)load(context, from->step(), model, optimizer,
                                 LoadOptions{.strict = false});
                    }),
                    "and not 'trunk.in.weight.slow'"));
    optim::Sgd sgd(model.parameters(), {.momentum = 0.9});
    EXPECT_TRUE(has(error_of([&] {
                      (void)load(context, from->step(), model, sgd, LoadOptions{.strict = false});
                    }),
                    "none of its 12 optimizer tensors"));
  });
}

TEST(PartialLoad, TheNewestStepInPart) {
  const auto from = pretrained();
  Whole loaded;
  with_new(
      2, 5,
      [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer& optimizer) {
        const auto found = load_latest(context, from->dir(), model, optimizer,
                                       LoadOptions{.model = is_trunk, .optimizer = is_trunk});
        ASSERT_TRUE(found.has_value());
        EXPECT_EQ(found->found.step, 5);
      },
      &loaded);
  expect_equal_where(loaded, from->whole, is_trunk);
  with_new(2, 3, [&](Context& context, Classifier&, ShardedModel& model, auto& optimizer) {
    std::vector<nn::NamedParameter> some = model.parameters();
    some.pop_back();
    const optim::AdamW part(some, {});
    optim::Optimizer& others = optimizer;
    const auto found =
        load_latest(context, from->dir(), model, others, LoadOptions{.strict = false});
    ASSERT_TRUE(found.has_value());
    EXPECT_TRUE(found->found.fit.model.missing.empty());
  });
}

// A group that only the new head has is no reason to refuse the trunk's state.
TEST(PartialLoad, GroupsMayBeOthers) {
  const auto from = pretrained();
  with_new(2, 5, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer&) {
    optim::AdamW grouped(model.parameters(), {.groups = {{"head.*", 10.0}}});
    const LoadOptions trunk{.model = is_trunk, .optimizer = is_trunk};
    (void)load(context, from->step(), model, grouped, trunk);
  });
  with_new(2, 3, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer&) {
    optim::AdamW grouped(model.parameters(), {.groups = {{"head.*", 10.0}}});
    EXPECT_TRUE(has(error_of([&] { (void)load(context, from->step(), model, grouped); },
                             ErrorCode::configuration),
                    "parameter groups"));
  });
}

std::vector<nn::NamedParameter> heads_of(const ShardedModel& model) {
  std::vector<nn::NamedParameter> some;
  for (const auto& parameter : model.parameters()) {
    if (parameter.name.starts_with("head.")) some.push_back(parameter);
  }
  return some;
}

TEST(OptimizerOfAPart, IsSavedAndLoaded) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    TemporaryFolder folder;
    Whole saved;
    launch(3, [&](Context& context) {
      const OneThread one_thread;
      manual_seed(3);
      Classifier net;
      ShardedModel model = fully_shard(net, context);
      optim::AdamW optimizer(heads_of(model), {.lr = 0.05});
      train(net, optimizer, 2);
      save(context, folder.path(), model, optimizer, {.step = 1, .type = type});
      saved.add(model, &optimizer);
    });
    EXPECT_TRUE(saved.values.contains("head.weight.exp_avg"));
    EXPECT_FALSE(saved.values.contains("trunk.in.weight.exp_avg"));
    Whole loaded;
    launch(2, [&](Context& context) {
      const OneThread one_thread;
      manual_seed(99);
      Classifier net;
      ShardedModel model = fully_shard(net, context);
      optim::AdamW all(model.parameters(), {});
      EXPECT_TRUE(has(error_of([&] { (void)load(context, folder.path() / "step-1", model, all); }),
                      "missing optimizer tensor 'trunk.in.weight.exp_avg'"));
      optim::AdamW optimizer(heads_of(model), {.lr = 0.05});
      (void)load(context, folder.path() / "step-1", model, optimizer);
      loaded.add(model, &optimizer);
    });
    EXPECT_EQ(loaded.values, saved.values);
    EXPECT_EQ(loaded.counts, saved.counts);
  }
}

TEST(OptimizerOfAPart, OneOfAnotherModelIsRefused) {
  TemporaryFolder folder;
  launch(2, [&](Context& context) {
    Classifier one, two;
    ShardedModel first = fully_shard(one, context);
    ShardedModel second = fully_shard(two, context);
    std::vector<nn::NamedParameter> both = first.parameters();
    for (auto& parameter : second.parameters()) both.push_back(parameter);
    optim::AdamW of_both(both, {});
    optim::AdamW of_second(second.parameters(), {});
    for (optim::Optimizer* optimizer :
         {static_cast<optim::Optimizer*>(&of_both), static_cast<optim::Optimizer*>(&of_second)}) {
      const std::string text = tessera::testing::message_of<std::logic_error>(
          [&] { save(context, folder.path(), first, *optimizer); });
      EXPECT_TRUE(has(text, "no parameter of this ShardedModel"));
      EXPECT_TRUE(has(text, "give each its own"));
      EXPECT_THROW((void)load(context, folder.path() / "step-0", first, *optimizer),
                   std::logic_error);
    }
  });
}

// A folder as transformers writes it: the trunk's weights, in one file or two.
class WeightsFrom : public ::testing::Test {
 protected:
  WeightsFrom() {
    std::int64_t number = 0;
    for (const auto& [name, shape] :
         std::map<std::string, std::vector<std::int64_t>>{{"trunk.in.bias", {7}},
                                                          {"trunk.in.weight", {7, 6}},
                                                          {"trunk.norm.bias", {7}},
                                                          {"trunk.norm.weight", {7}}}) {
      std::vector<float>& values = values_[name];
      for (std::int64_t i = 0; i < testing::elements_of(shape); ++i) {
        values.push_back(static_cast<float>(testing::element(2, i, static_cast<int>(number))));
      }
      shapes_[name] = shape;
      ++number;
    }
  }
  void write(const std::string& file, const std::string& ending = "") const {
    std::vector<TensorToWrite> list;
    for (const auto& [name, values] : values_) {
      if (name.ends_with(ending)) {
        list.push_back({{name, DType::float32, shapes_.at(name)}, values.data()});
      }
    }
    write_safetensors(folder_.path() / file, list);
  }
  void write_index() const {
    nlohmann::json index;
    for (const auto& entry : values_) {
      const bool weight = entry.first.ends_with("weight");
      index["weight_map"][entry.first] = weight ? "a.safetensors" : "b.safetensors";
    }
    testing::write_all(folder_.path() / "model.safetensors.index.json", index.dump());
  }
  void expect_loaded_from(const std::string& source) const {
    Whole loaded;
    with_new(
        3, 5,
        [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer& optimizer) {
          EXPECT_TRUE(has(error_of([&] { (void)load(context, source, model); }),
                          "missing model tensor 'head.weight'; missing model tensor 'head.bias'"));
          const LoadResult result = load(context, source, model, LoadOptions{.strict = false});
          EXPECT_EQ(result.model.missing, (std::vector<std::string>{"head.weight", "head.bias"}));
          (void)load(context, source, model, LoadOptions{.model = is_trunk});
          EXPECT_TRUE(has(error_of([&] {
                            (void)load(context, source, model, optimizer,
                                       LoadOptions{.model = is_trunk});
                          }),
                          "load it without the optimizer"));
        },
        &loaded);
    for (const auto& [name, values] : values_) {
      EXPECT_EQ(loaded.values.at(name), (std::vector<double>(values.begin(), values.end())))
          << name;
    }
  }
  [[nodiscard]] std::string path() const { return folder_.path().string(); }

  TemporaryFolder folder_;
  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
};

TEST_F(WeightsFrom, AHuggingFaceFolder) {
  write("model.safetensors");
  expect_loaded_from(path());
}

TEST_F(WeightsFrom, NumberedFilesWithAnIndex) {
  write("a.safetensors", "weight");
  write("b.safetensors", "bias");
  write_index();
  expect_loaded_from(path());
}

TEST_F(WeightsFrom, OneFile) {
  write("weights.safetensors");
  expect_loaded_from(path() + "/weights.safetensors");
}

TEST_F(WeightsFrom, OtherNamesByAFunctionThatHoldsSomething) {
  write("model.safetensors");
  std::vector<float> bias(7);
  std::vector<LogicalTensor> tensors{
      {"in.bias", DType::float32, {7}, {{0, 7, reinterpret_cast<std::byte*>(bias.data())}}}};
  const std::string prefix = "trunk.";
  load_hugging_face(path(), tensors, {"trunk.in.weight", "trunk.norm.weight", "trunk.norm.bias"},
                    [&](const std::string& name) { return std::vector{prefix + name}; });
  EXPECT_EQ(bias, values_.at("trunk.in.bias"));
}

// An unfinished save has such a file, too.
TEST_F(WeightsFrom, NoStepThatHasLostItsManifest) {
  for (const char* name : {"step-7", "step-7.partial-0123456789abcdef"}) {
    const auto step = folder_.path() / name;
    std::filesystem::create_directory(step);
    write(std::string(name) + "/model.safetensors");
    with_new(2, 5, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer&) {
      for (const char* slash : {"", "/"}) {
        EXPECT_TRUE(has(error_of([&] {
                          (void)load(context, step.string() + slash, model,
                                     LoadOptions{.model = is_trunk});
                        }),
                        "its save did not finish, or it is damaged"));
      }
      (void)load(context, step / "model.safetensors", model, LoadOptions{.model = is_trunk});
    });
  }
}

TEST_F(WeightsFrom, OtherPlacesSayWhatTheyAre) {
  const auto from = pretrained();
  testing::write_all(folder_.path() / "model.bin", "?");
  with_new(2, 3, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer& o) {
    const auto text = [&](const std::string& source) {
      return error_of([&] { (void)load(context, source, model); });
    };
    EXPECT_TRUE(has(text(path() + "/none"), "there is no such folder"));
    EXPECT_TRUE(has(text(path()), "it holds neither steps nor model.safetensors"));
    EXPECT_TRUE(has(text(path() + "/model.bin"), "no .safetensors file; tessera convert"));
    EXPECT_TRUE(has(text(from->dir()),
                    "a folder of steps; name one of them, such as '" + from->step() + "'"));
    State state = state_of(model, &o, Direction::load);
    context.barrier();
    if (context.is_main()) write("model.safetensors");
    context.barrier();
    EXPECT_TRUE(has(error_of([&] { (void)load(context.communicator(), path(), state); }),
                    "it is a Hugging Face folder, with weights alone"));
  });
}

}  // namespace
}  // namespace tessera::checkpoint
