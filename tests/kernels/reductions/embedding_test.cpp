// Table lookup and its backward compared with plain loops, for every type; bad ids are refused.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

using testing::narrow;
using testing::to_compute;

template <class T>
std::vector<T> normal(std::int64_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> distribution;
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& value : values) value = narrow<T>(distribution(generator));
  return values;
}

// Every second row has id 2: a token that fills half of a batch.
template <class Id>
std::vector<Id> skewed_ids(std::int64_t rows, std::int64_t entries) {
  std::mt19937 generator(4);
  std::vector<Id> ids(static_cast<std::size_t>(rows));
  for (std::size_t r = 0; r < ids.size(); ++r) {
    ids[r] = static_cast<Id>(r % 2 == 0 ? std::min<std::int64_t>(2, entries - 1)
                                        : static_cast<std::int64_t>(generator() % entries));
  }
  return ids;
}

template <class T, class Id>
void check(std::int64_t rows, std::int64_t entries, std::int64_t dim) {
  using C = decltype(to_compute(T{}));
  const auto ids = skewed_ids<Id>(rows, entries);
  const auto table = normal<T>(entries * dim, 1);
  std::vector<T> out(static_cast<std::size_t>(rows * dim));
  cpu::embedding_forward({.ids = ids.data(),
                          .id_dtype = dtype_of<Id>,
                          .table = table.data(),
                          .out = out.data(),
                          .rows = rows,
                          .entries = entries,
                          .dim = dim,
                          .dtype = dtype_of<T>});
  for (std::int64_t r = 0; r < rows; ++r) {
    ASSERT_EQ(std::memcmp(&out[r * dim], &table[ids[r] * dim], dim * sizeof(T)), 0) << r;
  }
  const auto dout = normal<T>(rows * dim, 2);
  std::vector<C> sums(static_cast<std::size_t>(entries * dim));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < dim; ++i) sums[ids[r] * dim + i] += to_compute(dout[r * dim + i]);
  }
  for (const bool accumulate : {false, true}) {
    auto dtable = table;
    cpu::embedding_backward({.ids = ids.data(),
                             .id_dtype = dtype_of<Id>,
                             .dout = dout.data(),
                             .dtable = dtable.data(),
                             .rows = rows,
                             .entries = entries,
                             .dim = dim,
                             .dtype = dtype_of<T>,
                             .accumulate = accumulate});
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const T want = narrow<T>(accumulate ? to_compute(table[i]) + sums[i] : sums[i]);
      ASSERT_EQ(to_compute(dtable[i]), to_compute(want)) << i << " accumulate " << accumulate;
    }
  }
}

template <class T>
void check_embedding_of() {
  const int threads = compute_threads();
  for (const int workers : {1, 3}) {
    set_compute_threads(workers);
    for (const std::int64_t dim : {1, 7, 16, 67, 200}) {
      check<T, std::int32_t>(50, 11, dim);
      check<T, std::int64_t>(9, 100, dim);
      check<T, std::int64_t>(1, 1, dim);
      check<T, std::int32_t>(0, 3, dim);
    }
  }
  set_compute_threads(threads);
}

TEST(Embedding, Float32) {
  check_embedding_of<float>();
}
TEST(Embedding, BFloat16) {
  check_embedding_of<BFloat16>();
}
TEST(Embedding, Float16) {
  check_embedding_of<Float16>();
}
TEST(Embedding, Float64) {
  check_embedding_of<double>();
}

TEST(Embedding, ABadIdIsNamedAndNothingIsWritten) {
  const std::vector<float> table(40, 1.0f), dout(12, 1.0f);
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{10}, std::int64_t{1} << 40}) {
    const std::vector<std::int64_t> ids{0, 9, bad};
    std::vector<float> out(12, 5.0f), dtable(40, 5.0f);
    const auto expect_error = [&](auto&& call) {
      try {
        call();
        FAIL() << "id " << bad << " went through";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::data);
        const std::string text = error.what();
        EXPECT_NE(text.find("id " + std::to_string(bad)), std::string::npos) << text;
        EXPECT_NE(text.find("position 2"), std::string::npos) << text;
      }
    };
    expect_error([&] {
      cpu::embedding_forward({.ids = ids.data(),
                              .id_dtype = int64,
                              .table = table.data(),
                              .out = out.data(),
                              .rows = 3,
                              .entries = 10,
                              .dim = 4,
                              .dtype = float32});
    });
    expect_error([&] {
      cpu::embedding_backward({.ids = ids.data(),
                               .id_dtype = int64,
                               .dout = dout.data(),
                               .dtable = dtable.data(),
                               .rows = 3,
                               .entries = 10,
                               .dim = 4,
                               .dtype = float32});
    });
    EXPECT_EQ(out, std::vector<float>(12, 5.0f));
    EXPECT_EQ(dtable, std::vector<float>(40, 5.0f));
  }
}

}  // namespace
}  // namespace tessera::kernels
