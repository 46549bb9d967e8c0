// Tensors, shapes and storages: construction, views, conversion, and refused operations.
#include "engine/tensor.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/ops.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

using Numbers = std::vector<double>;

TEST(Shape, CountsPrintsAndIndexesFromBothEnds) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.elements(), 24);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[-1], 4);
  EXPECT_EQ(shape.to_string(), "[2, 3, 4]");
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ((Shape{3, 0}).elements(), 0);
  EXPECT_FALSE(shape == (Shape{2, 3}));
  EXPECT_THROW((void)shape[3], std::logic_error);
  EXPECT_THROW((Shape{-1}), std::logic_error);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1}), std::logic_error);
}

TEST(Tensor, HoldsTheGivenValues) {
  EXPECT_EQ(Tensor::from(std::vector<float>{1, 2, 3, 4}, {2, 2}).to_vector(),
            (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(Tensor::zeros({2}).to_vector(), (Numbers{0, 0}));
  EXPECT_EQ(Tensor::full({2}, 2.5, bfloat16).to_vector(), (Numbers{2.5, 2.5}));
  EXPECT_EQ(Tensor::full({2}, 7, int64).to_vector(), (Numbers{7, 7}));
  EXPECT_EQ(Tensor::scalar(-3).item(), -3);
  EXPECT_TRUE(Tensor::empty({0, 3}).to_vector().empty());
  EXPECT_THROW(Tensor::from(std::vector<float>{1, 2}, {3}), std::logic_error);
  EXPECT_THROW((void)Tensor::zeros({2}).item(), std::logic_error);
  EXPECT_THROW((void)Tensor::zeros({2}).data_as<double>(), std::logic_error);
}

TEST(Tensor, CopiesConvert) {
  const Tensor source = Tensor::from(std::vector<float>{1.5f, -2, 1e9f}, {3});
  for (const DType dtype : {float64, bfloat16, float32}) {
    Tensor copy = Tensor::empty({3}, dtype);
    copy.copy_from(source);
    EXPECT_NEAR(copy.to_vector()[2], 1e9, 4e6);
    EXPECT_EQ(copy.to_vector()[0], 1.5);
  }
  const Tensor clone = source.clone();
  EXPECT_NE(clone.data(), source.data());
  EXPECT_EQ(clone.to_vector(), source.to_vector());
  Tensor other = Tensor::empty({2});
  EXPECT_THROW(other.copy_from(source), std::logic_error);
}

TEST(Tensor, GoesToAnotherDevice) {
  const Tensor x = Tensor::from(std::vector<float>{1, 2}, {2});
  EXPECT_EQ(x.to(Device::cpu()).data(), x.data());
  const Tensor meta = x.to(Device::meta());
  EXPECT_TRUE(meta.is_meta());
  EXPECT_EQ(meta.shape(), x.shape());
  EXPECT_THROW((void)meta.to(Device::cpu()), std::logic_error);
}

TEST(Tensor, ViewsShareMemory) {
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  Tensor tail = Tensor::view_of(x.storage(), 4 * sizeof(float), {2}, float32);
  EXPECT_EQ(tail.to_vector(), (Numbers{5, 6}));
  tail.data_as<float>()[0] = 50;
  EXPECT_EQ(reshape(x, {3, 2}).to_vector()[4], 50);
  EXPECT_EQ(x.detach().data(), x.data());
  EXPECT_THROW(Tensor::view_of(x.storage(), 20, {2}, float32), std::logic_error);
}

TEST(Tensor, OnlyFloatingLeavesCanRequireGradients) {
  EXPECT_THROW(Tensor::zeros({2}, int32).set_requires_grad(true), std::logic_error);
  const Tensor x = Tensor::zeros({2}).set_requires_grad(true);
  Tensor y = x * 2.0;
  EXPECT_THROW(y.set_requires_grad(false), std::logic_error);
  EXPECT_FALSE(y.detach().requires_grad());
}

TEST(Tensor, TheDefaultDeviceBelongsToTheThread) {
  const DeviceGuard guard(Device::meta());
  EXPECT_TRUE(Tensor::empty({2}).is_meta());
  std::thread([] { EXPECT_FALSE(Tensor::empty({2}).is_meta()); }).join();
  EXPECT_EQ(Device::meta().to_string(), "meta");
  EXPECT_EQ((Device{DeviceType::cuda, 1}).to_string(), "cuda:1");
}

TEST(Tensor, MetaTensorsHaveNoMemory) {
  const Tensor x = Tensor::empty({1'000'000, 1'000'000}, float32, Device::meta());
  EXPECT_EQ(x.bytes(), 4'000'000'000'000u);
  EXPECT_THROW((void)x.data(), std::logic_error);
  const Tensor y = relu(x) + x;
  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.shape(), x.shape());
}

TEST(Storage, NamesTheParameterWhoseMemoryIsMissing) {
  const auto storage = Storage::lent(8, Device::cpu(), "transformer.h.3");
  EXPECT_FALSE(storage->present());
  try {
    (void)storage->data();
    FAIL() << "memory that is away was handed out";
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("transformer.h.3"), std::string::npos);
  }
}

TEST(Storage, RequestsMissingMemoryAndReportsWrites) {
  const auto storage = Storage::lent(2 * sizeof(float), Device::cpu(), "weights");
  const Tensor source = Tensor::full({2}, 3);
  int asked = 0;
  int written = 0;
  storage->set_observer({.on_missing =
                             [&] {
                               ++asked;
                               storage->attach(source.raw_data());
                             },
                         .on_write = [&](Storage::Write) { ++written; }});
  Tensor x = Tensor::view_of(storage, 0, {2}, float32);
  EXPECT_EQ((x * 2.0).to_vector(), (Numbers{6, 6}));
  EXPECT_EQ(x.to_vector(), (Numbers{3, 3}));
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(written, 0);
  x.copy_from(Tensor::full({2}, 4));
  EXPECT_EQ(written, 1);
  storage->detach();
  EXPECT_EQ((x * 2.0).to_vector(), (Numbers{8, 8}));
  EXPECT_EQ(asked, 2);
}

// Reading values is not a computation: fetching memory for it could be a collective on one rank
// only.
TEST(Storage, ReadingDoesNotRequestMemory) {
  const auto storage = Storage::lent(2 * sizeof(float), Device::cpu(), "weights");
  int asked = 0;
  storage->set_observer({.on_missing = [&] { ++asked; }});
  const Tensor x = Tensor::view_of(storage, 0, {2}, float32);
  Tensor other = Tensor::zeros({2});
  EXPECT_THROW((void)x.to_vector(), std::logic_error);
  EXPECT_THROW((void)x.clone(), std::logic_error);
  EXPECT_THROW(other.copy_from(x), std::logic_error);
  EXPECT_EQ(asked, 0);
}

// Writes to one part do not affect another part's version, and each part keeps the memory alive.
TEST(Storage, HasPartsWithIndependentLifetimes) {
  Tensor whole = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {6});
  const std::byte* begin = whole.data();
  const auto front = Storage::part_of(whole.storage(), 0, 2 * sizeof(float));
  const auto back = Storage::part_of(whole.storage(), 2 * sizeof(float), 4 * sizeof(float));
  EXPECT_THROW((void)Storage::part_of(whole.storage(), 8, 5 * sizeof(float)), std::logic_error);
  int written = 0;
  front->set_observer({.on_write = [&](Storage::Write) { ++written; }});
  Tensor x = Tensor::view_of(back, 0, {4}, float32);
  x.copy_from(Tensor::full({4}, 9));
  EXPECT_EQ(written, 0);
  EXPECT_EQ(whole.to_vector(), (Numbers{1, 2, 9, 9, 9, 9}));
  whole = {};
  EXPECT_EQ(front->data(), begin);
  EXPECT_EQ(x.to_vector(), (Numbers{9, 9, 9, 9}));
}

TEST(Storage, ReportsChangesOfRequiresGrad) {
  const auto storage = Storage::lent(2 * sizeof(float), Device::cpu(), "weights");
  const detail::TensorData* told = nullptr;
  storage->set_observer({.on_requires_grad = [&](const detail::TensorData& tensor) {
    told = &tensor;
    if (tensor.requires_grad) throw std::logic_error("frozen");
  }});
  Tensor x = Tensor::view_of(storage, 0, {2}, float32);
  x.set_requires_grad(false);
  EXPECT_EQ(told, nullptr);  // no change
  x.set_requires_grad(true);
  EXPECT_EQ(told, x.impl().get());
  EXPECT_THROW(x.set_requires_grad(false), std::logic_error);
  EXPECT_TRUE(x.requires_grad());
}

TEST(Ops, MatmulSaysWhatDoesNotFit) {
  const auto refused = [](const Tensor& a, const Tensor& b) -> std::string {
    try {
      (void)matmul(a, b);
    } catch (const std::logic_error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  const Tensor a = Tensor::zeros({2, 3});
  EXPECT_EQ(refused(a, a),
            "matmul of [2, 3] and [2, 3]: the first has 3 columns and the second 2 rows, which "
            "must be equal; for a weight of shape [outputs, inputs] use linear()");
  EXPECT_EQ(refused(a, Tensor::zeros({})),
            "matmul of [2, 3] and []: a number is not a matrix; use multiply()");
  EXPECT_EQ(refused(Tensor::zeros({4, 2, 3}), Tensor::zeros({5, 3, 2})),
            "matmul of [4, 2, 3] and [5, 3, 2]: batches of 4 and 5 matrices; sizes "
            "before the last two must be equal or 1");
  EXPECT_EQ(refused(a, Tensor::zeros({3, 2}, bfloat16)),
            "matmul of [2, 3] and [3, 2]: dtypes float32 and bfloat16 differ; cast one of them");
}

// Products of sizes do not wrap around.
TEST(Tensor, ShapesBeyondMemoryAreRefused) {
  constexpr std::int64_t large = std::int64_t{1} << 40;
  for (const Shape& shape : {Shape{std::int64_t{1} << 62}, Shape{large, large},
                             Shape{large, std::int64_t{1} << 24, 2}}) {
    EXPECT_EQ(testing::misuse_of([&] { return Tensor::zeros(shape); }),
              "a tensor of shape " + shape.to_string() + " has more elements than memory can hold");
    EXPECT_THROW((void)Tensor::empty(shape, float32, Device::meta()), std::logic_error);
  }
  EXPECT_EQ(Tensor::zeros({large, 0, large}).elements(), 0);
}

TEST(Ops, RefuseShapesAndDtypesByName) {
  const Tensor a = Tensor::zeros({2, 3});
  EXPECT_THROW(a + Tensor::zeros({2}), std::logic_error);
  EXPECT_THROW(a + Tensor::zeros({2, 3}, bfloat16), std::logic_error);
  EXPECT_THROW(Tensor::zeros({3, 1}) + a, std::logic_error);
  EXPECT_THROW(reshape(a, {5}), std::logic_error);
  EXPECT_THROW(matmul(a, a), std::logic_error);
  EXPECT_THROW(linear(a, Tensor::zeros({4, 2})), std::logic_error);
  EXPECT_THROW(linear(a, Tensor::zeros({4, 3}), Tensor::zeros({3})), std::logic_error);
  EXPECT_THROW(embedding(a, a), std::logic_error);
  EXPECT_THROW(layer_norm(a, Tensor::zeros({2}), {}), std::logic_error);
  EXPECT_THROW(dropout(a, 1.0), std::logic_error);
  EXPECT_THROW(softmax(Tensor::scalar(1)), std::logic_error);
  const Tensor q = Tensor::zeros({1, 2, 6});
  EXPECT_THROW(attention(q, q, q, {.heads = 4}), std::logic_error);
  EXPECT_THROW(attention(q, q, q, {.heads = 3, .key_heads = 2}), std::logic_error);
  EXPECT_THROW(packed_attention(q, {.heads = 4}), std::logic_error);
  EXPECT_THROW(cross_entropy(a, Tensor::zeros({3}, int32)), std::logic_error);
}

}  // namespace
}  // namespace tessera
