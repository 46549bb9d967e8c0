// Buffers of modules: names, order, refusals, new values, recomputed forwards, values on `meta`.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

using Values = std::vector<double>;

// Counts its calls, and adds a table that it shares with the others.
class CountingLayerImpl : public nn::Module {
 public:
  explicit CountingLayerImpl(const Tensor& table) {
    register_parameter("weight", nn::make_parameter({2}, nn::constant(3)));
    register_buffer("calls", nn::make_buffer({1}, nn::constant(0)));
    register_buffer("table", table, false);
  }
  Tensor forward(const Tensor& x) {
    set_buffer("calls", buffer("calls") + 1.0);
    return x * parameter("weight") + buffer("table");
  }
  using nn::Module::buffer;
  using nn::Module::register_buffer;
  using nn::Module::set_buffer;
};
TESSERA_MODULE(CountingLayer);

struct CountedNet : nn::Module {
  CountedNet() {
    const Tensor table = Tensor::from({1.f, 2.f}, {2});
    std::vector<CountingLayer> list;
    for (int i = 0; i < 2; ++i) list.emplace_back(table);
    parts = register_module("parts", nn::ModuleList<CountingLayer>(std::move(list)));
  }
  Tensor forward(const Tensor& x) const { return (*parts)[1]((*parts)[0](x)); }
  nn::ModuleList<CountingLayer> parts;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Buffers, HaveNamesInOrderAndEachTensorOnce) {
  const CountedNet net;
  const std::vector<nn::NamedBuffer> buffers = net.named_buffers();
  ASSERT_EQ(buffers.size(), 3u);
  EXPECT_EQ(buffers[0].name, "parts.0.calls");
  EXPECT_EQ(buffers[1].name, "parts.0.table");
  EXPECT_EQ(buffers[2].name, "parts.1.calls");
  EXPECT_TRUE(buffers[0].persistent);
  EXPECT_FALSE(buffers[1].persistent);
  EXPECT_EQ(net.named_parameters().size(), 2u);
}

TEST(Buffers, GetNewValuesInTheSameMemoryAndOutsideTheGraph) {
  const CountedNet net;
  const CountingLayer part = (*net.parts)[0];
  const std::byte* const memory = part->buffer("calls").raw_data();
  const Tensor x = Tensor::from({1.f, 1.f}, {2}).set_requires_grad(true);
  (void)net.forward(x);
  EXPECT_EQ(part->buffer("calls").to_vector(), Values{1});
  part->set_buffer("calls", reshape(sum(x * x), {1}));
  EXPECT_EQ(part->buffer("calls").to_vector(), Values{2});
  EXPECT_EQ(part->buffer("calls").raw_data(), memory);
  EXPECT_FALSE(part->buffer("calls").requires_grad());
  part->set_buffer("calls", Tensor::from({5.0}, {1}));  // float64
  EXPECT_EQ(part->buffer("calls").to_vector(), Values{5});
  EXPECT_EQ(part->buffer("calls").dtype(), float32);
}

TEST(Buffers, AreUpdatedOnceByARecomputedForward) {
  const CountedNet net;
  const CountingLayer part = (*net.parts)[0];
  part->set_recompute(RecomputeOptions{});
  const Tensor x = Tensor::from({1.f, 1.f}, {2}).set_requires_grad(true);
  sum(net.forward(x)).backward();
  EXPECT_EQ(x.grad().to_vector(), (Values{9, 9}));
  EXPECT_EQ(part->buffer("calls").to_vector(), Values{1});
}

// The product's gradient needs the values that the forward read.
TEST(Buffers, AWriteBeforeTheBackwardThatNeedsThemIsFound) {
  const CountingLayer part(Tensor::from({1.f, 2.f}, {2}));
  const Tensor x = Tensor::from({1.f, 1.f}, {2}).set_requires_grad(true);
  const Tensor read = sum(x * part->buffer("table"));
  const Tensor copied = sum(x * part->buffer("table").clone());
  part->set_buffer("table", Tensor::from({3.f, 4.f}, {2}));
  EXPECT_THROW(read.backward(), std::logic_error);
  copied.backward();
  EXPECT_EQ(x.grad().to_vector(), (Values{1, 2}));
}

TEST(Buffers, BadRegistrationsAndValuesAreRefused) {
  const CountingLayer part(Tensor::from({1.f, 2.f}, {2}));
  const Tensor one = Tensor::zeros({1});
  const auto registered = [&](const std::string& name, const Tensor& tensor) {
    return testing::misuse_of([&] { part->register_buffer(name, tensor); });
  };
  EXPECT_TRUE(has(registered("", one), "buffer name \"\" of CountingLayer is empty or has a dot"));
  EXPECT_TRUE(
      has(registered("a.b", one), "buffer name \"a.b\" of CountingLayer is empty or has a dot"));
  EXPECT_TRUE(
      has(registered("weight", one), "CountingLayer has a parameter or a buffer weight already"));
  EXPECT_TRUE(
      has(registered("calls", one), "CountingLayer has a parameter or a buffer calls already"));
  EXPECT_TRUE(has(registered("new", {}), "buffer new of CountingLayer is undefined"));
  EXPECT_TRUE(has(registered("new", Tensor::zeros({1}).set_requires_grad(true)),
                  "buffer new of CountingLayer requires a gradient"));
  EXPECT_TRUE(has(testing::misuse_of([&] { part->set_buffer("calls", Tensor::zeros({2})); }),
                  "buffer calls of CountingLayer has the shape [1], and the new value [2]"));
  EXPECT_TRUE(has(testing::misuse_of([&] { part->set_buffer("calls", {}); }), "is undefined"));
  EXPECT_TRUE(has(testing::misuse_of([&] { (void)part->buffer("nothing"); }),
                  "CountingLayer has no buffer nothing"));
  EXPECT_EQ(part->own_buffers().size(), 2u);
}

TEST(Buffers, OnMetaHaveAnInitializer) {
  manual_seed(5);
  const Tensor real = nn::make_buffer({3}, nn::normal(0, 1));
  manual_seed(5);
  const DeviceGuard meta(Device::meta());
  const Tensor deferred = nn::make_buffer({3}, nn::normal(0, 1));
  EXPECT_TRUE(deferred.is_meta());
  EXPECT_FALSE(real.requires_grad());
  ASSERT_NE(deferred.impl()->initializer, nullptr);
  Tensor later = Tensor::empty({3}, float32, Device::cpu());
  deferred.impl()->initializer->fill(later.data(), float32, 0, 3);
  EXPECT_EQ(later.to_vector(), real.to_vector());
}

}  // namespace
}  // namespace tessera
