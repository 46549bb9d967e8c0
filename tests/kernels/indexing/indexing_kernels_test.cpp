// Gathers, scatters and the order of sorted rows: threads, shared and own ids, ids that are out of
// range.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "kernels/kernel_testing.h"
#include "kernels/keys/sort_key.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

template <class T>
class IndexingKernel : public ::testing::Test {};
TYPED_TEST_SUITE(IndexingKernel, testing::FloatingTypes);

std::vector<std::int64_t> random_ids(std::int64_t count, std::int64_t end) {
  std::mt19937 generator(1);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  for (std::int64_t& id : ids) id = static_cast<std::int64_t>(generator()) % end;
  return ids;
}

TYPED_TEST(IndexingKernel, GatherAndScatterAddFollowTheIds) {
  using T = TypeParam;
  constexpr std::int64_t outer = 3, entries = 7, length = 90, inner = 70;
  for (const bool shared : {false, true}) {
    const std::vector<std::int64_t> ids =
        random_ids(shared ? length : outer * length * inner, entries);
    const std::vector<T> x = testing::normals<T>(outer * entries * inner, 2);
    const AxisIds at{ids.data(), int64, outer, entries, length, inner, shared};
    std::vector<T> out(static_cast<std::size_t>(outer * length * inner));
    std::vector<T> wanted = out;
    std::vector<double> sums(x.size());
    for (std::int64_t o = 0; o < outer; ++o) {
      for (std::int64_t l = 0; l < length; ++l) {
        for (std::int64_t i = 0; i < inner; ++i) {
          const auto to = static_cast<std::size_t>((o * length + l) * inner + i);
          const std::int64_t id = ids[shared ? static_cast<std::size_t>(l) : to];
          const auto from = static_cast<std::size_t>((o * entries + id) * inner + i);
          wanted[to] = x[from];
          sums[from] += testing::widen(x[from]);
        }
      }
    }
    cpu::gather({at, x.data(), out.data(), dtype_of<T>});
    testing::expect_same_bits(out, wanted, "gather");
    std::vector<T> added(x.size(), testing::narrow<T>(0));
    cpu::scatter_add({at, wanted.data(), added.data(), dtype_of<T>});
    testing::expect_close(added, sums, 40, 10);
    testing::expect_thread_invariant([&] {
      std::vector<T> again(x.size(), testing::narrow<T>(0));
      cpu::scatter_add({at, wanted.data(), again.data(), dtype_of<T>});
      return again;
    });
  }
}

TYPED_TEST(IndexingKernel, OrdersAreStable) {
  using T = TypeParam;
  std::vector<double> values = testing::doubles(testing::normals<T>(4 * 333, 3));
  for (double& value : values) value = std::round(value * 2) / 2;
  values[5] = values[200] = std::nan("");
  const std::vector<T> x = testing::array_of<T>(values);
  for (const bool descending : {false, true}) {
    std::vector<std::int64_t> order(x.size()), wanted(x.size());
    cpu::sort_order({x.data(), order.data(), 4, 333, dtype_of<T>, descending});
    for (std::size_t row = 0; row < 4; ++row) {
      const auto begin = wanted.begin() + static_cast<std::ptrdiff_t>(row * 333);
      std::iota(begin, begin + 333, std::int64_t{0});
      const double* v = values.data() + row * 333;
      const auto key = [&](std::int64_t i) { return std::isnan(v[i]) ? INFINITY : v[i]; };
      std::stable_sort(begin, begin + 333, [&](std::int64_t a, std::int64_t b) {
        return descending ? key(a) > key(b) : key(a) < key(b);
      });
    }
    EXPECT_EQ(order, wanted);
  }
}

TEST(IndexingKernels, SortKeysHaveTheOrderOfTheNumbers) {
  const double ascending[] = {-INFINITY, -1e300, -1,    -1e-310,  0,
                              1e-310,    1,      1e300, INFINITY, std::nan("")};
  for (std::size_t i = 1; i < std::size(ascending); ++i)
    EXPECT_LT(sort_key(ascending[i - 1]), sort_key(ascending[i]));
  EXPECT_EQ(sort_key(-0.0), sort_key(0.0));
  EXPECT_EQ(sort_key(-0.0f), sort_key(0.0f));
  EXPECT_EQ(sort_key(-std::nanf("")), sort_key(std::nanf("")));
}

TEST(IndexingKernels, AnIdOutsideChangesNothing) {
  const std::int32_t ids[] = {0, 2};
  float x[] = {1, 2}, out[] = {5, 5};
  EXPECT_THROW(cpu::scatter_add({{ids, int32, 1, 2, 2, 1, true}, x, out, float32}), Error);
  EXPECT_EQ(out[0], 5);
  EXPECT_THROW(cpu::gather({{ids, float32, 1, 2, 2, 1, true}, x, out, float32}), std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels
