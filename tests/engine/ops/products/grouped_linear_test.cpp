// Grouped products: no row is lost, each row has the bits of a linear layer, empty groups, the
// order of sums, memory, devices without values, and bad input.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "engine/device/memory.h"
#include "engine/ops/products/grouped.h"
#include "engine/ops/tensor_of.h"
#include "engine/tensor_ops.h"
#include "support/errors.h"
#include "support/gradient_check.h"

namespace tessera {
namespace {

using Doubles = std::vector<double>;
using testing::leaf;
using testing::tensor_of;

// Ids [sources, k] of `groups` groups, most of them of the first ones; the last group gets none.
Tensor uneven_ids(std::int64_t sources, std::int64_t k, std::int64_t groups, unsigned seed) {
  std::mt19937 generator(seed);
  Doubles ids(static_cast<std::size_t>(sources * k));
  for (double& id : ids) {
    const std::int64_t most = static_cast<std::int64_t>(generator()) % (groups - 1) + 1;
    id = static_cast<double>(static_cast<std::int64_t>(generator()) % most);
  }
  return tensor_of(ids, {sources, k}, int64);
}

std::vector<Tensor> random_weights(std::size_t count, const Shape& shape, DType dtype = float32) {
  std::vector<Tensor> weights;
  for (unsigned g = 0; g < count; ++g) {
    weights.push_back(cast(testing::values(shape, 20 + g), dtype));
  }
  return weights;
}

TEST(RowGroups, HaveEachIdOnceInTheOrderOfGroupsAndPlaces) {
  for (const DType dtype : {int32, int64}) {
    const RowGroups groups = group_rows(tensor_of({2, 0, 0, 4, 2, 0, 4, 2}, {4, 2}, dtype), 5);
    EXPECT_EQ(groups.starts, (std::vector<std::int64_t>{0, 3, 3, 6, 6, 8}));
    EXPECT_EQ(groups.places.to_vector(), (Doubles{1, 2, 5, 0, 4, 7, 3, 6}));
    EXPECT_EQ(groups.sources.to_vector(), (Doubles{0, 1, 2, 0, 2, 3, 1, 3}));
    EXPECT_EQ(groups.source_count, 4);
    EXPECT_EQ(groups.count(), 5);
    EXPECT_EQ(groups.rows_of(3), 0);
  }
}

TEST(RowGroups, OfNoIdsAreEmpty) {
  const RowGroups groups = group_rows(Tensor::zeros({0, 2}, int64), 3);
  EXPECT_EQ(groups.starts, (std::vector<std::int64_t>{0, 0, 0, 0}));
  const Tensor rows = dispatch_rows(Tensor::zeros({0, 4}), groups);
  const Tensor y = combine_rows(grouped_linear(rows, random_weights(3, {5, 4}), groups), groups);
  EXPECT_EQ(y.shape(), (Shape{0, 5}));
}

TEST(GroupedLinear, HasTheBitsOfALinearLayerForEachGroup) {
  const RowGroups groups = group_rows(uneven_ids(37, 3, 6, 1), 6);
  ASSERT_EQ(groups.rows_of(5), 0);
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    const Tensor x = cast(testing::values({37, 19}, 2), dtype);
    const std::vector<Tensor> weights = random_weights(6, {23, 19}, dtype);
    const Tensor rows = dispatch_rows(x, groups);
    const Tensor y = grouped_linear(rows, weights, groups);
    ASSERT_EQ(y.shape(), (Shape{111, 23}));
    for (std::int64_t g = 0; g < 6; ++g) {
      const auto at = static_cast<std::size_t>(g);
      const std::int64_t first = groups.starts[at], count = groups.rows_of(g);
      EXPECT_EQ(narrow(y, 0, first, count).to_vector(),
                linear(narrow(rows, 0, first, count), weights[at]).to_vector())
          << name_of(dtype) << ", group " << g;
    }
  }
}

// The weights of all groups in one tensor give the bits of weights of their own, and each group its
// own bias.
TEST(GroupedLinear, StackedWeightsHaveTheBitsOfLinearLayers) {
  const RowGroups groups = group_rows(uneven_ids(37, 3, 6, 1), 6);
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    const Tensor rows = dispatch_rows(cast(testing::values({37, 19}, 2), dtype), groups);
    const Tensor biases = cast(testing::values({6, 23}, 3), dtype);
    for (const auto layout : {WeightLayout::out_in, WeightLayout::in_out}) {
      const bool transposed = layout == WeightLayout::out_in;
      const std::vector<Tensor> weights =
          random_weights(6, transposed ? Shape{23, 19} : Shape{19, 23}, dtype);
      const Tensor y = grouped_linear(rows, stack(weights), biases, groups, layout);
      ASSERT_EQ(y.shape(), (Shape{111, 23}));
      for (std::int64_t g = 0; g < 6; ++g) {
        const auto at = static_cast<std::size_t>(g);
        const std::int64_t first = groups.starts[at], count = groups.rows_of(g);
        EXPECT_EQ(narrow(y, 0, first, count).to_vector(),
                  linear(narrow(rows, 0, first, count), weights[at], select(biases, 0, g), layout)
                      .to_vector())
            << name_of(dtype) << ", group " << g;
      }
    }
  }
}

TEST(GroupedLinear, EmptyGroupsOfStackedWeightsKeepWhatWasAccumulated) {
  const Tensor weights = leaf({2, 3, 2}, 1), biases = leaf({2, 2}, 2);
  const Tensor x = testing::values({2, 3}, 3);
  const auto run = [&](std::int32_t group) {
    const RowGroups groups = group_rows(Tensor::from({group, group}, {2, 1}), 2);
    sum(grouped_linear(x, weights, biases, groups, WeightLayout::in_out)).backward();
  };
  run(0);
  const Doubles first = weights.grad().to_vector();
  EXPECT_EQ(Doubles(first.begin() + 6, first.end()), Doubles(6, 0));
  EXPECT_EQ(biases.grad().to_vector(), (Doubles{2, 2, 0, 0}));
  run(1);
  const Doubles half(first.begin(), first.begin() + 6);
  Doubles both = half;
  both.insert(both.end(), half.begin(), half.end());
  EXPECT_EQ(weights.grad().to_vector(), both);
  EXPECT_EQ(biases.grad().to_vector(), (Doubles{2, 2, 2, 2}));
}

TEST(GroupedLinear, CastsRowsToTheWeights) {
  const RowGroups groups = group_rows(Tensor::from({1, 0}, {2, 1}), 2);
  const Tensor x = cast(testing::values({2, 3}, 4), float32);
  const std::vector<Tensor> weights = random_weights(2, {2, 3}, bfloat16);
  const Tensor y = grouped_linear(x, weights, groups);
  EXPECT_EQ(y.dtype(), bfloat16);
  EXPECT_EQ(y.to_vector(), grouped_linear(cast(x, bfloat16), weights, groups).to_vector());
}

TEST(GroupedLinear, TheGatedFormIsTheProductOfItsActivation) {
  const RowGroups groups = group_rows(uneven_ids(11, 2, 4, 3), 4);
  const Tensor gate = cast(testing::values({22, 8}, 5), float32);
  const Tensor up = cast(testing::values({22, 8}, 6), float32);
  const std::vector<Tensor> weights = random_weights(4, {5, 8});
  const Doubles got = grouped_swiglu_linear(gate, up, weights, groups).to_vector();
  const Doubles wanted = grouped_linear(silu(gate) * up, weights, groups).to_vector();
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-6);
}

// Sums of a source's rows begin with the lowest group: in fp32, 2^25 + 1 - 2^25 is 0, and in
// another order 1.
TEST(CombineRows, AddsBySourceInAscendingGroups) {
  const RowGroups groups = group_rows(Tensor::from({2, 0, 1, 1, 2, 0}, {2, 3}), 3);
  // Groups have the places 1, 5 | 2, 3 | 0, 4, of the sources 0, 1 | 0, 1 | 0, 1.
  const float large = 1 << 25;
  const Tensor rows = Tensor::from({large, 1.f, 1.f, -large, -large, large}, {6, 1});
  EXPECT_EQ(combine_rows(rows, groups).to_vector(), (Doubles{0, 0}));
  const Tensor other = Tensor::from({large, large, -large, -large, 1.f, 1.f}, {6, 1});
  EXPECT_EQ(combine_rows(other, groups).to_vector(), (Doubles{1, 1}));
}

struct GroupedResults {
  Doubles y, dx;
  std::vector<Doubles> dweights;
  friend bool operator==(const GroupedResults&, const GroupedResults&) = default;
};

GroupedResults train_once(const Tensor& ids, std::size_t groups, DType dtype) {
  const RowGroups sorted = group_rows(ids, static_cast<std::int64_t>(groups));
  Tensor x = cast(testing::values({ids.size(0), 33}, 7), dtype);
  x.set_requires_grad(true);
  std::vector<Tensor> weights = random_weights(groups, {33, 33}, dtype);
  for (Tensor& weight : weights) weight.set_requires_grad(true);
  const Tensor rows = dispatch_rows(x, sorted);
  const Tensor gate = grouped_linear(rows, weights, sorted);
  const Tensor y = combine_rows(grouped_swiglu_linear(gate, rows, weights, sorted), sorted);
  sum(square(y)).backward();
  GroupedResults results{y.to_vector(), x.grad().to_vector(), {}};
  for (const Tensor& weight : weights) results.dweights.push_back(weight.grad().to_vector());
  return results;
}

TEST(GroupedLinear, OneThreadAndTwoGiveTheSameBits) {
  const Tensor ids = uneven_ids(301, 2, 3, 9);
  const int threads = compute_threads();
  set_compute_threads(1);
  const GroupedResults one = train_once(ids, 3, float32);
  set_compute_threads(2);
  EXPECT_EQ(train_once(ids, 3, float32), one);
  set_compute_threads(threads);
}

TEST(GroupedLinear, AnEmptyGroupHasAGradientOfZero) {
  const Tensor ids = uneven_ids(20, 2, 3, 4);
  const GroupedResults results = train_once(ids, 3, float32);
  EXPECT_EQ(results.dweights[2], Doubles(33 * 33, 0));
  EXPECT_NE(results.dweights[0], Doubles(33 * 33, 0));
}

// A second backward adds to the gradient of a group that is empty in it.
TEST(GroupedLinear, AnEmptyGroupKeepsWhatWasAccumulated) {
  const std::vector<Tensor> weights{leaf({2, 3}, 1), leaf({2, 3}, 2)};
  const Tensor x = testing::values({2, 3}, 3);
  const auto run = [&](std::int32_t group) {
    const RowGroups groups = group_rows(Tensor::from({group, group}, {2, 1}), 2);
    sum(grouped_linear(x, weights, groups)).backward();
  };
  run(0);
  const Doubles first = weights[0].grad().to_vector();
  run(1);
  EXPECT_EQ(weights[0].grad().to_vector(), first);
  EXPECT_EQ(weights[1].grad().to_vector(), first);
}

// Backward copies the rows again: a graph holds the sources' values and the products' results
// alone.
TEST(GroupedLinear, KeepsNoCopyOfTheRows) {
  const std::int64_t sources = 256, k = 4, width = 64;
  const RowGroups groups = group_rows(uneven_ids(sources, k, 4, 5), 4);
  const Tensor x = leaf({sources, width}, 1);
  std::vector<Tensor> weights;
  for (unsigned g = 0; g < 4; ++g) weights.push_back(leaf({2, width}, 2 + g));
  const auto pool = MemoryPool::current(Device::cpu());
  const std::size_t before = pool->stats().in_use;
  const Tensor y = grouped_linear(dispatch_rows(x, groups), weights, groups);
  const std::size_t held = pool->stats().in_use - before;
  EXPECT_LT(held, static_cast<std::size_t>(sources * k * width) * sizeof(double) / 4);
  sum(y).backward();
  EXPECT_TRUE(weights[0].grad().defined());
}

// A plan has the buffers of any ids: rows are spread evenly.
TEST(GroupedLinear, DevicesWithoutValuesSpreadTheRows) {
  for (const Device device :
       {Device::meta(), Device::planned(), Device::planned(DeviceType::cuda)}) {
    const DeviceGuard guard(device);
    const Tensor ids = Tensor::empty({7, 2}, int64);
    const RowGroups groups = group_rows(ids, 4);
    EXPECT_EQ(groups.starts, (std::vector<std::int64_t>{0, 4, 8, 11, 14}));
    EXPECT_EQ(groups.places.device(), device);
    const std::vector<Tensor> weights(4, Tensor::empty({5, 3}));
    const Tensor rows = dispatch_rows(Tensor::empty({7, 3}), groups);
    const Tensor y = combine_rows(grouped_linear(rows, weights, groups), groups);
    EXPECT_EQ(y.shape(), (Shape{7, 5}));
  }
}

TEST(GroupedLinear, RefusesBadInputByName) {
  const auto expect = [](const std::function<void()>& call, const std::string& part) {
    const std::string message = testing::misuse_of(call);
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  };
  const RowGroups groups = group_rows(Tensor::from({1, 0, 1, 1}, {2, 2}), 2);
  const Tensor x = Tensor::zeros({2, 3}), rows = Tensor::zeros({4, 3});
  const std::vector<Tensor> weights(2, Tensor::zeros({5, 3}));
  const auto product = [&](const Tensor& input, const std::vector<Tensor>& by) {
    return [input, by, &groups] { (void)grouped_linear(input, by, groups); };
  };
  expect([&] { (void)group_rows(x, 2); }, "group_rows: ids of float32");
  expect(
      [&] {
        (void)group_rows(Tensor::zeros({2, 2}, int32), 0);
      },
      "group_rows: ids of shape [2, 2] for 0 groups");
  expect(
      [&] {
        (void)group_rows(Tensor::zeros({2, 0}, int32), 2);
      },
      "group_rows: ids of shape [2, 0]");
  expect([&] { (void)dispatch_rows(rows, groups); },
         "dispatch_rows: a tensor of shape [4, 3]; the groups have 2 sources and 4 rows, so [2, "
         "dim] is required");
  expect([&] { (void)combine_rows(x, groups); }, "combine_rows: a tensor of shape [2, 3]");
  expect([&] { (void)dispatch_rows(x, {}); }, "dispatch_rows: input 1 is an undefined tensor");
  expect(product(x, weights), "grouped_linear: x of shape [2, 3] for groups of 4 rows");
  expect(product(Tensor::zeros({4, 2}), weights), "x must be [4, 3]");
  expect(product(rows, {}), "grouped_linear: 0 weights for 2 groups");
  expect(product(rows, {weights[0]}), "grouped_linear: 1 weights for 2 groups");
  expect(product(rows, {weights[0], Tensor::zeros({4, 3})}),
         "grouped_linear: a weight of float32 [4, 3] beside one of float32 [5, 3]");
  expect(product(rows, {weights[0], Tensor::zeros({5, 3}, float64)}), "a weight of float64");
  expect(product(rows, {Tensor::zeros({5}), Tensor::zeros({5})}), "must be matrices");
  expect(product(Tensor::zeros({4, 3}, int32), weights), "grouped_linear: input 1 is int32");
  const auto stacked = [&](const Tensor& input, const Tensor& by, const Tensor& biases) {
    return [input, by, biases, &groups] {
      (void)grouped_linear(input, by, biases, groups, WeightLayout::in_out);
    };
  };
  expect(stacked(rows, Tensor::zeros({3, 5}), {}),
         "grouped_linear: weights of shape [3, 5] for 2 groups");
  expect(stacked(rows, Tensor::zeros({3, 3, 5}), {}),
         "grouped_linear: weights of shape [3, 3, 5] for 2 groups");
  expect(stacked(rows, Tensor::zeros({2, 5, 3}), {}), "x must be [4, 5]");
  expect(stacked(rows, Tensor::zeros({2, 3, 5}), Tensor::zeros({5})),
         "grouped_linear: biases of float32 [5] for 2 groups with 5 outputs of float32");
  expect(stacked(rows, Tensor::zeros({2, 3, 5}), Tensor::zeros({2, 5}, float64)),
         "biases of float64 [2, 5]");
  const std::vector<Tensor> down(2, Tensor::zeros({2, 3}));
  expect(
      [&] {
        (void)grouped_swiglu_linear(rows, Tensor::zeros({4, 2}), down, groups);
      },
      "grouped_swiglu_linear: gate float32 [4, 3], up float32 [4, 2]");
}

TEST(GroupedLinear, AnIdOutsideTheGroupsIsAnErrorOfTheData) {
  for (const std::int32_t id : {-1, 2}) {
    const std::string message = testing::error_of(
        [&] {
          (void)group_rows(Tensor::from({1, 0, id, 1}, {2, 2}), 2);
        },
        ErrorCode::data);
    EXPECT_EQ(message,
              "group_rows: id " + std::to_string(id) + " at position 2 is outside the 2 groups");
  }
}

}  // namespace
}  // namespace tessera
