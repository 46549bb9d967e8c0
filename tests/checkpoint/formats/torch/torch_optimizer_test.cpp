// Optimizer state as torch's optimizers keep it: groups with the names of their parameters and with
// the keys that they had, and the steps of every optimizer that counts them.
#include "checkpoint/formats/torch/torch_optimizer.h"

#include <gtest/gtest.h>

#include "checkpoint/formats/torch/state_names.h"
#include "checkpoint/state/scalars_json.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::Contents;
using formats::OptimizerLayout;
using formats::Part;
using nlohmann::json;

// A model of `w` and `v`, with this state of each.
Contents trained(const std::vector<std::string>& keys) {
  Contents contents;
  for (const char* name : {"w", "v"}) {
    contents.tensors.push_back({Part::model, name, find_stored_dtype("F32"), {2}, ""});
  }
  for (const char* name : {"w", "v"}) {
    for (const std::string& key : keys) {
      contents.tensors.push_back(
          {Part::optimizer, name + ("." + key), find_stored_dtype("F32"), {2}, ""});
    }
  }
  return contents;
}

TEST(TorchOptimizer, StepsOfEveryOptimizerThatCountsThem) {
  for (const auto& [keys, counts] : {std::pair<std::vector<std::string>, bool>{{"sum"}, true},
                                     {{"square_avg", "momentum"}, true},
                                     {{"exp_avg", "exp_inf"}, true},
                                     {{"square_avg", "acc_delta"}, true},
                                     {{"prev", "step_size"}, true},
                                     {{"exp_avg", "exp_avg_sq"}, true},
                                     {{"momentum"}, false},
                                     {{"exp_avg"}, false}}) {
    Contents contents = trained(keys);
    formats::keep_step_counts({{"w", 3}, {"v", 5}}, contents);
    const OptimizerLayout layout(contents);
    ASSERT_EQ(layout.parameters().size(), 2u);
    for (const auto& parameter : layout.parameters()) {
      EXPECT_EQ(parameter.has_step, counts) << keys.front();
      const float step = parameter.name == "w" ? 3 : 5;
      EXPECT_EQ(parameter.step, counts ? step : 0) << keys.front();
    }
  }
  // AdamW cannot go on without; of others the source had none.
  EXPECT_TRUE(has(error_of([&] { OptimizerLayout{trained({"exp_avg_sq"})}; }), "how many steps"));
  EXPECT_FALSE(OptimizerLayout(trained({"sum"})).parameters()[0].has_step);
}

TEST(TorchOptimizer, GroupsKeepTheirKeys) {
  const auto written = [](const std::vector<std::string>& keys, const json& group) {
    Contents contents = trained(keys);
    contents.scalars.set("step", 3);
    json_of(contents.scalars)[formats::param_groups_key] = json::array({group});
    return OptimizerLayout(contents).groups().at(0);
  };
  const json adagrad = {{"lr", 0.1}, {"lr_decay", 0}, {"eps", 1e-10}, {"params", {"v", "w"}}};
  EXPECT_EQ(written({"sum"}, adagrad), adagrad);
  const json rmsprop = {{"lr", 0.1}, {"alpha", 0.9}, {"momentum", 0.9}, {"params", {"v", "w"}}};
  EXPECT_EQ(written({"square_avg", "momentum"}, rmsprop), rmsprop);
  // Adam before it had decoupled_weight_decay: true would make it AdamW.
  const json adam = {
      {"lr", 0.1}, {"betas", {0.9, 0.99}}, {"amsgrad", false}, {"params", {"v", "w"}}};
  EXPECT_EQ(written({"exp_avg", "exp_avg_sq"}, adam), adam);
  // DeepSpeed's Adam has a part of torch's keys.
  const json deepspeed = {{"lr", 0.1}, {"bias_correction", true}, {"params", {"v", "w"}}};
  EXPECT_EQ(written({"exp_avg", "exp_avg_sq"}, deepspeed).at("amsgrad"), false);
  EXPECT_EQ(written({"exp_avg", "exp_avg_sq"}, deepspeed).at("lr"), 0.1);
}

// torch's Muon and the AdamW beside it are two optimizers: each has a group.
TEST(TorchOptimizer, MuonHasAGroupOfItsOwn) {
  Contents contents = trained({"momentum"});
  for (const char* name : {"v", "table"}) {
    contents.tensors.push_back({Part::model, name, find_stored_dtype("F32"), {2}, ""});
  }
  contents.tensors.erase(contents.tensors.begin() + 3);  // the momentum of v
  for (const char* name : {"v.exp_avg", "v.exp_avg_sq", "table.exp_avg", "table.exp_avg_sq"}) {
    contents.tensors.push_back({Part::optimizer, name, find_stored_dtype("F32"), {2}, ""});
  }
  contents.scalars.set("step", 3);
  const json groups = OptimizerLayout(contents).groups();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].at("params"), (json{"w"}));
  EXPECT_EQ(groups[0].at("ns_steps"), 5);
  EXPECT_EQ(groups[1].at("params"), (json{"v", "table"}));
  EXPECT_EQ(groups[1].at("amsgrad"), false);
}

// The package schedulefree counts steps in its groups.
TEST(TorchOptimizer, ScheduleFreeHasAGroupForEqualNumbers) {
  Contents contents = trained({"z", "exp_avg_sq"});
  EXPECT_TRUE(has(error_of([&] { OptimizerLayout{contents}; }), "no number weight_sum of \"w\""));
  json& scalars = json_of(contents.scalars);
  scalars["optimizer_step_counts"] = {{"w", 3}, {"v", 3}};
  scalars["optimizer_numbers"] = {{"lr_max", {{"w", 0.5}, {"v", 0.5}}},
                                  {"weight_sum", {{"w", 0.75}, {"v", 0.75}}}};
  const OptimizerLayout layout(contents);
  EXPECT_FALSE(layout.parameters()[0].has_step);
  ASSERT_EQ(layout.groups().size(), 1u);
  const json& group = layout.groups()[0];
  EXPECT_EQ(group.at("params"), (json{"w", "v"}));
  EXPECT_EQ(group.at("k"), 3);
  EXPECT_EQ(group.at("weight_sum"), 0.75);
  EXPECT_EQ(group.at("lr_max"), 0.5);
  EXPECT_EQ(group.at("train_mode"), false);
  scalars["optimizer_step_counts"]["v"] = 2;
  EXPECT_EQ(OptimizerLayout(contents).groups().size(), 2u);
}

TEST(TorchOptimizer, ScheduleFreeGroupsGiveTheCounts) {
  Contents contents = trained({"z", "exp_avg_sq"});
  contents.tensors.pop_back();
  contents.tensors.pop_back();  // v has no state
  json group = {{"k", 7},
                {"lr_max", 0.5},
                {"weight_sum", 1.75},
                {"train_mode", true},
                {"params", {"w", "v"}}};
  formats::keep_counts_of_groups(json::array({group}), contents);
  EXPECT_FALSE(contents.scalars.contains("step"));
  ASSERT_EQ(contents.notes.size(), 1u);
  EXPECT_TRUE(has(contents.notes[0], "call its eval() before a save"));
  group["train_mode"] = false;
  formats::keep_counts_of_groups(json::array({group}), contents);
  EXPECT_EQ(contents.scalars.get<std::int64_t>("step"), 7);
  const json& scalars = json_of(contents.scalars);
  EXPECT_EQ(scalars.at("optimizer_step_counts"), (json{{"w", 7}, {"v", 0}}));
  EXPECT_EQ(scalars.at("optimizer_numbers"), (json{{"lr_max", {{"w", 0.5}, {"v", 0.0}}},
                                                   {"weight_sum", {{"w", 1.75}, {"v", 0.0}}}}));
  group["k"] = 0.5;
  EXPECT_TRUE(has(error_of([&] { formats::keep_counts_of_groups(json::array({group}), contents); }),
                  "not a whole number"));
}

TEST(TorchOptimizer, AdafactorHasTorchsDefaults) {
  Contents contents = trained({"variance"});
  contents.scalars.set("step", 3);
  const OptimizerLayout layout(contents);
  const json& group = layout.groups().at(0);
  EXPECT_EQ(group.at("eps"), (json{nullptr, 1e-3}));
  EXPECT_EQ(group.at("beta2_decay"), -0.8);
  EXPECT_EQ(layout.parameters().at(0).step, 3);
  Contents without_steps = trained({"row_var", "col_var"});
  EXPECT_TRUE(has(error_of([&] { OptimizerLayout{without_steps}; }), "PyTorch's Adafactor needs"));
}

TEST(TorchOptimizer, GroupsNameTheirParameters) {
  Contents contents = trained({"momentum"});
  EXPECT_EQ(OptimizerLayout(contents).groups().at(0).at("params"), (json{"w", "v"}));
  json& groups = json_of(contents.scalars)[formats::param_groups_key];
  groups = {{{"lr", 0.1}, {"params", {0, 1}}}};
  EXPECT_EQ(OptimizerLayout(contents).groups().at(0).at("params"), (json{"w", "v"}));
  groups = {{{"lr", 0.1}, {"params", {0}}}, {{"lr", 0.2}, {"params", {1}}}};
  EXPECT_TRUE(has(error_of([&] { OptimizerLayout{contents}; }), "does not say which parameters"));
}

}  // namespace
}  // namespace tessera::checkpoint
