// Binary operations and affine maps: the CPU's bits.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

using kernels::BinaryOp;

struct NamedOp {
  BinaryOp op;
  const char* name;
};
constexpr NamedOp all_ops[] = {{BinaryOp::add, "add"},
                               {BinaryOp::subtract, "subtract"},
                               {BinaryOp::multiply, "multiply"},
                               {BinaryOp::divide, "divide"}};

struct BroadcastCase {
  std::int64_t outer, inner;
  std::size_t a_offset = 0, b_offset = 0, out_offset = 0;
};

void check(const NamedOp& op, DType dtype, const BroadcastCase& s) {
  const auto n = static_cast<std::size_t>(s.outer * s.inner);
  MirroredArray a(random_values(n, dtype, 1), dtype, s.a_offset);
  MirroredArray b(random_values(static_cast<std::size_t>(s.inner), dtype, 2), dtype, s.b_offset);
  MirroredArray out(std::vector<double>(n, 9), dtype, s.out_offset);
  TestContext context;
  kernels::cuda::binary({op.op, a.device(), b.device(), out.device(), s.outer, s.inner, dtype},
                        context.queue());
  kernels::cpu::binary({op.op, a.host(), b.host(), out.host(), s.outer, s.inner, dtype});
  out.expect_same("binary", op.name);
}

TEST(CudaBinary, EveryShape) {
  const BroadcastCase broadcasts[] = {
      {1, 1003},          // the same shape
      {1, 75, 1, 1, 1},   // equally off a vector boundary
      {1, 75, 1, 2, 0},   // differently
      {8, 128},           // whole groups in every row
      {13, 77},           // groups across rows
      {13, 77, 3, 1, 3},  // ... and off a boundary
      {16, 24, 0, 1, 0},  // b off a boundary
      {101, 3},           // rows shorter than a group
      {75, 1},            // a scalar
      {75, 1, 1, 0, 2},   // a scalar, element by element
      {0, 5},
      {5, 0},  // no elements
      {1, 0},
      {1, 1},
  };
  for (const NamedOp& op : all_ops) {
    for (const DType dtype : floating_dtypes) {
      for (const BroadcastCase& shape : broadcasts) check(op, dtype, shape);
    }
  }
}

TEST(CudaBinary, InPlace) {
  constexpr std::int64_t n = 75;
  for (const DType dtype : floating_dtypes) {
    for (const NamedOp& op : all_ops) {
      MirroredArray a(random_values(n, dtype, 1), dtype, 1);
      MirroredArray b(random_values(n, dtype, 2), dtype, 1);
      TestContext context;
      kernels::cuda::binary({op.op, a.device(), b.device(), b.device(), 1, n, dtype},
                            context.queue());
      kernels::cpu::binary({op.op, a.host(), b.host(), b.host(), 1, n, dtype});
      b.expect_same("binary", "over b");
      kernels::cuda::binary({op.op, a.device(), b.device(), a.device(), 5, 15, dtype},
                            context.queue());
      kernels::cpu::binary({op.op, a.host(), b.host(), a.host(), 5, 15, dtype});
      a.expect_same("binary", "over a");
    }
  }
}

TEST(CudaBinary, RefusesInvalidOperations) {
  const DeviceMemory x(16);
  TestContext context;
  EXPECT_THROW(
      kernels::cuda::binary({static_cast<BinaryOp>(9), x.data(), x.data(), x.data(), 1, 4, float32},
                            context.queue()),
      std::logic_error);
}

// A product and a sum, each rounded; a fused operation would give another result.
TEST(CudaAffine, EveryLengthAndOffset) {
  for (const DType dtype : floating_dtypes) {
    for (const std::size_t n : array_lengths) {
      for (const std::size_t offset : array_offsets) {
        const auto count = static_cast<std::int64_t>(n);
        MirroredArray x(random_values(n, dtype, 1), dtype, offset);
        MirroredArray out(std::vector<double>(n, 9), dtype, offset == 3 ? 0 : offset);
        TestContext context;
        kernels::cuda::affine({x.device(), out.device(), count, dtype, 1.0 / 3, -0.7},
                              context.queue());
        kernels::cpu::affine({x.host(), out.host(), count, dtype, 1.0 / 3, -0.7});
        out.expect_same("affine", "out");
        kernels::cuda::affine({x.device(), x.device(), count, dtype, 1.0 / 3, -0.7},
                              context.queue());
        kernels::cpu::affine({x.host(), x.host(), count, dtype, 1.0 / 3, -0.7});
        x.expect_same("affine", "in place");
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
