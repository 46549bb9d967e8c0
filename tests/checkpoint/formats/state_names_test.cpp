// Sorts the tensors of nested dicts into the model's and the optimizer's, and names them.
#include "checkpoint/formats/torch/state_names.h"

#include <gtest/gtest.h>

#include "checkpoint/state/scalars_json.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::NamedState;
using formats::Part;
using formats::StateItems;
using formats::StatePath;
using nlohmann::json;

class Items {
 public:
  Items& tensor(StatePath path, std::vector<std::int64_t> shape = {2, 3},
                DType dtype = DType::float32) {
    items_.tensors.push_back(
        {std::move(path), &stored_dtype(dtype), std::move(shape), next_++, ""});
    return *this;
  }
  Items& same_memory(StatePath path, const std::string& memory) {
    tensor(std::move(path));
    items_.tensors.back().memory = memory;
    return *this;
  }
  Items& value(StatePath path, json value) {
    items_.values.push_back({std::move(path), std::move(value)});
    return *this;
  }
  // The value of a step is the number of its handle.
  [[nodiscard]] NamedState name() const {
    return formats::name_state(
        items_, [](std::size_t handle) { return static_cast<double>(handle); }, "'f'");
  }
  [[nodiscard]] std::string state_refusal() const {
    return error_of([&] { (void)name(); });
  }

 private:
  StateItems items_;
  std::size_t next_ = 0;
};

std::vector<std::string> names_of(const NamedState& state) {
  std::vector<std::string> names;
  for (const auto& tensor : state.contents.tensors) {
    names.push_back((tensor.part == Part::model ? "model/" : "optimizer/") + tensor.name);
  }
  return names;
}

std::string all_notes(const NamedState& state) {
  std::string all;
  for (const std::string& note : state.contents.notes) all += note + "\n";
  return all;
}

using Names = std::vector<std::string>;

TEST(StateNames, GroupsThatAreNotDictsAreLeftOut) {
  Items items;
  items.tensor({"model", "w"}).tensor({"optimizer", "state", "w", "exp_avg"});
  items.value({"optimizer", "param_groups", "0"}, 5)
      .value({"optimizer", "param_groups", "0", "lr"}, 0.1)
      .value({"optimizer", "param_groups", "1", "lr"}, 0.2);
  const NamedState state = items.name();
  const json& groups = json_of(state.contents.scalars).at(formats::param_groups_key);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].at("lr"), 0.2);
}

TEST(StateNames, FindsTheModelWhereProgramsPutIt) {
  EXPECT_EQ(names_of(Items().tensor({"a.weight"}).name()), Names{"model/a.weight"});
  for (const char* dict : {"model", "module", "state_dict", "model_state_dict", "net"}) {
    EXPECT_EQ(names_of(Items().tensor({dict, "a.weight"}).name()), Names{"model/a.weight"});
  }
  EXPECT_EQ(names_of(Items().tensor({"app", "model", "a.weight"}).name()), Names{"model/a.weight"});
  // A single dict of an unknown name.
  const NamedState unknown = Items().tensor({"generator", "a.weight"}).name();
  EXPECT_EQ(names_of(unknown), Names{"model/a.weight"});
  EXPECT_TRUE(has(all_notes(unknown), "generator"));
  const NamedState beside = Items().tensor({"a.weight"}).tensor({"rng", "cpu"}).name();
  EXPECT_EQ(names_of(beside), Names{"model/a.weight"});
  EXPECT_TRUE(has(all_notes(beside), R"(left out: 1 tensor in "rng")"));
  EXPECT_TRUE(
      has(Items().tensor({"model", "a"}).tensor({"module", "a"}).state_refusal(), "two models"));
  EXPECT_TRUE(has(Items().state_refusal(), "no tensors"));
}

TEST(StateNames, AnOptimizerAloneIsRefusedWithTheWayOut) {
  const auto alone = [](const char* parameter) {
    Items items;
    items.tensor({"optimizer", "state", parameter, "exp_avg"});
    items.value({"optimizer", "param_groups", "0", "lr"}, 0.1);
    return items;
  };
  EXPECT_TRUE(has(alone("0").state_refusal(),
                  "'f' holds the state of an optimizer and no model, and its parameters have "
                  "numbers for names: put it beside the model's pytorch_model.bin"));
  EXPECT_EQ(names_of(alone("a.weight").name()), Names{"optimizer/a.weight.exp_avg"});
}

TEST(StateNames, VectorsAroundTheModelAreNoSecondModel) {
  const NamedState state = Items()
                               .tensor({"loss"}, {})
                               .tensor({"rng"}, {5056})
                               .tensor({"app", "step"}, {1})
                               .tensor({"app", "model", "a.weight"})
                               .tensor({"app", "model", "a.bias"}, {3})
                               .name();
  EXPECT_EQ(names_of(state), (Names{"model/a.weight", "model/a.bias"}));
  EXPECT_TRUE(has(all_notes(state), "2 tensors beside the model's, such as \"loss\""));
  // Matrices around it are, and a flat model beside a dict of vectors stays the model.
  EXPECT_TRUE(has(Items().tensor({"a"}).tensor({"model", "a"}).state_refusal(),
                  "two models, in its outermost dict and \"model\""));
  EXPECT_EQ(names_of(Items().tensor({"scale"}, {3}).tensor({"rng", "cpu"}, {9}).name()),
            Names{"model/scale"});
}

TEST(StateNames, KeysInsideTheModelsDictStayInTheNames) {
  EXPECT_EQ(
      names_of(Items().tensor({"model", "a", "weight"}).tensor({"model", "a", "bias"}, {3}).name()),
      (Names{"model/a.weight", "model/a.bias"}));
  EXPECT_EQ(names_of(Items().tensor({"state_dict", "net", "a", "b", "w"}).name()),
            Names{"model/a.b.w"});
  EXPECT_TRUE(has(Items().tensor({"model", "a", "w"}).tensor({"model", "b", "w"}).state_refusal(),
                  "several models, or parts of one, in \"model.a\" and \"model.b\""));
}

// A model in a dict of an unknown name, beside an optimizer or a dict of random states, was left
// out.
TEST(StateNames, AnOptimizerDoesNotHideTheModel) {
  const NamedState state =
      Items().tensor({"policy", "w"}).tensor({"optimizer", "state", "w", "exp_avg"}).name();
  EXPECT_EQ(names_of(state), (Names{"model/w", "optimizer/w.exp_avg"}));
  EXPECT_EQ(names_of(Items().tensor({"policy", "w"}).tensor({"rng", "cpu"}, {5056}).name()),
            Names{"model/w"});
  EXPECT_TRUE(has(Items()
                      .tensor({"actor", "w"})
                      .tensor({"critic", "w"})
                      .tensor({"optimizer", "state", "w", "exp_avg"})
                      .state_refusal(),
                  "several models"));
}

TEST(StateNames, TakesWrappersOff) {
  const NamedState state = Items()
                               .tensor({"module._orig_mod.h.0._fsdp_wrapped_module.w"})
                               .tensor({"module.h.1._checkpoint_wrapped_module.w"})
                               .name();
  EXPECT_EQ(names_of(state), (Names{"model/h.0.w", "model/h.1.w"}));
  EXPECT_TRUE(has(all_notes(state), "2 names lost"));
  // A module with the name "module", and a name that merely ends like a wrapper.
  EXPECT_EQ(names_of(Items().tensor({"module.w"}).tensor({"my_orig_mod.w"}).name()),
            (Names{"model/module.w", "model/my_orig_mod.w"}));
  EXPECT_TRUE(has(Items().tensor({"a.w"}).tensor({"_orig_mod.a.w"}).state_refusal(), "both"));
  EXPECT_TRUE(has(Items().tensor({"_flat_param"}).state_refusal(), "SHARDED_STATE_DICT"));
}

TEST(StateNames, TiedWeightsAreAliases) {
  const NamedState state = Items()
                               .same_memory({"wte"}, "here")
                               .same_memory({"other"}, "there")
                               .same_memory({"head"}, "here")
                               .name();
  EXPECT_EQ(names_of(state), (Names{"model/wte", "model/other"}));
  EXPECT_EQ(state.contents.aliases.at("head"), "wte");
}

TEST(StateNames, NamesTheOptimizersState) {
  const NamedState state = Items()
                               .tensor({"model", "module.w"})
                               .tensor({"optim", "state", "module.w", "exp_avg"})
                               .tensor({"optim", "state", "module.w", "step"}, {})
                               .tensor({"optim", "state", "module.w", "momentum_buffer"})
                               .value({"optim", "param_groups", "0", "lr"}, 0.5)
                               .value({"optim", "param_groups", "0", "params"}, {"module.w"})
                               .name();
  EXPECT_EQ(names_of(state), (Names{"model/w", "optimizer/w.exp_avg", "optimizer/w.momentum"}));
  EXPECT_EQ(state.contents.scalars.get<std::int64_t>("step"), 2);
  const json& groups = json_of(state.contents.scalars)["param_groups"];
  EXPECT_EQ(groups, (json{{{"lr", 0.5}, {"params", {"w"}}}}));
  // FSDP's full form: at the top level of a file, with whole groups and numeric steps.
  const NamedState whole = Items()
                               .tensor({"state", "w", "exp_avg"})
                               .value({"state", "w", "step"}, 7)
                               .value({"param_groups"}, {{{"lr", 0.5}, {"params", {"w"}}}})
                               .name();
  EXPECT_EQ(names_of(whole), Names{"optimizer/w.exp_avg"});
  EXPECT_EQ(whole.contents.scalars.get<std::int64_t>("step"), 7);
  EXPECT_EQ(json_of(whole.contents.scalars)["param_groups"][0]["lr"], 0.5);
}

// StateDictOptions(flatten_optimizer_state_dict=True), as torchtitan saves: a key for each
// parameter and hyperparameter.
TEST(StateNames, FlatDictsOfOptimizersAreTakenApart) {
  for (const StatePath& dict : {StatePath{"optimizer"}, StatePath{"app", "optim"}, StatePath{}}) {
    const auto inside = [&](const std::string& key) {
      StatePath path = dict;
      path.push_back(key);
      return path;
    };
    Items items;
    items.tensor({"model", "b.0.weight"}).tensor({"model", "b.0.bias"}, {3});
    items.tensor({"model", "state.w"}).tensor({"model", "e"});
    items.tensor(inside("state.b.0.weight.step"), {});
    items.tensor(inside("state.b.0.weight.exp_avg"));
    items.tensor(inside("state.b.0.bias.exp_avg"), {3});
    items.tensor(inside("state.state.w.momentum_buffer"));
    items.tensor(inside("state.e.left.0"));  // a dict within the state, as Shampoo has
    items.value(inside("state.b.0.bias.step"), 9);
    for (const auto& [name, decay] :
         {std::pair{"b.0.weight", 0.1}, {"b.0.bias", 0.0}, {"state.w", 0.1}, {"e", 0.1}}) {
      const std::string prefix = std::string("param_groups.") + name;
      items.value(inside(prefix + ".lr"), 0.5).value(inside(prefix + ".betas"), {0.8, 0.9});
      items.value(inside(prefix + ".weight_decay"), decay);
    }
    const NamedState state = items.name();
    Names optimizer = names_of(state);
    std::erase_if(optimizer, [](const auto& name) { return !name.starts_with("optimizer/"); });
    EXPECT_EQ(optimizer, (Names{"optimizer/b.0.weight.exp_avg", "optimizer/b.0.bias.exp_avg",
                                "optimizer/state.w.momentum"}));
    EXPECT_EQ(state.contents.tensors.size(), 4u + 3u);
    const json& scalars = json_of(state.contents.scalars);
    EXPECT_EQ(scalars.at(step_counts_key).at("b.0.weight"), 4);
    EXPECT_EQ(scalars.at(step_counts_key).at("b.0.bias"), 9);
    const json betas = {0.8, 0.9};
    const json decayed = {"b.0.weight", "state.w", "e"};
    EXPECT_EQ(
        scalars.at(formats::param_groups_key),
        (json{{{"lr", 0.5}, {"betas", betas}, {"weight_decay", 0.1}, {"params", decayed}},
              {{"lr", 0.5}, {"betas", betas}, {"weight_decay", 0.0}, {"params", {"b.0.bias"}}}}));
    EXPECT_TRUE(has(all_notes(state), "left out: 1 tensor"));
  }
}

Items numbered() {
  return Items()
      .tensor({"model", "a"}, {2, 3})
      .tensor({"model", "b"}, {4})
      .tensor({"optimizer", "state", "0", "exp_avg"}, {2, 3})
      .tensor({"optimizer", "state", "1", "exp_avg"}, {4});
}

TEST(StateNames, NumbersBecomeNamesOnlyWhereItIsCertain) {
  EXPECT_EQ(
      names_of(numbered().value({"optimizer", "param_groups"}, {{{"params", {0, 1}}}}).name()),
      (Names{"model/a", "model/b", "optimizer/a.exp_avg", "optimizer/b.exp_avg"}));
  const json swapped = {{{"params", {0}}, {"param_names", {"b"}}},
                        {{"params", {1}}, {"param_names", {"a"}}}};
  EXPECT_EQ(names_of(Items()
                         .tensor({"model", "a"}, {2, 3})
                         .tensor({"model", "b"}, {4})
                         .tensor({"optimizer", "state", "0", "exp_avg"}, {4})
                         .tensor({"optimizer", "state", "1", "exp_avg"}, {2, 3})
                         .value({"optimizer", "param_groups"}, swapped)
                         .name()),
            (Names{"model/a", "model/b", "optimizer/b.exp_avg", "optimizer/a.exp_avg"}));
  EXPECT_EQ(
      names_of(numbered().tensor({"model", "seen"}, {1}, DType::int64).name()),
      (Names{"model/a", "model/b", "model/seen", "optimizer/a.exp_avg", "optimizer/b.exp_avg"}));
  // Two groups without names; a buffer among the tensors; other shapes.
  const json two = {{{"params", {0}}}, {{"params", {1}}}};
  const std::vector<std::pair<NamedState, std::string>> uncertain = {
      {numbered().value({"optimizer", "param_groups"}, two).name(),
       "which is which: it has 2 parameter groups without param_names"},
      {numbered().tensor({"model", "frozen"}, {4}).name(),
       "it has the states of 2 parameters and the model beside it 3, so that buffers or frozen "
       "parameters among them shift the numbers, and shapes do not tell which they are: parameter "
       "1 may be \"b\" or \"frozen\""},
      {numbered().tensor({"optimizer", "state", "7", "exp_avg"}, {5}).name(),
       "it has a state of parameter 7, and the model beside it has 2 parameters"},
      {numbered().tensor({"optimizer", "state", "1", "exp_avg_sq"}, {5}).name(),
       "the state of parameter 1 has the shape [5], and \"b\" in its place has [4]"}};
  for (const auto& [state, cause] : uncertain) {
    EXPECT_TRUE(has(all_notes(state), cause)) << all_notes(state);
    EXPECT_EQ(state.contents.tensors.back().part, Part::model);
    EXPECT_TRUE(has(all_notes(state), "numbers for names"));
    // As in a file beside the weights: no conversion loses it without a word.
    EXPECT_TRUE(has(state.contents.unread_state, "the optimizer's state in "));
  }
  EXPECT_EQ(numbered().name().contents.unread_state, "");
}

// Some are frozen, or buffers: the shapes of the states tell which, if there is one choice.
TEST(StateNames, AnOptimizerOfAPartOfTheModel) {
  const json groups = {{{"params", {0, 1}}}};
  const NamedState found = Items()
                               .tensor({"model", "frozen"}, {7})
                               .tensor({"model", "a"}, {2, 3})
                               .tensor({"model", "buffer"}, {1})
                               .tensor({"model", "b"}, {4})
                               .tensor({"optimizer", "state", "0", "exp_avg"}, {2, 3})
                               .tensor({"optimizer", "state", "1", "exp_avg"}, {4})
                               .value({"optimizer", "param_groups"}, groups)
                               .name();
  EXPECT_EQ(found.contents.unread_state, "");
  EXPECT_EQ(names_of(found), (Names{"model/frozen", "model/a", "model/buffer", "model/b",
                                    "optimizer/a.exp_avg", "optimizer/b.exp_avg"}));
  EXPECT_EQ(json_of(found.contents.scalars).at(formats::param_groups_key),
            (json{{{"params", {"a", "b"}}}}));
  EXPECT_TRUE(has(all_notes(found),
                  "has 2 of the model's 4 tensors, which the shapes of its states "
                  "tell; the others, such as \"frozen\""));
  EXPECT_FALSE(has(all_notes(found), "assumed"));
  // One choice keeps the order, and another order would have the other.
  const NamedState ordered = Items()
                                 .tensor({"model", "a"}, {2, 3})
                                 .tensor({"model", "b"}, {4})
                                 .tensor({"model", "c"}, {2, 3})
                                 .tensor({"optimizer", "state", "0", "exp_avg"}, {2, 3})
                                 .tensor({"optimizer", "state", "1", "exp_avg"}, {4})
                                 .value({"optimizer", "param_groups"}, groups)
                                 .name();
  EXPECT_TRUE(has(names_of(ordered).back(), "optimizer/b.exp_avg"));
  EXPECT_TRUE(has(all_notes(ordered), "assumed") && has(all_notes(ordered), "\"a\" and \"c\""));
  const NamedState none = Items()
                              .tensor({"model", "b"}, {4})
                              .tensor({"model", "a"}, {2, 3})
                              .tensor({"model", "c"}, {5})
                              .tensor({"optimizer", "state", "0", "exp_avg"}, {2, 3})
                              .tensor({"optimizer", "state", "1", "exp_avg"}, {4})
                              .value({"optimizer", "param_groups"}, groups)
                              .name();
  EXPECT_TRUE(has(none.contents.unread_state, "no choice of the model's in their order"));
}

TEST(StateNames, StatisticsOfNormsHaveNoNumbers) {
  const NamedState state = Items()
                               .tensor({"model", "bn.weight"}, {4})
                               .tensor({"model", "bn.bias"}, {4})
                               .tensor({"model", "bn.running_mean"}, {4})
                               .tensor({"model", "bn.running_var"}, {4})
                               .tensor({"model", "bn.num_batches_tracked"}, {}, DType::int64)
                               .tensor({"optimizer", "state", "0", "exp_avg"}, {4})
                               .tensor({"optimizer", "state", "1", "exp_avg"}, {4})
                               .value({"optimizer", "param_groups"}, {{{"params", {0, 1}}}})
                               .name();
  EXPECT_TRUE(has(names_of(state).back(), "optimizer/bn.bias.exp_avg"));
  EXPECT_TRUE(has(all_notes(state), "such as \"bn.weight\" and \"bn.bias\""));
}

json groups_of(const NamedState& state) {
  return json_of(state.contents.scalars).at(formats::param_groups_key);
}

// Two parameters of one shape, so that no shape contradicts another order.
Items alike(const json& groups) {
  return Items()
      .tensor({"model", "a"})
      .tensor({"model", "b"})
      .tensor({"optimizer", "state", "0", "exp_avg"})
      .tensor({"optimizer", "state", "1", "exp_avg"})
      .value({"optimizer", "param_groups"}, groups);
}

// torch loads a group by the names in `params`, and the state by the same names.
TEST(StateNames, GroupsHaveNamesInsteadOfNumbers) {
  const NamedState one =
      numbered().value({"optimizer", "param_groups"}, {{{"params", {0, 1}}}}).name();
  EXPECT_EQ(groups_of(one), (json{{{"params", {"a", "b"}}}}));
  const json two = {{{"params", {0}}, {"lr", 0.5}, {"param_names", {"b"}}},
                    {{"params", {1}}, {"lr", 0.25}, {"param_names", {"a"}}}};
  const NamedState named = alike(two).name();
  EXPECT_EQ(groups_of(named),
            (json{{{"params", {"b"}}, {"lr", 0.5}}, {{"params", {"a"}}, {"lr", 0.25}}}));
  EXPECT_EQ(names_of(named),
            (Names{"model/a", "model/b", "optimizer/b.exp_avg", "optimizer/a.exp_avg"}));
  EXPECT_FALSE(has(all_notes(named), "assumed"));
}

TEST(StateNames, AnOrderThatNoShapeProvesIsNoted) {
  const std::string note = all_notes(alike({{{"params", {0, 1}}}}).name());
  EXPECT_TRUE(has(note, "assumed: the optimizer's parameters")) << note;
  EXPECT_TRUE(has(note, "\"a\" and \"b\"") && has(note, "param_names")) << note;
  EXPECT_FALSE(has(all_notes(numbered().name()), "assumed"));
  // Names that a reader put there from the model's order are no better.
  const json assumed = {{{"params", {0, 1}}, {formats::assumed_names_key, {"a", "b"}}}};
  EXPECT_TRUE(has(all_notes(alike(assumed).name()), "assumed"));
  EXPECT_EQ(groups_of(alike(assumed).name()), (json{{{"params", {"a", "b"}}}}));
  // The optimizer has a third parameter, which has no state yet.
  EXPECT_TRUE(has(all_notes(alike({{{"params", {0, 1, 2}}}}).name()), "states of 3 parameters"));
}

// torch.optim.Adafactor's tensors have 1 in place of a dimension; both together have the shape.
TEST(StateNames, FactorsOfAParameterTellItsShape) {
  const auto named = [](std::vector<std::int64_t> columns) {
    return Items()
        .tensor({"model", "a"}, {4, 6})
        .tensor({"model", "b"}, {5, 6})
        .tensor({"model", "c"}, {7})
        .value({"optim", "param_groups"}, json{{{"params", {0, 1}}}})
        .tensor({"optim", "state", "0", "row_var"}, {5, 1})
        .tensor({"optim", "state", "0", "col_var"}, std::move(columns))
        .tensor({"optim", "state", "1", "variance"}, {7})
        .name();
  };
  EXPECT_EQ(names_of(named({1, 6})), (Names{"model/a", "model/b", "model/c", "optimizer/b.row_var",
                                            "optimizer/b.col_var", "optimizer/c.variance"}));
  EXPECT_EQ(names_of(named({1, 8})), (Names{"model/a", "model/b", "model/c"}));
}

TEST(StateNames, NamesOfTheOptimizerAreThoseOfTheModel) {
  const auto with_names = [](const json& names) {
    return alike({{{"params", {0, 1}}, {"param_names", names}}}).name();
  };
  const NamedState parallel = with_names({"module.b", "module.a"});
  EXPECT_EQ(names_of(parallel),
            (Names{"model/a", "model/b", "optimizer/b.exp_avg", "optimizer/a.exp_avg"}));
  EXPECT_EQ(groups_of(parallel), (json{{{"params", {"b", "a"}}}}));
  EXPECT_TRUE(has(all_notes(parallel), "lost the prefix module."));
  for (const json& names : {json{"a", "c"}, json{"module.a", "c"}, json{"module.a", "module.c"}}) {
    const NamedState wrong = with_names(names);
    EXPECT_EQ(names_of(wrong), (Names{"model/a", "model/b"})) << names;
    EXPECT_TRUE(has(wrong.contents.unread_state, "is not a tensor of the model")) << names;
  }
  EXPECT_TRUE(has(with_names({"a", "c"}).contents.unread_state, "its parameter \"c\" is not"));
  // The state under names, as get_state_dict makes it.
  const auto by_name = [](const std::string& name) {
    return Items().tensor({"model", "w"}).tensor({"optim", "state", name, "exp_avg"}).name();
  };
  EXPECT_EQ(names_of(by_name("module.w")), (Names{"model/w", "optimizer/w.exp_avg"}));
  EXPECT_TRUE(has(by_name("v").contents.unread_state, "\"v\" is not a tensor of the model"));
}

TEST(StateNames, StateOfATiedParameterHasTheNameOfTheTensor) {
  const NamedState state = Items()
                               .same_memory({"model", "table"}, "here")
                               .same_memory({"model", "head"}, "here")
                               .tensor({"optim", "state", "head", "exp_avg"})
                               .name();
  EXPECT_EQ(names_of(state), (Names{"model/table", "optimizer/table.exp_avg"}));
}

}  // namespace
}  // namespace tessera::checkpoint
