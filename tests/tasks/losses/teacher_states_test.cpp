// The loss of hidden states has torch's values and gradients (tests/tasks/fixtures/
// teacher_states.json, which tests/judges/teacher_states.py wrote), and modules are found by name.
#include "tasks/losses/teacher_states.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "engine/recompute.h"
#include "models/registry/registry.h"

namespace tessera::tasks {
namespace {

Tensor state_tensor(const nlohmann::json& numbers, const nlohmann::json& shape, DType dtype) {
  const Shape sizes{shape.at(0).get<std::int64_t>(), shape.at(1).get<std::int64_t>()};
  return cast(Tensor::from(numbers.get<std::vector<double>>(), sizes), dtype).clone();
}

nlohmann::json state_cases() {
  const char* const source = std::getenv("TESSERA_SOURCE_DIR");
  std::ifstream file(std::string(source != nullptr ? source : ".") +
                     "/tests/tasks/fixtures/teacher_states.json");
  return nlohmann::json::parse(file);
}

TEST(TeacherStates, LossAndGradientAreThoseOfTorch) {
  const std::map<std::string, DType> dtypes = {
      {"float32", float32}, {"bfloat16", bfloat16}, {"float64", float64}};
  const nlohmann::json cases = state_cases();
  ASSERT_EQ(cases.size(), 12u);
  for (const nlohmann::json& one : cases) {
    const DType dtype = dtypes.at(one.at("dtype"));
    const bool cosine = one.at("loss") == "cosine";
    const std::string title = one.at("dtype").get<std::string>() + (cosine ? " cosine" : " mse");
    Tensor student = state_tensor(one.at("student"), one.at("shape"), dtype);
    student.set_requires_grad(true);
    const auto targets = one.at("targets").get<std::vector<std::int64_t>>();
    const Tensor loss =
        teacher_state_loss(student, state_tensor(one.at("teacher"), one.at("shape"), dtype),
                           Tensor::from(targets, {static_cast<std::int64_t>(targets.size())}),
                           cosine ? StateLoss::cosine : StateLoss::mse);
    loss.backward();
    const double tolerance = dtype == float64 ? 1e-12 : dtype == float32 ? 1e-6 : 0x1p-8;
    const double wanted = one.at("value");
    EXPECT_NEAR(loss.item(), wanted, (dtype == bfloat16 ? 1e-6 : tolerance) * wanted) << title;
    const auto gradient = one.at("gradient").get<std::vector<double>>();
    const std::vector<double> got = student.grad().to_vector();
    ASSERT_EQ(got.size(), gradient.size()) << title;
    double largest = 0;
    for (const double value : gradient) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], gradient[i], tolerance * largest) << title << " element " << i;
    }
  }
}

TEST(TeacherStates, WithoutATargetThatCountsLossAndGradientAreZero) {
  for (const StateLoss kind : {StateLoss::mse, StateLoss::cosine}) {
    Tensor student = Tensor::full({1, 2, 3}, 0.5);
    student.set_requires_grad(true);
    const Tensor loss =
        teacher_state_loss(student, Tensor::full({1, 2, 3}, 0.25),
                           Tensor::from(std::vector<std::int32_t>{-100, -100}, {1, 2}), kind);
    loss.backward();
    EXPECT_EQ(loss.item(), 0);
    EXPECT_EQ(student.grad().to_vector(), std::vector<double>(6, 0.0));
  }
}

std::unique_ptr<models::LanguageModel> small_gpt2(int layers, int width) {
  manual_seed(static_cast<std::uint64_t>(layers));
  auto model = models::make_language_model({{"model_type", "gpt2"},
                                            {"vocab_size", 16},
                                            {"n_positions", 8},
                                            {"n_embd", width},
                                            {"n_layer", layers},
                                            {"n_head", 2}},
                                           "test");
  model->eval();  // no dropout
  return model;
}

const std::vector<std::int32_t> some_ids = {3, 1, 4, 1, 5, 9, 2, 6};

// The loss of the pair alone.
double compare_states(models::LanguageModel& student, models::LanguageModel& teacher,
                      const StatePair& pair) {
  TeacherStates states({pair}, student, teacher, "r.yaml:3: train.teacher_states");
  const Tensor ids = Tensor::from(some_ids, {2, 4});
  (void)states.of_teacher([&] { return teacher.forward(ids); });
  (void)states.of_student([&] { return student.forward(ids); });
  return states.add_to(Tensor::zeros({}), ids).item();
}

std::string refusal_of(const StatePair& pair, int width = 8) {
  const auto student = small_gpt2(2, 8), teacher = small_gpt2(3, width);
  try {
    (void)compare_states(*student, *teacher, pair);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    return error.what();
  }
  return "nothing is refused";
}

// The last hidden states, seen by hooks of the test, under three names.
TEST(TeacherStates, ComparesWhatModulesReturn) {
  const auto student = small_gpt2(2, 8), teacher = small_gpt2(3, 8);
  const Tensor ids = Tensor::from(some_ids, {2, 4});
  Tensor own, taught;
  {
    const auto keep = [](Tensor& state) {
      return [&state](nn::Module&, std::span<const Tensor>, std::span<Tensor> outputs) {
        state = outputs.front();
      };
    };
    const auto last_norm = [](nn::Module& model) {
      for (const auto& [name, module] : model.named_modules()) {
        if (name == "transformer.ln_f") return module;
      }
      return static_cast<nn::Module*>(nullptr);
    };
    HookHandle of_student = last_norm(*student)->register_forward_hook(keep(own));
    HookHandle of_teacher = last_norm(*teacher)->register_forward_hook(keep(taught));
    (void)student->forward(ids);
    (void)teacher->forward(ids);
    of_student.remove();
    of_teacher.remove();
  }
  const double wanted = mean(square(own - taught)).item();
  for (const std::string name : {"transformer.ln_f", "ln_f", "transformer"}) {
    const StatePair pair{.student = name, .teacher = "ln_f", .weight = 3};
    EXPECT_NEAR(compare_states(*student, *teacher, pair), 3 * wanted, 1e-6 * wanted) << name;
  }
}

// A module of a fused product has an output of its own when it is asked for.
TEST(TeacherStates, LayersOfAFusedProductCanBeCompared) {
  const auto student = small_gpt2(2, 8);
  for (const std::string name : {"h.0.mlp.c_fc", "h.1.mlp.c_proj", "h.0.ln_2", "h.1.attn"}) {
    EXPECT_EQ(compare_states(*student, *student, {.student = name, .teacher = name}), 0) << name;
  }
}

TEST(TeacherStates, RecomputedModulesHaveTheSameGradients) {
  const auto student = small_gpt2(2, 8), teacher = small_gpt2(3, 8);
  const Tensor ids = Tensor::from(some_ids, {2, 4});
  std::vector<std::vector<double>> gradients;
  for (const bool recomputed : {false, true}) {
    if (recomputed) {
      for (const auto& [name, module] : student->named_modules()) {
        if (module->class_name() == "GPT2Block") module->set_recompute(RecomputeOptions{});
      }
    }
    TeacherStates states({{.student = "h.0", .teacher = "h.1"},
                          {.student = "h.1.attn", .teacher = "h.2.attn", .weight = 0.5},
                          {.student = "h.1.mlp.c_fc", .teacher = "h.1.mlp.c_fc"}},
                         *student, *teacher, "");
    (void)states.of_teacher([&] { return teacher->forward(ids); });
    const Tensor logits = states.of_student([&] { return student->forward(ids); });
    states.add_to(cross_entropy(logits, ids), ids).backward();
    gradients.emplace_back();
    for (auto& parameter : student->named_parameters()) {
      const std::vector<double> one = parameter.tensor.grad().to_vector();
      gradients.back().insert(gradients.back().end(), one.begin(), one.end());
      parameter.tensor.zero_grad();
    }
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST(TeacherStates, HooksCanRestAndEndWithIt) {
  const auto student = small_gpt2(2, 8), teacher = small_gpt2(3, 8);
  const auto hooks = [&] {
    std::size_t count = 0;
    for (models::LanguageModel* model : {student.get(), teacher.get()}) {
      for (const auto& [name, module] : model->named_modules()) {
        count += module->has_forward_hooks() ? 1 : 0;
      }
    }
    return count;
  };
  const Tensor ids = Tensor::from(some_ids, {2, 4});
  {
    TeacherStates states({{.student = "h.0", .teacher = "h.1"}}, *student, *teacher, "");
    EXPECT_EQ(hooks(), 0u);
    for (int step = 0; step < 2; ++step) {
      (void)states.of_teacher([&] { return teacher->forward(ids); });
      (void)states.of_student([&] { return student->forward(ids); });
      EXPECT_EQ(hooks(), 2u);
      EXPECT_GT(states.add_to(Tensor::zeros({}), ids).item(), 0);
      if (step == 0) states.rest();
      EXPECT_EQ(hooks(), step == 0 ? 0u : 2u);
    }
  }
  EXPECT_EQ(hooks(), 0u);
}

TEST(TeacherStates, WrongNamesAndShapesAreRefused) {
  const std::string place = "r.yaml:3: train.teacher_states: ";
  EXPECT_EQ(refusal_of({.student = "h.2", .teacher = "h.0"}),
            place + "the trained model has no module h.2; did you mean h.0?");
  EXPECT_EQ(refusal_of({.student = "h.0", .teacher = "h.2.atn"}),
            place + "the teacher has no module h.2.atn; did you mean h.2.attn?");
  EXPECT_EQ(refusal_of({.student = "attn", .teacher = "h.0"}),
            place +
                "the trained model has several modules attn, as transformer.h.0.attn and "
                "transformer.h.1.attn; give the whole name of one");
  EXPECT_EQ(refusal_of({.student = "h", .teacher = "h.0"}),
            place +
                "transformer.h of the trained model only holds other modules, and has no output; "
                "name one of those");
  EXPECT_EQ(refusal_of({.student = "h.0", .teacher = "h.0"}, 12),
            place +
                "the output of transformer.h.0 is 8 wide and that of the teacher's transformer.h.0 "
                "is 12 wide; they are compared number by number, so name modules of one width");
  EXPECT_EQ(refusal_of({.student = "wpe", .teacher = "h.0"}),
            place +
                "the output of transformer.wpe of the trained model has the shape [4, 8], without "
                "a row for each token");
}

}  // namespace
}  // namespace tessera::tasks
