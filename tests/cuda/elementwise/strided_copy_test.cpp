// Strided copies: the CPU's bits for transpositions, regions and repeats of elements of every size.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

using kernels::StridedShape;

void check(DType dtype, const StridedShape<2>& shape, std::size_t in_size, std::size_t out_size,
           std::size_t offset, const char* output) {
  MirroredArray in(random_values(in_size, dtype, 1), dtype, offset);
  MirroredArray out(std::vector<double>(out_size, 9), dtype, offset);
  TestContext context;
  kernels::cuda::strided_copy({in.device(), out.device(), shape, dtype}, context.queue());
  kernels::cpu::strided_copy({in.host(), out.host(), shape, dtype});
  out.expect_same("strided_copy", output);
}

TEST(CudaStridedCopy, EveryShapeAndElement) {
  for (const DType dtype : floating_dtypes) {
    for (const std::size_t offset : {0, 1}) {
      check(dtype, {2, {33, 70}, {{1, 33}, {70, 1}}}, 33 * 70, 33 * 70, offset, "transpose");
      check(dtype, {3, {2, 64, 40}, {{2560, 1, 64}, {2560, 40, 1}}}, 5120, 5120, offset,
            "batched transpose");
      check(dtype, {4, {2, 3, 5, 16}, {{240, 16, 48, 1}, {240, 80, 16, 1}}}, 480, 480, offset,
            "heads");
      check(dtype, {2, {5, 9}, {{20, 1}, {13, 1}}}, 100, 70, offset, "region");
      check(dtype, {2, {5, 9}, {{30, 3}, {9, 1}}}, 150, 45, offset, "steps");
      check(dtype, {2, {5, 64}, {{0, 1}, {64, 1}}}, 64, 320, offset, "repeated row");
      check(dtype, {2, {5, 64}, {{1, 0}, {64, 1}}}, 5, 320, offset, "repeated elements");
      check(dtype, {6, {2, 3, 2, 3, 2, 3}, {{1, 2, 6, 12, 36, 72}, {108, 36, 18, 6, 3, 1}}}, 216,
            216, offset, "reversed");
      check(dtype, {2, {0, 4}, {{4, 1}, {4, 1}}}, 4, 4, offset, "nothing");
      check(dtype, {0, {}, {{}, {}}}, 1, 1, offset, "one element");
    }
  }
}

TEST(CudaStridedCopy, BytesOfMasks) {
  std::vector<std::byte> bytes(15 * 9);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  const DeviceMemory in(bytes), out(bytes.size());
  TestContext context;
  kernels::cuda::strided_copy({in.data(), out.data(), {2, {9, 15}, {{1, 9}, {15, 1}}}, boolean},
                              context.queue());
  context.synchronize();
  const std::vector<std::byte> got = out.read();
  for (std::size_t r = 0; r < 9; ++r) {
    for (std::size_t c = 0; c < 15; ++c) EXPECT_EQ(got[r * 15 + c], bytes[c * 9 + r]);
  }
}

}  // namespace
}  // namespace tessera::testing
