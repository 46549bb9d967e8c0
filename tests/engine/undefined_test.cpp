// Using an undefined tensor or module, or integers where floating-point values are required, is a
// logic_error that names the op, never a null pointer.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "engine/ops.h"
#include "engine/ops/cache.h"
#include "engine/ops/products/grouped.h"
#include "engine/tensor_ops.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

struct NamedCall {
  std::string op;  // as at the start of its errors
  std::function<void(const Tensor&)> call;
};

Sequences one_sequence(std::int32_t rows) {
  return {.starts = Tensor::from({0}, {1}),
          .lengths = Tensor::from({rows}, {1}),
          .slots = Tensor::zeros({rows}, int32),
          .longest = rows,
          .capacity = rows};
}

// Every op with floating-point inputs, each of which is taken from the argument in turn.
std::vector<NamedCall> floating_calls() {
  const Tensor x = Tensor::full({2, 4}, 0.5);
  const Tensor w = Tensor::full({4, 4}, 0.5);
  const Tensor row = Tensor::full({4}, 0.5);
  const Tensor batch = Tensor::full({1, 2, 4}, 0.5);
  const Tensor targets = Tensor::from({1, 0}, {2});
  const Sequences sequences = one_sequence(2);
  const RowGroups groups = group_rows(Tensor::from({0, 0}, {2, 1}), 1);
  const WeightLayout layout = WeightLayout::out_in;
  return {
      {"add", [=](const Tensor& t) { (void)(t + x); }},
      {"add", [=](const Tensor& t) { (void)(x + t); }},
      {"subtract", [=](const Tensor& t) { (void)(x - t); }},
      {"multiply", [=](const Tensor& t) { (void)(t * x); }},
      {"divide", [=](const Tensor& t) { (void)(x / t); }},
      {"affine", [](const Tensor& t) { (void)affine(t, 2); }},
      {"negate", [](const Tensor& t) { (void)-t; }},
      {"add", [](const Tensor& t) { (void)(1.0 + t); }},
      {"subtract", [](const Tensor& t) { (void)(t - 1.0); }},
      {"subtract", [](const Tensor& t) { (void)(1.0 - t); }},
      {"multiply", [](const Tensor& t) { (void)(2.0 * t); }},
      {"divide", [](const Tensor& t) { (void)(t / 2.0); }},
      {"divide", [](const Tensor& t) { (void)(2.0 / t); }},
      {"relu", [](const Tensor& t) { (void)relu(t); }},
      {"tanh", [](const Tensor& t) { (void)tanh(t); }},
      {"sigmoid", [](const Tensor& t) { (void)sigmoid(t); }},
      {"silu", [](const Tensor& t) { (void)silu(t); }},
      {"exp", [](const Tensor& t) { (void)exp(t); }},
      {"log", [](const Tensor& t) { (void)log(t); }},
      {"sqrt", [](const Tensor& t) { (void)sqrt(t); }},
      {"square", [](const Tensor& t) { (void)square(t); }},
      {"gelu", [](const Tensor& t) { (void)gelu(t, false); }},
      {"sum", [](const Tensor& t) { (void)sum(t); }},
      {"mean", [](const Tensor& t) { (void)mean(t); }},
      {"softmax", [](const Tensor& t) { (void)softmax(t); }},
      {"matmul", [=](const Tensor& t) { (void)matmul(x, t); }},
      {"linear", [=](const Tensor& t) { (void)linear(t, w); }},
      {"linear", [=](const Tensor& t) { (void)linear(x, t); }},
      {"bias_gelu_linear",
       [=](const Tensor& t) { (void)bias_gelu_linear(t, {}, w, {}, layout, true); }},
      {"swiglu_linear", [=](const Tensor& t) { (void)swiglu_linear(x, t, w, layout); }},
      {"layer_norm", [](const Tensor& t) { (void)layer_norm(t, {}, {}); }},
      {"rms_norm", [](const Tensor& t) { (void)rms_norm(t, {}); }},
      {"add_layer_norm", [=](const Tensor& t) { (void)add_layer_norm(x, t, {}, {}); }},
      {"add_rms_norm", [=](const Tensor& t) { (void)add_rms_norm(t, x, {}); }},
      {"dropout", [](const Tensor& t) { (void)dropout(t, 0.5); }},
      {"attention", [=](const Tensor& t) { (void)attention(batch, batch, t, {}); }},
      {"packed_attention", [](const Tensor& t) { (void)packed_attention(t, {}); }},
      {"distance_bias", [](const Tensor& t) { (void)distance_bias(t, 1, 1); }},
      {"sequence_attention",
       [=](const Tensor& t) { (void)sequence_attention(x, t, x, sequences, {}); }},
      {"sequence_dropout", [=](const Tensor& t) { (void)sequence_dropout(t, 0.5, sequences); }},
      {"pool_sequences",
       [=](const Tensor& t) { (void)pool_sequences(t, sequences, {PoolingMode::mean}); }},
      {"normalize_rows", [](const Tensor& t) { (void)normalize_rows(t); }},
      {"rotary", [=](const Tensor& t) { (void)rotary(t, 1, w, w); }},
      {"cross_entropy", [=](const Tensor& t) { (void)cross_entropy(t, targets); }},
      {"linear_cross_entropy", [=](const Tensor& t) { (void)linear_cross_entropy(t, w, targets); }},
      {"decode_linear",
       [=](const Tensor& t) {
         const NoGradGuard no_grad;
         (void)decode_linear(t, w, {}, layout);
       }},
      {"embedding", [=](const Tensor& t) { (void)embedding(targets, t); }},
      {"minimum", [=](const Tensor& t) { (void)minimum(x, t); }},
      {"maximum", [=](const Tensor& t) { (void)maximum(t, x); }},
      {"pow", [=](const Tensor& t) { (void)pow(t, x); }},
      {"pow", [](const Tensor& t) { (void)pow(t, 2); }},
      {"abs", [](const Tensor& t) { (void)abs(t); }},
      {"reciprocal", [](const Tensor& t) { (void)reciprocal(t); }},
      {"rsqrt", [](const Tensor& t) { (void)rsqrt(t); }},
      {"sin", [](const Tensor& t) { (void)sin(t); }},
      {"cos", [](const Tensor& t) { (void)cos(t); }},
      {"softplus", [](const Tensor& t) { (void)softplus(t); }},
      {"clamp", [](const Tensor& t) { (void)clamp(t, 0); }},
      {"sign", [](const Tensor& t) { (void)sign(t); }},
      {"sum", [](const Tensor& t) { (void)sum(t, 0); }},
      {"mean", [](const Tensor& t) { (void)mean(t, 0); }},
      {"max", [](const Tensor& t) { (void)max(t); }},
      {"min", [](const Tensor& t) { (void)min(t); }},
      {"argmax", [](const Tensor& t) { (void)argmax(t); }},
      {"argmin", [](const Tensor& t) { (void)argmin(t); }},
      {"variance", [](const Tensor& t) { (void)variance(t); }},
      {"logsumexp", [](const Tensor& t) { (void)logsumexp(t, 0); }},
      {"norm", [](const Tensor& t) { (void)norm(t); }},
      {"softmax", [](const Tensor& t) { (void)softmax(t, 0); }},
      {"log_softmax", [](const Tensor& t) { (void)log_softmax(t); }},
      {"cumulative_sum", [](const Tensor& t) { (void)cumulative_sum(t, 0); }},
      {"scatter_add",
       [=](const Tensor& t) {
         (void)scatter_add(t, 0, Tensor::zeros({2, 4}, int32), x);
       }},
      {"sort", [](const Tensor& t) { (void)sort(t); }},
      {"topk", [](const Tensor& t) { (void)topk(t, 1); }},
      {"argsort", [](const Tensor& t) { (void)argsort(t); }},
      {"matmul", [=](const Tensor& t) { (void)matmul(t, x, {.b = true}); }},
      {"dispatch_rows", [=](const Tensor& t) { (void)dispatch_rows(t, groups); }},
      {"combine_rows", [=](const Tensor& t) { (void)combine_rows(t, groups); }},
      {"grouped_linear", [=](const Tensor& t) { (void)grouped_linear(t, std::vector{w}, groups); }},
      {"grouped_linear", [=](const Tensor& t) { (void)grouped_linear(x, std::vector{t}, groups); }},
      {"grouped_linear",
       [=](const Tensor& t) { (void)grouped_linear(x, t, {}, groups, WeightLayout::out_in); }},
      {"grouped_swiglu_linear",
       [=](const Tensor& t) { (void)grouped_swiglu_linear(x, t, std::vector{w}, groups); }},
      {"einsum",
       [=](const Tensor& t) {
         (void)einsum("ij,kj->ik", {x, t});
       }},
      {"mse_loss", [=](const Tensor& t) { (void)mse_loss(x, t); }},
      {"l1_loss", [=](const Tensor& t) { (void)l1_loss(t, x); }},
      {"huber_loss", [=](const Tensor& t) { (void)huber_loss(x, t); }},
      {"bce_with_logits", [=](const Tensor& t) { (void)bce_with_logits(t, x); }},
      {"kl_div", [=](const Tensor& t) { (void)kl_div(x, t); }},
      {"cross_entropy",
       [=](const Tensor& t) { (void)cross_entropy(t, targets, CrossEntropyOptions{}); }},
  };
}

TEST(UndefinedTensors, AreRefusedByEveryOpWithItsName) {
  const auto others = std::vector<NamedCall>{
      {"cast", [](const Tensor& t) { (void)cast(t, float64); }},
      {"reshape",
       [](const Tensor& t) {
         (void)reshape(t, {2, -1});
       }},
      {"reshape", [](const Tensor& t) { (void)reshape(t, Shape{2}); }},
      {"concatenate",
       [](const Tensor& t) {
         (void)concatenate({Tensor::zeros({1}), t});
       }},
      {"embedding",
       [](const Tensor& t) {
         (void)embedding(t, Tensor::zeros({2, 2}));
       }},
      {"cross_entropy",
       [](const Tensor& t) {
         (void)cross_entropy(Tensor::zeros({2, 2}), t);
       }},
      {"linear_cross_entropy",
       [](const Tensor& t) {
         (void)linear_cross_entropy(Tensor::zeros({2, 2}), Tensor::zeros({2, 2}), t);
       }},
      {"permute", [](const Tensor& t) { (void)permute(t, {0}); }},
      {"transpose", [](const Tensor& t) { (void)transpose(t); }},
      {"slice", [](const Tensor& t) { (void)slice(t, 0, 0); }},
      {"narrow", [](const Tensor& t) { (void)narrow(t, 0, 0, 1); }},
      {"select", [](const Tensor& t) { (void)select(t, 0, 0); }},
      {"split", [](const Tensor& t) { (void)split(t, 1); }},
      {"chunk", [](const Tensor& t) { (void)chunk(t, 1); }},
      {"concatenate",
       [](const Tensor& t) {
         (void)concatenate({Tensor::zeros({1}), t}, 0);
       }},
      {"stack",
       [](const Tensor& t) {
         (void)stack({Tensor::zeros({1}), t});
       }},
      {"expand", [](const Tensor& t) { (void)expand(t, {2}); }},
      {"squeeze", [](const Tensor& t) { (void)squeeze(t, 0); }},
      {"unsqueeze", [](const Tensor& t) { (void)unsqueeze(t, 0); }},
      {"pad",
       [](const Tensor& t) {
         (void)pad(t, {{1, 1}});
       }},
      {"equal", [](const Tensor& t) { (void)equal(Tensor::zeros({1}), t); }},
      {"less", [](const Tensor& t) { (void)less(t, 1); }},
      {"logical_not", [](const Tensor& t) { (void)logical_not(t); }},
      {"where", [](const Tensor& t) { (void)where(t, Tensor::zeros({1}), Tensor::zeros({1})); }},
      {"masked_fill", [](const Tensor& t) { (void)masked_fill(Tensor::zeros({1}), t, 0); }},
      {"index_select", [](const Tensor& t) { (void)index_select(Tensor::zeros({1}), 0, t); }},
      {"gather", [](const Tensor& t) { (void)gather(t, 0, Tensor::zeros({1}, int32)); }},
      {"group_rows", [](const Tensor& t) { (void)group_rows(t, 2); }},
      {"one_hot", [](const Tensor& t) { (void)one_hot(t, 2); }},
      {"cached_attention",
       [](const Tensor& t) {
         const NoGradGuard no_grad;
         (void)cached_attention(t, 2, {}, {});
       }},
  };
  std::vector<NamedCall> calls = floating_calls();
  calls.insert(calls.end(), others.begin(), others.end());
  for (const auto& [op, call] : calls) {
    const std::string message = testing::misuse_of([&, &call = call] { call(Tensor()); });
    EXPECT_EQ(message.find(op + ": "), 0u) << op << ": " << message;
    EXPECT_NE(message.find("undefined tensor"), std::string::npos) << op << ": " << message;
  }
}

TEST(UndefinedTensors, AreRefusedByEveryMethodWithItsName) {
  const std::vector<std::pair<std::string, std::function<void(Tensor&)>>> methods{
      {"shape", [](Tensor& t) { (void)t.shape(); }},
      {"size", [](Tensor& t) { (void)t.size(0); }},
      {"dimensions", [](Tensor& t) { (void)t.dimensions(); }},
      {"elements", [](Tensor& t) { (void)t.elements(); }},
      {"elements", [](Tensor& t) { (void)t.bytes(); }},
      {"dtype", [](Tensor& t) { (void)t.dtype(); }},
      {"device", [](Tensor& t) { (void)t.device(); }},
      {"device", [](Tensor& t) { (void)t.is_meta(); }},
      {"storage", [](Tensor& t) { (void)t.storage(); }},
      {"", [](Tensor& t) { (void)t.data(); }},
      {"dtype", [](Tensor& t) { (void)t.data_as<float>(); }},
      {"elements", [](Tensor& t) { (void)t.item(); }},
      {"to_vector", [](Tensor& t) { (void)t.to_vector(); }},
      {"requires_grad", [](Tensor& t) { (void)t.requires_grad(); }},
      {"set_requires_grad", [](Tensor& t) { t.set_requires_grad(true); }},
      {"grad", [](Tensor& t) { (void)t.grad(); }},
      {"zero_grad", [](Tensor& t) { t.zero_grad(); }},
      {"backward", [](Tensor& t) { t.backward(); }},
      {"detach", [](Tensor& t) { (void)t.detach(); }},
      {"clone", [](Tensor& t) { (void)t.clone(); }},
      {"copy_from", [](Tensor& t) { t.copy_from(Tensor::zeros({1})); }},
      {"copy_from", [](Tensor& t) { Tensor::zeros({1}).copy_from(t); }},
      {"device", [](Tensor& t) { (void)t.to(Device::cpu()); }},
      {"register_hook", [](Tensor& t) { t.register_hook([](const Tensor&) {}); }},
  };
  for (const auto& [name, method] : methods) {
    Tensor undefined;
    Tensor moved_from = Tensor::zeros({2});
    Tensor* const left = &moved_from;
    (void)Tensor(std::move(moved_from));
    for (Tensor* tensor : {&undefined, left}) {
      const std::string message = testing::misuse_of([&, &method = method] { method(*tensor); });
      EXPECT_NE(message.find("undefined tensor"), std::string::npos) << name << ": " << message;
      if (!name.empty()) {
        EXPECT_EQ(message.find(name + "() of"), 0u) << name << ": " << message;
      }
    }
  }
}

TEST(IntegerTensors, AreRefusedByEveryFloatingOpWithItsName) {
  const std::vector<Tensor> integers{Tensor::from({1, 0, 1, 0, 1, 0, 1, 0}, {2, 4}),
                                     Tensor::zeros({2, 4}, int64), Tensor::zeros({2, 4}, uint8)};
  for (const auto& [op, call] : floating_calls()) {
    for (const Tensor& x : integers) {
      const std::string message = testing::misuse_of([&, &call = call] { call(x); });
      EXPECT_EQ(message.find(op + ": "), 0u) << op << ": " << message;
      EXPECT_NE(message.find(std::string(name_of(x.dtype()))), std::string::npos)
          << op << ": " << message;
    }
    // On `meta`, where no kernel checks them.
    const std::string message = testing::misuse_of([&, &call = call] {
      call(Tensor::empty({2, 4}, int32, Device::meta()));
    });
    EXPECT_EQ(message.find(op + ": "), 0u) << op << ": " << message;
  }
}

class NothingToTakeImpl : public nn::Module {
 public:
  Tensor forward(const Tensor& x) const { return x; }
};
TESSERA_MODULE(NothingToTake);

class WidthImpl : public nn::Module {
 public:
  explicit WidthImpl(std::int64_t width) : width_(width) {}
  Tensor forward(const Tensor& x) const { return x * static_cast<double>(width_); }

 private:
  std::int64_t width_;
};
TESSERA_MODULE(Width);

TEST(EmptyHandles, NameTheirClassAndHowToMakeOne) {
  const Tensor x = Tensor::zeros({1});
  const NothingToTake empty;
  const Width width;
  EXPECT_EQ(testing::misuse_of([&] { (void)empty(x); }),
            "an empty handle of NothingToTake is used: a default-constructed handle has no module; "
            "make one by NothingToTake(std::make_shared<NothingToTakeImpl>())");
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { (void)width(x); }, [&] { (void)width->forward(x); },
           [&] { (void)(*width).forward(x); },
           [&] { (void)width.call([&](WidthImpl& module) { return module.forward(x); }); }}) {
    EXPECT_EQ(testing::misuse_of(use).find("an empty handle of Width is used"), 0u);
    EXPECT_NE(testing::misuse_of(use).find("make one by Width(...)"), std::string::npos);
  }
  EXPECT_FALSE(width);
  EXPECT_EQ(width.pointer(), nullptr);
}

TEST(EmptyHandles, AndListsAreNotReadBeyondTheirEnd) {
  const nn::ModuleList<Width> list(std::vector<Width>{Width(2)});
  EXPECT_EQ((*list)[0](Tensor::full({1}, 3)).item(), 6);
  EXPECT_EQ(testing::misuse_of([&] { (void)(*list)[1]; }), "module 1 of a list of 1");
}

}  // namespace
}  // namespace tessera
