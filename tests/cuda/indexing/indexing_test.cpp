// Gathers, scatters and sorts: the CPU's bits; ids that are out of range are reported.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

using kernels::AxisIds;

template <class Id>
std::vector<std::byte> id_bytes(const std::vector<Id>& ids) {
  std::vector<std::byte> bytes(ids.size() * sizeof(Id));
  std::memcpy(bytes.data(), ids.data(), bytes.size());
  return bytes;
}

TEST(CudaIndexing, GatherAndScatterAddInEveryDtype) {
  constexpr std::int64_t outer = 2, entries = 5, length = 40, inner = 19;
  for (const DType dtype : floating_dtypes) {
    for (const bool shared : {false, true}) {
      std::mt19937 generator(1);
      std::vector<std::int32_t> ids(
          static_cast<std::size_t>(shared ? length : outer * length * inner));
      for (std::int32_t& id : ids) id = static_cast<std::int32_t>(generator() % entries);
      const DeviceMemory device_ids(id_bytes(ids));
      MirroredArray table(random_values(outer * entries * inner, dtype, 2), dtype, 1);
      MirroredArray rows(std::vector<double>(outer * length * inner, 9), dtype, 1);
      const AxisIds on_host{ids.data(), int32, outer, entries, length, inner, shared};
      AxisIds on_device = on_host;
      on_device.ids = device_ids.data();
      TestContext context;
      kernels::cuda::gather({on_device, table.device(), rows.device(), dtype}, context.queue());
      kernels::cpu::gather({on_host, table.host(), rows.host(), dtype});
      rows.expect_same("gather", shared ? "shared ids" : "own ids");
      kernels::cuda::scatter_add({on_device, rows.device(), table.device(), dtype},
                                 context.queue());
      kernels::cpu::scatter_add({on_host, rows.host(), table.host(), dtype});
      table.expect_same("scatter_add", shared ? "shared ids" : "own ids");
    }
  }
}

TEST(CudaIndexing, IdsOutsideAreReported) {
  const std::vector<std::int64_t> ids = {0, 7};
  const DeviceMemory device_ids(id_bytes(ids)), x(64);
  TestContext context;
  kernels::cuda::gather({{device_ids.data(), int64, 1, 3, 2, 2, true}, x.data(), x.data(), float32},
                        context.queue());
  const kernels::cuda::Fault fault = context.read_fault();
  EXPECT_EQ(fault.kind, kernels::cuda::Fault::axis_id);
  EXPECT_EQ(fault.position, 1);
  EXPECT_EQ(fault.value, 7);
  EXPECT_EQ(fault.limit, 3);
}

TEST(CudaIndexing, SortedRowsInSharedMemoryAndInScratch) {
  for (const DType dtype : floating_dtypes) {
    for (const std::int64_t length : {1, 2, 37, 256, 1300}) {
      const std::int64_t rows = 2;
      std::vector<double> values = random_values(static_cast<std::size_t>(rows * length), dtype, 3);
      for (double& value : values) value = std::round(2 * value) / 2;
      if (length > 20) values[3] = values[17] = std::nan("");
      MirroredArray x(values, dtype);
      for (const bool descending : {false, true}) {
        const auto n = static_cast<std::size_t>(rows * length);
        const DeviceMemory order(n * sizeof(std::int64_t));
        std::vector<std::int64_t> wanted(n), got(n);
        TestContext context;
        kernels::cuda::sort_order(
            {x.device(), order.as<std::int64_t>(), rows, length, dtype, descending},
            context.queue());
        kernels::cpu::sort_order({x.host(), wanted.data(), rows, length, dtype, descending});
        context.synchronize();
        std::memcpy(got.data(), order.read().data(), n * sizeof(std::int64_t));
        EXPECT_EQ(got, wanted) << name_of(dtype) << " " << length;
        expect_equal("sort_order", descending ? "descending" : "ascending", dtype,
                     std::vector<double>(got.begin(), got.end()),
                     std::vector<double>(wanted.begin(), wanted.end()));
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
