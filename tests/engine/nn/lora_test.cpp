// Adapters on linear layers: which layers get one, their outputs, and which parameters are trained.
#include "engine/nn/lora.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/optim/optimizer.h"
#include "engine/random.h"
#include "support/errors.h"

namespace tessera {
namespace {

using Names = std::vector<std::string>;

constexpr std::int64_t lora_width = 6;

class LoraBlockImpl : public nn::Module {
 public:
  LoraBlockImpl() {
    q_proj_ = register_module("q_proj", nn::Linear(lora_width, lora_width));
    up_q_proj_ = register_module(
        "up_q_proj",
        nn::Linear(lora_width, lora_width, nn::LinearOptions{.layout = WeightLayout::in_out}));
    norm_ = register_module("norm", nn::LayerNorm(lora_width));
  }
  Tensor forward(const Tensor& x) const { return up_q_proj_(norm_(q_proj_(x))); }

 private:
  nn::Linear q_proj_, up_q_proj_;
  nn::LayerNorm norm_;
};
TESSERA_MODULE(LoraBlock);

class LoraNet : public nn::Module {
 public:
  LoraNet() {
    tokens_ = register_module("tokens", nn::Embedding(5, lora_width));
    first_ = register_module("first", LoraBlock(std::make_shared<LoraBlockImpl>()));
    second_ = register_module("second", LoraBlock(std::make_shared<LoraBlockImpl>()));
    lm_head_ = register_module("lm_head", nn::Linear(lora_width, 3));
    reads_parameter(tokens_->weight());
  }
  Tensor forward(const Tensor& x) const { return lm_head_(second_(first_(x))); }

 private:
  nn::Embedding tokens_;
  LoraBlock first_, second_;
  nn::Linear lm_head_;
};

Names targets(const LoraOptions& options) {
  LoraNet net;
  return lora_targets(net, options);
}

Error error_of(const LoraOptions& options) {
  try {
    targets(options);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was refused";
  return {ErrorCode::runtime, ""};
}

TEST(LoraTargets, AreMatchedAsPeftDoes) {
  // A target is a layer's name or its end after a dot: q_proj does not match up_q_proj.
  EXPECT_EQ(targets({.target_modules = {"q_proj"}}), (Names{"first.q_proj", "second.q_proj"}));
  EXPECT_EQ(targets({.target_modules = {"second.q_proj", "lm_head"}}),
            (Names{"second.q_proj", "lm_head"}));
  // A pattern must match the whole name.
  EXPECT_EQ(targets({.target_pattern = R"(.*\.(up_)?q_proj)"}).size(), 4u);
  EXPECT_EQ(targets({.target_pattern = R"(first\..*)"}),
            (Names{"first.q_proj", "first.up_q_proj"}));
  const Names all{"first.q_proj", "first.up_q_proj", "second.q_proj", "second.up_q_proj"};
  EXPECT_EQ(targets({.target_pattern = "all-linear"}), all);
}

TEST(LoraTargets, UnknownTargetsAreRefusedWithTheExistingNames) {
  const Error misspelt = error_of({.target_modules = {"q_proj", "qproj"}});
  EXPECT_EQ(misspelt.code(), ErrorCode::configuration);
  EXPECT_EQ(std::string(misspelt.what()),
            "LoRA: no linear layer is called \"qproj\"; there are lm_head, q_proj, up_q_proj");
  EXPECT_NE(std::string(error_of({.target_modules = {"tokens"}}).what())
                .find("tokens is of class Embedding, and adapters are for linear layers"),
            std::string::npos);
  EXPECT_NE(std::string(error_of({.target_pattern = "q_proj"}).what())
                .find("no linear layer's whole name matches \"q_proj\""),
            std::string::npos);
  EXPECT_NE(std::string(error_of({.target_pattern = "(q"}).what()).find("not a regular expression"),
            std::string::npos);
}

TEST(Lora, StartsLikePeftsAndChangesNothing) {
  manual_seed(3);
  nn::Linear layer(50, 40);
  const Tensor x = Tensor::full({2, 50}, 0.5);
  const std::vector<double> before = layer(x).to_vector();
  layer->add_lora({.rank = 4, .alpha = 8});
  EXPECT_EQ(layer(x).to_vector(), before);
  // Kaiming's uniform initialisation with a = sqrt(5) is uniform in +-1/sqrt(in).
  const double bound = 1 / std::sqrt(50.0);
  double largest = 0;
  for (const double value : layer->lora_a()->weight().to_vector()) {
    EXPECT_LE(std::fabs(value), bound);
    largest = std::max(largest, std::fabs(value));
  }
  EXPECT_GT(largest, 0.95 * bound);
  EXPECT_EQ(layer->lora_a()->weight().shape(), (Shape{4, 50}));
  EXPECT_EQ(layer->lora_b()->weight().shape(), (Shape{40, 4}));
  for (const double value : layer->lora_b()->weight().to_vector()) EXPECT_EQ(value, 0);
  EXPECT_DOUBLE_EQ(layer->lora_scaling(), 2.0);
  EXPECT_DOUBLE_EQ((LoraOptions{.rank = 16, .alpha = 8, .rslora = true}.scaling()), 2.0);
  EXPECT_THROW(layer->add_lora({}), std::logic_error);
}

// y = x W + scaling * B A x, for any layout of W.
TEST(Lora, AddsTheScaledProductOfItsFactors) {
  for (const WeightLayout layout : {WeightLayout::out_in, WeightLayout::in_out}) {
    manual_seed(5);
    nn::Linear layer(3, 2, nn::LinearOptions{.layout = layout});
    layer->add_lora({.rank = 1, .alpha = 3});
    const std::vector<float> x{1, -2, 4};
    const Tensor input = Tensor::from(x, {1, 3});
    const std::vector<double> before = layer(input).to_vector();
    Tensor a = layer->lora_a()->weight();
    Tensor b = layer->lora_b()->weight();
    a.copy_from(Tensor::from(std::vector<float>{0.5f, 1, 0.25f}, {1, 3}));
    b.copy_from(Tensor::from(std::vector<float>{2, -1}, {2, 1}));
    const std::vector<double> after = layer(input).to_vector();
    const double low = 0.5 * 1 + 1 * -2 + 0.25 * 4;
    EXPECT_NEAR(after[0] - before[0], 3 * 2 * low, 1e-5);
    EXPECT_NEAR(after[1] - before[1], 3 * -1 * low, 1e-5);
  }
}

TEST(Lora, IsTheOnlyTrainedPartOnceTheRestIsFrozen) {
  manual_seed(5);
  LoraNet net;
  freeze(net);
  EXPECT_EQ(add_lora(net, {.rank = 2, .target_modules = {"q_proj"}}).size(), 2u);
  int trained = 0;
  for (const auto& [name, tensor, shape] : net.named_parameters()) {
    EXPECT_EQ(tensor.requires_grad(), is_lora_parameter(name)) << name;
    trained += tensor.requires_grad() ? 1 : 0;
  }
  EXPECT_EQ(trained, 4);
  optim::AdamW optimizer(net.parameters(), {.lr = 0.1});
  const Tensor x = Tensor::full({4, lora_width}, 0.3);
  const double first = mean(square(net.forward(x))).item();
  for (int step = 0; step < 5; ++step) {
    mean(square(net.forward(x))).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_LT(mean(square(net.forward(x))).item(), first);
  EXPECT_FALSE(is_lora_parameter("first.q_proj.weight"));
  EXPECT_FALSE(is_lora_parameter("mylora_A.weight"));
}

TEST(Lora, PatternsGiveLayersTheirRankAndAlpha) {
  const auto adapted = [](LoraOptions options) {
    manual_seed(5);
    auto net = std::make_unique<LoraNet>();
    options.target_modules = {"q_proj"};
    add_lora(*net, options);
    std::vector<std::pair<std::int64_t, double>> found;
    for (const auto& [name, module] : net->named_modules()) {
      const auto* layer = dynamic_cast<const nn::LinearImpl*>(module);
      if (layer == nullptr || !layer->has_lora()) continue;
      found.emplace_back(layer->lora_a()->weight().size(0), layer->lora_scaling());
    }
    return found;
  };
  using Found = std::vector<std::pair<std::int64_t, double>>;
  EXPECT_EQ(adapted({.rank = 2, .alpha = 4}), (Found{{2, 2}, {2, 2}}));
  EXPECT_EQ(adapted({.rank = 2,
                     .alpha = 4,
                     .rank_pattern = {{"first.q_proj", 8}},
                     .alpha_pattern = {{"f.*_proj", 16}}}),
            (Found{{8, 2}, {2, 2}}));
  const auto refusal = [&](const LoraOptions& options) {
    return testing::error_of([&] { return adapted(options); }, ErrorCode::configuration);
  };
  EXPECT_NE(refusal({.rank_pattern = {{"v_proj", 3}}}).find("matches no layer with an adapter"),
            std::string::npos);
  EXPECT_NE(refusal({.rank_pattern = {{"q_proj", 3}, {"first.*", 4}}}).find("let one pattern"),
            std::string::npos);
  EXPECT_NE(refusal({.alpha_pattern = {{"q_proj", 1e300}}}).find("too much to multiply by"),
            std::string::npos);
}

TEST(Lora, DropsOutOnlyInTraining) {
  manual_seed(5);
  nn::Linear layer(64, 4);
  layer->add_lora({.rank = 2, .dropout = 0.5});
  Tensor b = layer->lora_b()->weight();
  b.copy_from(Tensor::full({4, 2}, 1.0));
  const Tensor x = Tensor::full({1, 64}, 1.0);
  begin_batch({1, 0, 1});
  const auto once = layer(x).to_vector();
  begin_batch({2, 0, 1});
  EXPECT_NE(layer(x).to_vector(), once);
  layer->eval();
  const auto whole = layer(x).to_vector();
  begin_batch({3, 0, 1});
  EXPECT_EQ(layer(x).to_vector(), whole);
}

// Half the bytes and the same rounded values, on meta as in memory; parameters that are used
// elsewhere stay tied.
TEST(Freeze, KeepsParametersInTheGivenDtype) {
  manual_seed(5);
  LoraNet net;
  const std::vector<double> before = net.named_parameters().front().tensor.to_vector();
  freeze(net, bfloat16);
  for (const auto& [name, tensor, shape] : net.named_parameters()) {
    EXPECT_EQ(tensor.dtype(), bfloat16) << name;
    EXPECT_FALSE(tensor.requires_grad()) << name;
  }
  const Tensor table = net.named_parameters().front().tensor;
  EXPECT_EQ(net.parameters_read().front().impl(), table.impl());
  const std::vector<double> after = table.to_vector();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_NEAR(after[i], before[i], std::fabs(before[i]) / 256 + 1e-9);
  }
  manual_seed(5);
  LoraNet kept;
  freeze(kept, bfloat16, {"LoraBlock"});
  for (const auto& [name, tensor, shape] : kept.named_parameters()) {
    const bool below = name.starts_with("first.") || name.starts_with("second.");
    EXPECT_EQ(tensor.dtype(), below ? float32 : bfloat16) << name;
    EXPECT_FALSE(tensor.requires_grad()) << name;
  }
  const DeviceGuard deferred(Device::meta());
  manual_seed(5);
  LoraNet later;
  freeze(later, bfloat16);
  const Tensor drawn = later.named_parameters().front().tensor;
  ASSERT_NE(drawn.impl()->initializer, nullptr);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(drawn.elements()));
  drawn.impl()->initializer->fill(values.data(), bfloat16, 0, drawn.elements());
  EXPECT_EQ(std::memcmp(values.data(), table.data(), table.bytes()), 0);
}

}  // namespace
}  // namespace tessera
