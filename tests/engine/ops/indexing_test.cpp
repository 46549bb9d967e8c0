// Reads and sums at ids, and sorting, against loops; ids that are out of range.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "engine/ops/tensor_of.h"
#include "engine/tensor_ops.h"
#include "support/errors.h"

namespace tessera {
namespace {

using Doubles = std::vector<double>;

Tensor counted(const Shape& shape, DType dtype) {
  Doubles values(static_cast<std::size_t>(shape.elements()));
  std::iota(values.begin(), values.end(), 1);
  return testing::tensor_of(values, shape, dtype);
}

Tensor ids_below(std::int64_t end, const Shape& shape, unsigned seed, DType dtype = int64) {
  std::mt19937 generator(seed);
  Doubles ids(static_cast<std::size_t>(shape.elements()));
  for (double& id : ids) id = static_cast<double>(static_cast<std::int64_t>(generator()) % end);
  return testing::tensor_of(ids, shape, dtype);
}

TEST(Indexing, IndexSelectOfEveryDimensionAndDtype) {
  for (const DType dtype : {float32, bfloat16, float16, float64, int32, int64, uint8}) {
    const Tensor x = counted({3, 4, 5}, dtype);
    const Doubles values = x.to_vector();
    for (const int dimension : {0, 1, 2}) {
      const Tensor ids = ids_below(x.size(dimension), {6}, 1, dimension == 1 ? int32 : int64);
      const Tensor y = index_select(x, dimension, ids);
      EXPECT_EQ(y.dtype(), dtype);
      const Doubles at = ids.to_vector(), got = y.to_vector();
      std::size_t i = 0;
      for (std::int64_t a = 0; a < y.size(0); ++a) {
        for (std::int64_t b = 0; b < y.size(1); ++b) {
          for (std::int64_t c = 0; c < y.size(2); ++c, ++i) {
            std::int64_t from[] = {a, b, c};
            from[dimension] =
                static_cast<std::int64_t>(at[static_cast<std::size_t>(from[dimension])]);
            EXPECT_EQ(got[i],
                      values[static_cast<std::size_t>((from[0] * 4 + from[1]) * 5 + from[2])]);
          }
        }
      }
    }
  }
}

TEST(Indexing, GatherAndScatterAddAreTransposed) {
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    const Tensor x = counted({2, 3, 4}, dtype);
    const Tensor ids = ids_below(3, {2, 5, 4}, 2);
    const Tensor y = gather(x, 1, ids);
    const Tensor added = scatter_add(x, 1, ids, y);
    Doubles wanted = x.to_vector();
    const Doubles values = x.to_vector(), at = ids.to_vector(), got = y.to_vector();
    for (std::size_t a = 0; a < 2; ++a) {
      for (std::size_t l = 0; l < 5; ++l) {
        for (std::size_t c = 0; c < 4; ++c) {
          const std::size_t i = (a * 5 + l) * 4 + c;
          const std::size_t from = (a * 3 + static_cast<std::size_t>(at[i])) * 4 + c;
          EXPECT_EQ(got[i], values[from]);
          wanted[from] += values[from];
        }
      }
    }
    EXPECT_EQ(added.to_vector(), wanted);  // small integers: exact in every dtype
  }
}

// 1024 ones are 1024 in bf16; one by one they would stop at 256.
TEST(Indexing, SixteenBitSumsAreRoundedOnce) {
  const Tensor ones = Tensor::full({1024}, 1, bfloat16);
  const Tensor ids = Tensor::zeros({1024}, int64);
  EXPECT_EQ(scatter_add(Tensor::zeros({2}, bfloat16), 0, ids, ones).to_vector(),
            (Doubles{1024, 0}));
}

TEST(Indexing, OneHot) {
  EXPECT_EQ(one_hot(Tensor::from({2, 0}, {2}), 3).to_vector(), (Doubles{0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(one_hot(Tensor::from({1}, {}), 2, bfloat16).shape(), (Shape{2}));
  EXPECT_EQ(one_hot(Tensor::zeros({0}, int32), 2).shape(), (Shape{0, 2}));
}

TEST(Indexing, IdsOutsideAreBadData) {
  const Tensor x = counted({2, 3}, float32);
  const auto refused = [](auto&& call) { return testing::error_of(call, ErrorCode::data); };
  EXPECT_EQ(refused([&] {
              return gather(x, 1, Tensor::from({0, 1, 2, 3}, {2, 2}));
            }),
            "gather: id 3 at position 3 is outside the dimension of size 3");
  EXPECT_EQ(refused([&] {
              return index_select(x, 1, Tensor::from({0, -1}, {2}));
            }),
            "index_select: gather: id -1 at position 1 is outside the dimension of size 3");
  EXPECT_EQ(refused([&] {
              return scatter_add(x, 0, Tensor::from({2, 0, 0}, {1, 3}), Tensor::zeros({1, 3}));
            }),
            "scatter_add: id 2 at position 0 is outside the dimension of size 2");
  EXPECT_EQ(refused([&] { return one_hot(Tensor::from({5}, {1}), 5); }),
            "one_hot: scatter_add: id 5 at position 0 is outside the dimension of size 5");
}

TEST(Indexing, SortIsStableAndPutsNanLast) {
  const double nan = std::nan("");
  const Tensor x =
      Tensor::from({2., nan, -1., 2., -0., 0., -std::numeric_limits<double>::infinity(), nan}, {8});
  const Sorted up = sort(x);
  EXPECT_EQ(up.places.to_vector(), (Doubles{6, 2, 4, 5, 0, 3, 1, 7}));
  const Sorted down = sort(x, 0, true);
  EXPECT_EQ(down.places.to_vector(), (Doubles{1, 7, 0, 3, 4, 5, 2, 6}));
  EXPECT_EQ(down.values.to_vector()[2], 2);
  EXPECT_EQ(up.places.dtype(), int64);
}

TEST(Indexing, SortOfEveryDimensionAndDtype) {
  std::mt19937 generator(3);
  std::normal_distribution<double> normal;
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    Doubles drawn(3 * 200);
    for (double& value : drawn) value = std::round(4 * normal(generator)) / 4;  // with ties
    const Tensor x = cast(Tensor::from(drawn, {3, 200}), dtype);
    for (const bool descending : {false, true}) {
      const Doubles places = argsort(x, 1, descending).to_vector();
      const Doubles across = argsort(transpose(x), 0, descending).to_vector();
      for (std::size_t row = 0; row < 3; ++row) {
        const auto* values = &drawn[row * 200];
        std::vector<std::size_t> order(200);
        std::iota(order.begin(), order.end(), 0u);
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
          return descending ? values[a] > values[b] : values[a] < values[b];
        });
        for (std::size_t i = 0; i < 200; ++i) {
          ASSERT_EQ(places[row * 200 + i], static_cast<double>(order[i]));
          ASSERT_EQ(across[i * 3 + row], static_cast<double>(order[i]));
        }
      }
    }
  }
}

TEST(Indexing, TopK) {
  const Tensor x = Tensor::from({1.f, 5.f, 5.f, 3.f, 9.f, 0.f}, {2, 3});
  EXPECT_EQ(topk(x, 2).values.to_vector(), (Doubles{5, 5, 9, 3}));
  EXPECT_EQ(topk(x, 2).places.to_vector(), (Doubles{1, 2, 1, 0}));
  EXPECT_EQ(topk(x, 1, 0, false).values.to_vector(), (Doubles{1, 5, 0}));
  EXPECT_EQ(topk(x, 0).values.elements(), 0);
  EXPECT_EQ(sort(Tensor::zeros({0, 3})).values.shape(), (Shape{0, 3}));
  EXPECT_EQ(sort(Tensor::zeros({3, 0})).values.shape(), (Shape{3, 0}));
}

TEST(Indexing, RefusalsNameTheOpTheShapesAndTheRule) {
  const Tensor x = Tensor::zeros({2, 3});
  const Tensor ids = Tensor::zeros({2, 3}, int64);
  const auto refused = [](auto&& call) { return testing::misuse_of(call); };
  EXPECT_EQ(refused([&] { return gather(x, 0, x); }),
            "gather: ids of float32; int32 or int64 required");
  EXPECT_EQ(refused([&] {
              return gather(x, 0, Tensor::zeros({2, 2}, int64));
            }),
            "gather: ids of shape [2, 2] for a tensor of shape [2, 3]; their sizes must be equal "
            "except in dimension 0");
  EXPECT_EQ(refused([&] { return index_select(x, 0, ids); }),
            "index_select: ids of shape [2, 3]; they have one dimension");
  EXPECT_EQ(
      refused([&] {
        return scatter_add(x, 0, ids, Tensor::zeros({2, 2}));
      }),
      "scatter_add: values of float32 [2, 2] for ids of shape [2, 3] and a tensor of float32");
  EXPECT_EQ(refused([&] { return topk(x, 4); }),
            "topk: 4 elements of dimension -1 of shape [2, 3]; from 0 to its 3");
  EXPECT_EQ(refused([&] { return sort(Tensor::scalar(1)); }),
            "argsort: dimension -1 of a tensor of shape []; it is from 0 to -1");
}

}  // namespace
}  // namespace tessera
