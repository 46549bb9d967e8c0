// Tensors over memory of other owners: no copy, released once, refusals; DLPack in both directions.
#include "engine/interop/foreign_memory.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/interop/dlpack.h"
#include "engine/nn/module.h"
#include "engine/ops.h"
#include "engine/optim/optimizer.h"
#include "engine/tensor_ops.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

using Values = std::vector<double>;
using testing::misuse_of;

TEST(FromBlob, SharesTheMemoryAndReleasesItOnce) {
  std::vector<float> numbers{1, 2, 3, 4, 5, 6};
  int released = 0;
  {
    Tensor x = from_blob(numbers.data(), {2, 3}, float32, Device::cpu(), [&] { ++released; });
    EXPECT_EQ(x.to_vector(), (Values{1, 2, 3, 4, 5, 6}));
    numbers[0] = 9;
    EXPECT_EQ(x.to_vector()[0], 9);
    x.data_as<float>()[5] = 7;
    EXPECT_EQ(numbers[5], 7);
    const Tensor view = narrow(x, 0, 1, 1);
    x = Tensor();
    EXPECT_EQ(released, 0);
    EXPECT_EQ(view.to_vector(), (Values{4, 5, 7}));
  }
  EXPECT_EQ(released, 1);
}

TEST(FromBlob, TakesPartInTheGraph) {
  std::vector<float> numbers{1, 2, 3};
  Tensor x = from_blob(numbers.data(), {3}, float32);
  x.set_requires_grad(true);
  sum(square(x)).backward();
  EXPECT_EQ(x.grad().to_vector(), (Values{2, 4, 6}));
}

// A refused name is free again.
struct Twice : nn::Module {
  explicit Twice(const Tensor& weight) {
    EXPECT_THROW(register_parameter("weight", weight), std::logic_error);
    register_parameter("weight", weight.clone());
  }
};

struct Borrower : nn::Module {
  explicit Borrower(const Tensor& weight) { register_parameter("weight", weight); }
};

TEST(FromBlob, IsNoParameter) {
  std::vector<float> numbers{1, 2, 3};
  const Tensor x = from_blob(numbers.data(), {3}, float32);
  const std::string message = misuse_of([&] { const Borrower module(x); });
  EXPECT_EQ(message.find("parameter weight [3] of "), 0U) << message;
  EXPECT_NE(message.find("lies in memory of another owner, by from_blob() or DLPack; a parameter "
                         "owns its memory: register clone() of it"),
            std::string::npos)
      << message;
  EXPECT_NO_THROW(Borrower(x.clone()));
  EXPECT_NO_THROW((void)Twice(x));
  Tensor leaf = from_blob(numbers.data(), {3}, float32);
  leaf.set_requires_grad(true);
  EXPECT_EQ(misuse_of([&] {
              const optim::Sgd sgd({{"leaf", leaf, {3}}}, {.lr = 0.1});
            }),
            "parameter leaf [3] lies in memory of another owner, by from_blob() or DLPack; a "
            "parameter owns its memory: make it of clone()");
}

TEST(FromBlob, RefusesWhatCannotBeATensor) {
  alignas(8) char bytes[16] = {};
  EXPECT_EQ(misuse_of([] { (void)from_blob(nullptr, {2}, float32); }),
            "from_blob: a null pointer for a tensor of shape [2]");
  EXPECT_EQ(misuse_of([&] { (void)from_blob(bytes + 1, {2}, float32); }),
            "from_blob: memory that is not aligned for float32");
  EXPECT_EQ(misuse_of([&] { (void)from_blob(bytes, {2}, float32, Device::meta()); }),
            "from_blob: memory of meta; cpu or cuda");
}

TEST(FromBlob, ATensorWithoutElementsNeedsNoMemory) {
  const Tensor none = from_blob(nullptr, {0, 3}, float32);
  EXPECT_EQ(none.to_vector(), std::vector<double>());
  EXPECT_EQ(concatenate({none, Tensor::zeros({1, 3})}, 0).shape(), (Shape{1, 3}));
}

TEST(DLPack, RoundTripsShareTheMemoryInEveryDtype) {
  const Tensor x = Tensor::from({1.f, 0.f, 3.f, 2.f, 1.f, 0.f}, {3, 2});
  std::vector<Tensor> all{Tensor::from(std::vector<std::int32_t>{1, 2, 3, 4, 5, 6}, {3, 2}),
                          Tensor::from(std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}, {3, 2}),
                          Tensor::from(std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6}, {3, 2}),
                          equal(x, 1.0)};
  for (const DType dtype : {float32, float64, float16, bfloat16}) all.push_back(cast(x, dtype));
  for (const Tensor& tensor : all) {
    dlpack::ManagedTensor* const exported = dlpack::export_tensor(tensor);
    EXPECT_EQ(exported->array.dimensions, 2);
    EXPECT_EQ(exported->array.strides[0], 2);
    const Tensor back = dlpack::import_tensor(exported);
    EXPECT_EQ(back.dtype(), tensor.dtype());
    EXPECT_EQ(back.shape(), tensor.shape());
    EXPECT_EQ(back.data(), tensor.data());
    EXPECT_EQ(back.to_vector(), tensor.to_vector());
  }
}

// An array as another library describes it.
struct Foreign {
  std::vector<double> numbers{1, 2, 3, 4, 5, 6};
  std::int64_t shape[2] = {2, 2};
  std::int64_t strides[2] = {2, 1};
  int deleted = 0;
  dlpack::ManagedTensor tensor{
      .array = {numbers.data(), {1, 0}, 2, {2, 64, 1}, shape, strides, 2 * sizeof(double)},
      .owner = this,
      .deleter = [](dlpack::ManagedTensor* t) { ++static_cast<Foreign*>(t->owner)->deleted; }};
};

TEST(DLPack, ImportsOffsetsAndDeletesOnce) {
  Foreign foreign;
  {
    const Tensor x = dlpack::import_tensor(&foreign.tensor);
    EXPECT_EQ(x.to_vector(), (Values{3, 4, 5, 6}));
  }
  EXPECT_EQ(foreign.deleted, 1);
  foreign.tensor.array.strides = nullptr;  // contiguous
  EXPECT_EQ(dlpack::import_tensor(&foreign.tensor).to_vector(), (Values{3, 4, 5, 6}));
  foreign.shape[1] = 1;  // a dimension of one element has any stride
  foreign.strides[0] = 1;
  foreign.strides[1] = 77;
  foreign.tensor.array.strides = foreign.strides;
  EXPECT_EQ(dlpack::import_tensor(&foreign.tensor).to_vector(), (Values{3, 4}));
}

TEST(DLPack, RefusalsLeaveTheArrayToTheCaller) {
  Foreign foreign;
  const auto refused = [&] {
    return misuse_of([&] { (void)dlpack::import_tensor(&foreign.tensor); });
  };
  foreign.strides[0] = 3;
  EXPECT_EQ(refused(),
            "dlpack: an array of shape [2, 2] with a stride of 3 in dimension 0; make it "
            "contiguous first");
  foreign.strides[0] = 2;
  foreign.tensor.array.type = {5, 64, 1};  // complex
  EXPECT_EQ(
      refused(),
      "dlpack: an array of type code 5 with 64 bits and 1 lanes; there is no such dtype here");
  foreign.tensor.array.type = {2, 64, 1};
  foreign.tensor.array.place = {10, 0};  // ROCm
  EXPECT_EQ(refused(), "dlpack: an array on a device of type 10; 1 (CPU) or 2 (CUDA)");
  EXPECT_EQ(foreign.deleted, 0);
}

}  // namespace
}  // namespace tessera
