// Ops on shapes against the element that each result must hold, in every dtype; what is refused.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "engine/ops/tensor_of.h"
#include "engine/tensor_ops.h"
#include "support/errors.h"

namespace tessera {
namespace {

using Index = std::vector<std::int64_t>;

constexpr DType every_dtype[] = {float32, bfloat16, float16, float64, int32, int64, uint8, boolean};

// 0, 1, 2, ... (modulo 2 for booleans).
Tensor numbered(const Shape& shape, DType dtype) {
  std::vector<double> numbers(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<double>(dtype == boolean ? i % 2 : i);
  }
  return testing::tensor_of(numbers, shape, dtype);
}

// result[i] = source[from(i)] for every index i.
void expect_elements(const Tensor& result, const Tensor& source,
                     const std::function<Index(const Index&)>& from) {
  const std::vector<double> got = result.to_vector(), values = source.to_vector();
  Index at(static_cast<std::size_t>(result.dimensions()), 0);
  for (const double value : got) {
    const Index place = from(at);
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < place.size(); ++d) {
      offset = offset * source.size(static_cast<int>(d)) + place[d];
    }
    ASSERT_EQ(value, values[static_cast<std::size_t>(offset)]);
    for (std::size_t d = at.size(); d-- > 0;) {
      if (++at[d] < result.size(static_cast<int>(d))) break;
      at[d] = 0;
    }
  }
}

TEST(Views, PermuteMovesEveryElementInEveryDtype) {
  const std::vector<std::vector<int>> orders = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                                {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const DType dtype : every_dtype) {
    for (const Shape& shape : {Shape{2, 3, 5}, Shape{5, 1, 7}, Shape{3, 6, 4}}) {
      const Tensor x = numbered(shape, dtype);
      for (const std::vector<int>& order : orders) {
        const Tensor y = permute(x, order);
        expect_elements(y, x, [&](const Index& at) {
          Index from(3);
          for (std::size_t d = 0; d < 3; ++d) from[static_cast<std::size_t>(order[d])] = at[d];
          return from;
        });
      }
    }
  }
}

// Sizes around the tiles of the CPU's transposition, and several of them.
TEST(Views, TransposesOfMatrices) {
  for (const DType dtype : {float32, bfloat16, float64}) {
    for (const Shape& shape :
         {Shape{1, 9}, Shape{16, 16}, Shape{33, 65}, Shape{64, 31}, Shape{100, 130}}) {
      const Tensor x = numbered({2, shape[0], shape[1]}, dtype);
      expect_elements(transpose(x), x, [](const Index& at) { return Index{at[0], at[2], at[1]}; });
    }
  }
}

TEST(Views, SlicesTakeEveryStepth) {
  for (const DType dtype : {float32, bfloat16, uint8}) {
    const Tensor x = numbered({4, 7, 3}, dtype);
    const Tensor y = slice(x, 1, 1, -1, 2);
    EXPECT_EQ(y.shape(), (Shape{4, 3, 3}));
    expect_elements(y, x, [](const Index& at) { return Index{at[0], 1 + 2 * at[1], at[2]}; });
    const Tensor last = select(x, -1, -1);
    EXPECT_EQ(last.shape(), (Shape{4, 7}));
    expect_elements(last, x, [](const Index& at) { return Index{at[0], at[1], 2}; });
  }
  const Tensor x = numbered({5}, float32);
  EXPECT_EQ(slice(x, 0, -2).to_vector(), (std::vector<double>{3, 4}));
  EXPECT_EQ(slice(x, 0, 3, 100).to_vector(), (std::vector<double>{3, 4}));
  EXPECT_EQ(slice(x, 0, 4, 2).elements(), 0);
}

TEST(Views, PartsThatAreAdjacentShareMemory) {
  const Tensor x = numbered({4, 3}, float32);
  EXPECT_EQ(narrow(x, 0, 1, 2).storage(), x.storage());
  EXPECT_EQ(split(x, 2, 0)[1].storage(), x.storage());
  EXPECT_NE(narrow(x, 1, 1, 2).storage(), x.storage());
}

TEST(Views, SplitsAndConcatenationsAreInverse) {
  for (const DType dtype : every_dtype) {
    const Tensor x = numbered({3, 8, 5}, dtype);
    for (int dimension = 0; dimension < 3; ++dimension) {
      const std::vector<Tensor> parts = split(x, 2, dimension);
      EXPECT_EQ(concatenate(parts, dimension).to_vector(), x.to_vector());
    }
  }
  const std::vector<Tensor> three = chunk(numbered({7}, float32), 3);
  EXPECT_EQ(three.size(), 3u);
  EXPECT_EQ(three[2].elements(), 1);
  EXPECT_EQ(chunk(numbered({2}, float32), 5).size(), 2u);
}

TEST(Views, StackExpandAndPad) {
  const Tensor a = numbered({2, 3}, float32), b = numbered({2, 3}, float32) * 2.0;
  EXPECT_EQ(stack({a, b}, 1).to_vector(),
            (std::vector<double>{0, 1, 2, 0, 2, 4, 3, 4, 5, 6, 8, 10}));
  EXPECT_EQ(stack({a, b}, -1).shape(), (Shape{2, 3, 2}));
  const Tensor wide = expand(numbered({3, 1}, int64), {2, 3, 2});
  EXPECT_EQ(wide.to_vector(), (std::vector<double>{0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(pad(a, {{1, 1}}, 9).to_vector(), (std::vector<double>{9, 0, 1, 2, 9, 9, 3, 4, 5, 9}));
  EXPECT_EQ(pad(a, {{1, 0}, {-1, 0}}, 9).to_vector(), (std::vector<double>{9, 9, 1, 2, 4, 5}));
}

TEST(Views, TensorsWithoutElementsAndNumbers) {
  const Tensor none = Tensor::zeros({0, 3});
  EXPECT_EQ(transpose(none).shape(), (Shape{3, 0}));
  EXPECT_EQ(concatenate({none, none}, 1).shape(), (Shape{0, 6}));
  EXPECT_EQ(split(none, 2, 0).size(), 1u);
  EXPECT_EQ(pad(none, {{1, 0}, {0, 0}}).to_vector(), (std::vector<double>{0, 0, 0}));
  const Tensor number = Tensor::scalar(3);
  EXPECT_EQ(permute(number, {}).item(), 3);
  EXPECT_EQ(expand(number, {2}).to_vector(), (std::vector<double>{3, 3}));
  EXPECT_EQ(unsqueeze(number, 0).shape(), (Shape{1}));
  EXPECT_EQ(expand(number, {0}).elements(), 0);
}

TEST(Views, RefusalsNameTheOpTheShapesAndTheRule) {
  const Tensor x = Tensor::zeros({2, 3});
  const auto refused = [](auto&& call) { return testing::misuse_of(call); };
  EXPECT_EQ(refused([&] {
              return permute(x, {0, 0});
            }),
            "permute: 2 dimensions for a tensor of shape [2, 3]; name each of its 2 once");
  EXPECT_EQ(refused([&] { return transpose(x, 0, 2); }),
            "transpose: dimension 2 of a tensor of shape [2, 3]; it is from -2 to 1");
  EXPECT_EQ(refused([&] { return slice(x, 1, 0, 2, 0); }),
            "slice: a step of 0 in dimension 1 of shape [2, 3]; it must be at least 1");
  EXPECT_EQ(refused([&] { return narrow(x, 1, 2, 2); }),
            "narrow: 2 elements from 2 of dimension 1 of shape [2, 3]; they must exist");
  EXPECT_EQ(refused([&] { return select(x, 0, 2); }),
            "select: element 2 of dimension 0 of shape [2, 3]; it must exist");
  EXPECT_EQ(refused([&] {
              return split(x, {1, 1}, 1);
            }),
            "split: parts of 2 elements together, in dimension 1 of shape [2, 3]; together they "
            "have its 3");
  EXPECT_EQ(refused([&] {
              return concatenate({x, Tensor::zeros({3, 3})}, 1);
            }),
            "concatenate: float32 [2, 3] and float32 [3, 3] differ in more than dimension 1");
  EXPECT_EQ(refused([&] {
              return stack({x, Tensor::zeros({3})});
            }),
            "stack: shapes [2, 3] and [3] differ");
  EXPECT_EQ(refused([&] {
              return expand(x, {2, 4});
            }),
            "expand: shape [2, 3] to [2, 4]; aligned at their ends, sizes must be equal or 1");
  EXPECT_EQ(refused([&] { return squeeze(x, 0); }),
            "squeeze: dimension 0 of shape [2, 3] has not size 1");
  EXPECT_EQ(refused([&] {
              return pad(x, {{-2, -2}});
            }),
            "pad: dimension 1 of shape [2, 3] would have -1 elements");
}

}  // namespace
}  // namespace tessera
