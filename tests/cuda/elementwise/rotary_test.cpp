// Rotary positions: the CPU's bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

struct RotaryCase {
  std::int64_t rows, sequence, heads, head_dim, first_position = 0;
  std::int64_t x_padding = 0, out_padding = 0;  // per row
  std::size_t x_offset = 0, out_offset = 0, table_offset = 0;

  [[nodiscard]] std::int64_t x_stride() const { return heads * head_dim + x_padding; }
  [[nodiscard]] std::int64_t out_stride() const { return heads * head_dim + out_padding; }
};
constexpr RotaryCase rotary_shapes[] = {
    {6, 3, 2, 32},                    // two sequences
    {6, 3, 2, 32, 5, 64, 0},          // packed rows, later positions
    {5, 5, 3, 6},                     // half a head is not a whole group
    {5, 5, 1, 16, 0, 3, 8},           // strides are not whole groups
    {4, 4, 2, 16, 1, 0, 0, 1, 1, 0},  // not on vector boundaries
    {4, 4, 2, 16, 1, 0, 0, 0, 3, 0},
    {4, 4, 2, 16, 0, 0, 0, 0, 0, 1},
    {3, 8, 1, 2},
    {0, 4, 2, 16},
    {4, 4, 0, 16},
};

std::vector<double> angles(const RotaryCase& s, bool sine) {
  std::vector<double> table;
  for (std::int64_t position = 0; position < s.first_position + s.sequence; ++position) {
    for (std::int64_t i = 0; i < s.head_dim / 2; ++i) {
      const double angle =
          static_cast<double>(position) *
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(s.head_dim));
      table.push_back(sine ? std::sin(angle) : std::cos(angle));
    }
  }
  return table;
}

kernels::Rotary arguments(const RotaryCase& s, bool inverse, DType dtype) {
  return {.x = nullptr,
          .out = nullptr,
          .cosine = nullptr,
          .sine = nullptr,
          .rows = s.rows,
          .sequence = s.sequence,
          .heads = s.heads,
          .head_dim = s.head_dim,
          .first_position = s.first_position,
          .x_stride = s.x_stride(),
          .out_stride = s.out_stride(),
          .inverse = inverse,
          .dtype = dtype};
}

std::size_t extent(const RotaryCase& s, std::int64_t stride) {
  return s.rows == 0 ? 0 : static_cast<std::size_t>((s.rows - 1) * stride + s.heads * s.head_dim);
}

void check(const RotaryCase& s, bool inverse, DType dtype) {
  MirroredArray x(random_values(extent(s, s.x_stride()), dtype, 1), dtype, s.x_offset);
  MirroredArray out(std::vector<double>(extent(s, s.out_stride()), 9), dtype, s.out_offset);
  MirroredArray cosine(angles(s, false), float32, s.table_offset);
  MirroredArray sine(angles(s, true), float32, s.table_offset);
  TestContext context;
  kernels::Rotary device = arguments(s, inverse, dtype);
  device.x = x.device();
  device.out = out.device();
  device.cosine = static_cast<const float*>(cosine.device());
  device.sine = static_cast<const float*>(sine.device());
  kernels::Rotary host = arguments(s, inverse, dtype);
  host.x = x.host();
  host.out = out.host();
  host.cosine = static_cast<const float*>(cosine.host());
  host.sine = static_cast<const float*>(sine.host());
  kernels::cuda::rotary(device, context.queue());
  kernels::cpu::rotary(host);
  out.expect_same("rotary", inverse ? "inverse" : "out");
  device.out = x.device();
  host.out = x.host();
  device.out_stride = host.out_stride = s.x_stride();
  kernels::cuda::rotary(device, context.queue());
  kernels::cpu::rotary(host);
  x.expect_same("rotary", "in place");
}

TEST(CudaRotary, EveryShape) {
  for (const RotaryCase& shape : rotary_shapes) {
    for (const DType dtype : floating_dtypes) {
      check(shape, false, dtype);
      check(shape, true, dtype);
    }
  }
}

TEST(CudaRotary, RefusesWhatTheCpuRefuses) {
  TestContext context;
  EXPECT_THROW(kernels::cuda::rotary(arguments({2, 2, 1, 3}, false, float32), context.queue()),
               std::logic_error);
  EXPECT_THROW(kernels::cuda::rotary(arguments({2, 0, 1, 4}, false, float32), context.queue()),
               std::logic_error);
  EXPECT_THROW(kernels::cuda::rotary(arguments({2, 2, 1, 4, -1}, false, float32), context.queue()),
               std::logic_error);
  EXPECT_THROW(
      kernels::cuda::rotary(arguments({2, 2, 1, 4, 0, -1}, false, float32), context.queue()),
      std::logic_error);
  EXPECT_THROW(kernels::cuda::rotary(arguments({2, 2, 1, 4}, false, int32), context.queue()),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::testing
