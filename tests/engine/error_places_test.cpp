// Errors name the op in the program's source, and the module in whose call it was.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "engine/ops.h"
#include "engine/recompute.h"

namespace tessera {
namespace {

std::string what_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was refused";
}

class MlpImpl : public nn::Module {
 public:
  explicit MlpImpl(std::int64_t width) { up = register_module("up", nn::Linear(width, width)); }
  Tensor forward(const Tensor& x) const { return tanh(up(x)) - offset; }
  nn::Linear up;
  Tensor offset = Tensor::zeros({1});
};
TESSERA_MODULE(Mlp);

class LayerImpl : public nn::Module {
 public:
  explicit LayerImpl(std::int64_t width) { mlp = register_module("mlp", Mlp(width)); }
  Tensor forward(const Tensor& x) const {
    const Tensor y = mlp(x);
    return y + Tensor::zeros({wrong_size});
  }
  Mlp mlp;
  std::int64_t wrong_size = 1;
};
TESSERA_MODULE(Layer);

struct Model : nn::Module {
  Model()
      : words(register_module("words", nn::Embedding(5, 3))),
        h(register_module("h", nn::ModuleList<Layer>(std::vector<Layer>{Layer(3), Layer(3)}))) {}
  Tensor forward(const Tensor& x) const { return (*h)[1]((*h)[0](x)); }
  nn::Embedding words;
  nn::ModuleList<Layer> h;
};

TEST(ErrorPlaces, NameTheOpAsInTheProgram) {
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_EQ(
      what_of([&] {
        (void)(x - Tensor::zeros({2, 3}, bfloat16));
      }),
      "subtract: dtypes float32 of shape [2, 3] and bfloat16 of shape [2, 3] differ; cast one "
      "of them with cast(tensor, dtype)");
  EXPECT_EQ(what_of([&] { (void)(x * Tensor::zeros({2})); }),
            "multiply: shapes [2, 3] and [2] do not broadcast; aligned at their ends, sizes must "
            "be equal or 1");
  const Tensor leaf = Tensor::zeros({1}).set_requires_grad(true);
  for (const auto& [name, op] : std::vector<std::pair<std::string, Tensor (*)(const Tensor&)>>{
           {"tanh", [](const Tensor& t) { return tanh(t); }},
           {"gelu", [](const Tensor& t) { return gelu(t); }},
           {"negate", [](const Tensor& t) { return -t; }},
           {"mean", [](const Tensor& t) { return mean(t); }},
           {"layer_norm", [](const Tensor& t) { return layer_norm(t, {}, {}); }},
           {"rms_norm", [](const Tensor& t) { return rms_norm(t, {}); }},
           {"add_rms_norm", [](const Tensor& t) { return add_rms_norm(t, t, {}).first; }}}) {
    const Tensor y = op(leaf);
    y.backward();
    EXPECT_EQ(
        what_of([&, &y = y] { y.backward(); }).find("backward() a second time through " + name),
        0u);
  }
}

TEST(ErrorPlaces, NameTheModuleWhoseCallIsOpen) {
  Model model;
  const Tensor x = Tensor::zeros({2, 3});
  (*model.h)[1]->mlp->offset = Tensor::zeros({1}, bfloat16);
  EXPECT_EQ(
      what_of([&] { (void)model.forward(x); }),
      "subtract: dtypes float32 of shape [2, 3] and bfloat16 of shape [1] differ; cast one of "
      "them with cast(tensor, dtype) (in h.1.mlp, of class Mlp)");
  // A module whose call has returned is not the place of the error.
  (*model.h)[0]->wrong_size = 2;
  EXPECT_EQ(what_of([&] { (void)model.forward(x); }),
            "add: shapes [2, 3] and [2] do not broadcast; aligned at their ends, sizes must be "
            "equal or 1 (in h.0, of class Layer)");
  EXPECT_EQ(what_of([&] {
              (void)model.forward(Tensor::zeros({2, 4}));
            }),
            "linear: x has 4 features, the weight of shape [3, 3] takes 3 (in h.0.mlp.up, of "
            "class Linear)");
  // A root that is called through its handle has only its class name.
  const Mlp alone(3);
  EXPECT_NE(what_of([&] { (void)alone(Tensor()); }).find("(in up, of class Linear)"),
            std::string::npos);
  alone->offset = Tensor();
  EXPECT_NE(what_of([&] { (void)alone(x); }).find(" (in the root module, of class Mlp)"),
            std::string::npos);
  // Outside of all calls there is no place.
  EXPECT_EQ(what_of([&] { (void)(x + Tensor::zeros({2})); }),
            "add: shapes [2, 3] and [2] do not broadcast; aligned at their ends, sizes must be "
            "equal or 1");
}

TEST(ErrorPlaces, BadDataHasAPlaceTooAndOtherErrorsAreUnchanged) {
  const Model model;
  try {
    (void)model.words(Tensor::from({7}, {1}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    EXPECT_NE(std::string(error.what()).find(" (in words, of class Embedding)"), std::string::npos)
        << error.what();
  }
  const ModulePlace place(
      std::make_shared<ModulePosition>(ModulePosition{"words", "Embedding", {}}));
  EXPECT_EQ(what_of([] { fail(ErrorCode::rank_failed, "rank 1 died"); }), "rank 1 died");
  EXPECT_EQ(what_of([] { misuse("wrong"); }), "wrong (in words, of class Embedding)");
}

TEST(ErrorPlaces, InBackwardTheyAreTheCallsThatBuiltTheGraph) {
  Model model;
  const Layer& layer = (*model.h)[0];
  for (const bool recomputed : {false, true}) {
    layer->set_recompute(recomputed ? std::optional(RecomputeOptions{}) : std::nullopt);
    const Tensor x = Tensor::zeros({2, 3}).set_requires_grad(true);
    const Tensor y = layer(x);
    Tensor(layer->mlp->up->weight()).copy_from(Tensor::zeros({3, 3}));
    const std::string message = what_of([&] { sum(y).backward(); });
    EXPECT_NE(message.find("(in the backward of h.0.mlp.up, of class Linear)"), std::string::npos)
        << message;
  }
}

// A module that is registered twice has its first name; one whose parent has been destroyed has its
// own.
TEST(ErrorPlaces, PathsFollowTheRegistrations) {
  const Mlp mlp(3);
  struct Twice : nn::Module {
    explicit Twice(const Mlp& shared) {
      register_module("first", shared);
      register_module("second", shared);
    }
  };
  {
    const Twice twice(mlp);
    EXPECT_EQ(mlp->position()->path(), "first");
    EXPECT_EQ(static_cast<nn::Module&>(*mlp->up).position()->describe(),
              "first.up, of class Linear");
  }
  EXPECT_EQ(static_cast<nn::Module&>(*mlp->up).position()->path(), "first.up");
  const Layer layer(3);
  struct Stands : nn::Module {
    explicit Stands(const Layer& other) { register_children_of(*other); }
  };
  struct Root : nn::Module {
    explicit Root(std::shared_ptr<Stands> stands) {
      register_module("stands", nn::ModuleHandle<Stands>(std::move(stands)));
    }
  };
  const Root root(std::make_shared<Stands>(layer));
  EXPECT_EQ(static_cast<nn::Module&>(*layer->mlp).position()->path(), "stands.mlp");
}

}  // namespace
}  // namespace tessera
