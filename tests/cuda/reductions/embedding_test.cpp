// Table lookup on the GPU and its backward give the CPU's bits.
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

using kernels::cuda::Fault;

struct EmbeddingCase {
  std::int64_t rows, entries, dim;
  std::size_t offset = 0;
};
// One pass of the sort and two, one tile of rows and several, an id that half of the rows have.
const std::vector<EmbeddingCase> embedding_cases = {
    {40, 9, 16}, {40, 9, 13, 1}, {7, 260, 24}, {0, 5, 8}, {3, 1, 1}, {20, 4, 0}, {64, 5, 8, 1}};

std::vector<double> ids_of(const EmbeddingCase& c) {
  std::mt19937 random(301);
  std::vector<double> ids;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    ids.push_back(row % 2 == 0 ? 0
                               : static_cast<double>(random() % static_cast<unsigned>(c.entries)));
  }
  return ids;
}

std::vector<double> values_of(std::int64_t rows, std::int64_t dim, DType dtype, unsigned seed) {
  return random_values(static_cast<std::size_t>(rows * dim), dtype, seed);
}

void check_forward(const EmbeddingCase& c, DType dtype, DType id_dtype) {
  MirroredArray ids(ids_of(c), id_dtype);
  MirroredArray table(values_of(c.entries, c.dim, dtype, 1), dtype, c.offset);
  MirroredArray out(values_of(c.rows, c.dim, dtype, 2), dtype, c.offset);
  TestContext context;
  kernels::cuda::embedding_forward(
      {ids.device(), id_dtype, table.device(), out.device(), c.rows, c.entries, c.dim, dtype},
      context.queue());
  kernels::cpu::embedding_forward(
      {ids.host(), id_dtype, table.host(), out.host(), c.rows, c.entries, c.dim, dtype});
  out.expect_same("embedding_forward", "out");
  EXPECT_EQ(context.read_fault().kind, Fault::none);
}

void check_backward(const EmbeddingCase& c, DType dtype, DType id_dtype, bool accumulate) {
  MirroredArray ids(ids_of(c), id_dtype);
  MirroredArray dout(values_of(c.rows, c.dim, dtype, 3), dtype, c.offset);
  MirroredArray dtable(values_of(c.entries, c.dim, dtype, 4), dtype, c.offset);
  TestContext context;
  kernels::cuda::embedding_backward({ids.device(), id_dtype, dout.device(), dtable.device(), c.rows,
                                     c.entries, c.dim, dtype, accumulate},
                                    context.queue());
  kernels::cpu::embedding_backward({ids.host(), id_dtype, dout.host(), dtable.host(), c.rows,
                                    c.entries, c.dim, dtype, accumulate});
  dtable.expect_same("embedding_backward", "dtable");
  EXPECT_EQ(context.read_fault().kind, Fault::none);
}

TEST(CudaEmbedding, Forward) {
  for (const EmbeddingCase& c : embedding_cases) {
    for (const DType dtype : floating_dtypes) {
      for (const DType id_dtype : {int32, int64}) check_forward(c, dtype, id_dtype);
    }
  }
}

TEST(CudaEmbedding, Backward) {
  for (const EmbeddingCase& c : embedding_cases) {
    SCOPED_TRACE(std::to_string(c.rows) + " rows of " + std::to_string(c.entries) + " entries");
    for (const DType dtype : floating_dtypes) {
      check_backward(c, dtype, c.offset == 0 ? int64 : int32, false);
      check_backward(c, dtype, c.offset == 0 ? int32 : int64, true);
    }
  }
}

TEST(CudaEmbedding, BackwardOfManyRows) {
  check_backward({3000, 300, 3}, float32, int32, false);
  check_backward({2048, 257, 1}, bfloat16, int64, true);
}

TEST(CudaEmbedding, ReportsIdsOutsideTheTable) {
  for (const DType id_dtype : {int32, int64}) {
    for (const double bad : {5.0, -1.0, 256.0}) {
      const DeviceMemory ids({4, bad, 4}, id_dtype);
      const DeviceMemory table(std::vector<double>(5 * 8, 2), float32);
      const DeviceMemory out(std::vector<double>(3 * 8, 7), float32);
      const DeviceMemory dtable(std::vector<double>(5 * 8, 9), float32);
      TestContext forward, backward;
      kernels::cuda::embedding_forward(
          {ids.data(), id_dtype, table.data(), out.data(), 3, 5, 8, float32}, forward.queue());
      forward.synchronize();
      kernels::cuda::embedding_backward(
          {ids.data(), id_dtype, out.data(), dtable.data(), 3, 5, 8, float32, false},
          backward.queue());
      for (const Fault& fault : {forward.read_fault(), backward.read_fault()}) {
        EXPECT_EQ(fault.kind, Fault::embedding_id);
        EXPECT_EQ(fault.position, 1);
        EXPECT_EQ(fault.value, static_cast<std::int64_t>(bad));
        EXPECT_EQ(fault.limit, 5);
      }
      std::vector<double> rows(3 * 8, 2), sums(5 * 8);
      for (std::size_t i = 8; i < 16; ++i) rows[i] = 0;
      for (std::size_t i = 32; i < 40; ++i) sums[i] = 4;
      EXPECT_EQ(out.read(float32), rows);
      EXPECT_EQ(dtable.read(float32), sums);
    }
  }
}

TEST(CudaEmbedding, RefusesInvalidTypesAndSizes) {
  TestContext context;
  const DeviceMemory memory(64);
  void* p = memory.data();
  EXPECT_THROW(
      kernels::cuda::embedding_forward({p, float32, p, p, 1, 1, 4, float32}, context.queue()),
      std::logic_error);
  EXPECT_THROW(
      kernels::cuda::embedding_backward({p, int32, p, p, 1, 1, 4, int32, false}, context.queue()),
      std::logic_error);
  EXPECT_THROW(kernels::cuda::embedding_backward(
                   {p, int32, p, p, std::int64_t{1} << 31, 1, 4, float32, false}, context.queue()),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::testing
