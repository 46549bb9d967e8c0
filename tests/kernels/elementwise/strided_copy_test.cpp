// Strided copies for every instruction set: transpositions of every size of element around the
// tiles' edges, regions of larger arrays, repeats, any number of threads.
#include <gtest/gtest.h>

#include <numeric>

#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

template <class T>
std::vector<T> numbers(std::int64_t n) {
  std::vector<T> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i * 7 + 1);
  return values;
}

DType dtype_of_size(std::size_t size) {
  if (size == 1) return uint8;
  if (size == 2) return bfloat16;
  return size == 4 ? int32 : int64;
}

// Copies element by element.
template <class T>
void expect_copied(const StridedShape<2>& shape, std::int64_t in_size, std::int64_t out_size) {
  const std::vector<T> in = numbers<T>(in_size);
  std::vector<T> wanted(static_cast<std::size_t>(out_size), T{0}), out = wanted;
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    const StridedWalk<2> walk(shape, shape.dimensions, i);
    wanted[static_cast<std::size_t>(walk.offset(1))] = in[static_cast<std::size_t>(walk.offset(0))];
  }
  cpu::strided_copy({in.data(), out.data(), shape, dtype_of_size(sizeof(T))});
  testing::expect_same_bits(out, wanted, "strided_copy");
}

template <class T>
void check_shapes() {
  for (const std::int64_t rows : {1, 3, 8, 16, 17, 64, 65, 130}) {
    for (const std::int64_t columns : {2, 16, 33, 64, 100}) {
      // out[b][c][r] = in[b][r][c].
      expect_copied<T>(
          {3, {2, columns, rows}, {{rows * columns, 1, columns}, {rows * columns, rows, 1}}},
          2 * rows * columns, 2 * rows * columns);
    }
  }
  // A region of a larger array into another; every third element; a repeated row and a repeated
  // element.
  expect_copied<T>({2, {5, 9}, {{20, 1}, {13, 1}}}, 200, 100);
  expect_copied<T>({2, {5, 9}, {{30, 3}, {9, 1}}}, 200, 45);
  expect_copied<T>({2, {5, 70}, {{0, 1}, {70, 1}}}, 70, 350);
  expect_copied<T>({2, {5, 70}, {{1, 0}, {70, 1}}}, 5, 350);
  expect_copied<T>({0, {}, {{}, {}}}, 1, 1);
  expect_copied<T>({2, {0, 4}, {{4, 1}, {4, 1}}}, 1, 1);
  // Rows that are pairs of elements, which may be copied as one: the transposition of pairs.
  expect_copied<T>({3, {6, 10, 2}, {{2, 12, 1}, {20, 2, 1}}}, 120, 120);
  // Six dimensions in reverse.
  expect_copied<T>({6, {2, 3, 2, 3, 2, 3}, {{1, 2, 6, 12, 36, 72}, {108, 36, 18, 6, 3, 1}}}, 216,
                   216);
}

TEST(StridedCopy, CopiesTheElementsThatTheStridesName) {
  testing::for_each_target([] {
    check_shapes<std::uint8_t>();
    check_shapes<std::uint16_t>();
    check_shapes<std::uint32_t>();
    check_shapes<std::uint64_t>();
  });
}

TEST(StridedCopy, AnyNumberOfThreadsCopiesTheSame) {
  const std::vector<float> in = testing::normals<float>(300 * 500, 1);
  testing::expect_thread_invariant([&] {
    std::vector<float> out(in.size());
    cpu::strided_copy({in.data(), out.data(), {2, {500, 300}, {{1, 500}, {300, 1}}}, float32});
    return out;
  });
}

// A transposed copy that is written past the caches, `rows` elements of rows that are `line` long,
// to a place `offset` elements behind a cache line's begin.
template <class T>
void check_large(std::int64_t rows, std::int64_t columns, std::int64_t line, std::int64_t offset) {
  const std::vector<T> in = numbers<T>(rows * columns);
  std::vector<T> memory(static_cast<std::size_t>(columns * line) + 2 * 64 / sizeof(T), T{0});
  T* out = memory.data();
  while (reinterpret_cast<std::uintptr_t>(out) % 64 != 0) ++out;
  out += offset;
  testing::for_each_target([&] {
    std::fill(memory.begin(), memory.end(), T{0});
    cpu::strided_copy({in.data(),
                       out,
                       {2, {columns, rows}, {{1, columns}, {line, 1}}},
                       dtype_of_size(sizeof(T))});
    for (std::int64_t c = 0; c < columns; ++c) {
      for (std::int64_t r = 0; r < line && (c + 1 < columns || r < rows); ++r) {
        const T wanted = r < rows ? in[static_cast<std::size_t>(r * columns + c)] : T{0};
        ASSERT_EQ(out[c * line + r], wanted) << rows << " x " << columns << ": " << r << ", " << c;
      }
    }
  });
}

TEST(StridedCopy, TransposesMoreThanCachesHold) {
  check_large<std::uint32_t>(1088, 1100, 1088, 0);
  check_large<std::uint32_t>(1070, 1100, 1088, 5);
  check_large<std::uint32_t>(1070, 1100, 1071, 5);  // lines begin anywhere
  check_large<std::uint16_t>(2112, 1033, 2112, 0);
  check_large<std::uint16_t>(2100, 1033, 2112, 31);
  check_large<std::uint8_t>(2100, 2049, 2112, 1);
  check_large<std::uint64_t>(760, 700, 768, 3);
}

// [batch, length, heads, size] to [batch, heads, length, size], for rows of whole cache lines and
// others, at the beginning of a line and behind it.
template <class T>
void check_large_heads(std::int64_t size, std::int64_t offset) {
  constexpr std::int64_t batch = 2, heads = 6, length = 1900;
  const StridedShape<2> shape{4,
                              {batch, heads, length, size},
                              {{length * heads * size, size, heads * size, 1},
                               {heads * length * size, length * size, size, 1}}};
  const std::vector<T> in = numbers<T>(shape.elements());
  std::vector<T> memory(in.size() + 2 * 64 / sizeof(T), T{0});
  T* out = memory.data();
  while (reinterpret_cast<std::uintptr_t>(out) % 64 != 0) ++out;
  out += offset;
  testing::for_each_target([&] {
    std::fill(memory.begin(), memory.end(), T{0});
    cpu::strided_copy({in.data(), out, shape, dtype_of_size(sizeof(T))});
    for (std::int64_t i = 0; i < shape.elements(); ++i) {
      const StridedWalk<2> walk(shape, shape.dimensions, i);
      ASSERT_EQ(out[walk.offset(1)], in[static_cast<std::size_t>(walk.offset(0))])
          << size << ", " << i;
    }
  });
}

TEST(StridedCopy, CopiesMoreRowsThanCachesHold) {
  check_large_heads<std::uint32_t>(64, 0);
  check_large_heads<std::uint32_t>(64, 3);
  check_large_heads<std::uint16_t>(128, 0);
  check_large_heads<std::uint16_t>(125, 0);
  check_large_heads<std::uint64_t>(32, 0);
}

TEST(StridedCopy, NeighboursAreJoinedAndSizesOfOneDropped) {
  const StridedShape<2> shape{5, {2, 1, 3, 4, 1}, {{12, 99, 4, 1, 7}, {24, 5, 4, 1, 3}}};
  const StridedShape<2> joined = merged(shape);
  EXPECT_EQ(joined.dimensions, 2);
  EXPECT_EQ(joined.sizes[1], 12);
  EXPECT_EQ(joined.strides[0][0], 12);
  EXPECT_EQ(joined.strides[1][0], 24);
}

}  // namespace
}  // namespace tessera::kernels
