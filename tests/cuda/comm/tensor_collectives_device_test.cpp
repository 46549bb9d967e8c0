// Context::all_gather, all_reduce and mean, and the all-to-all of ContextParallel, on a GPU: for
// ranks that share one, and ranks over NCCL, the CPU's values, and in the fixed order the CPU's
// bits.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <vector>

#include "comm/shared/collective_cases.h"
#include "cuda/comm/nccl_ranks.h"
#include "cuda/device_under_test.h"
#include "engine/ops.h"
#include "sharding/context/context.h"
#include "sharding/context/tensor_collectives.h"

namespace tessera::testing {
namespace {

using Numbers = std::vector<double>;
using ByRank = std::map<int, std::vector<Numbers>>;

Tensor numbered_rows(int rank, std::int64_t rows, DType dtype, std::uint64_t seed, Device device) {
  Numbers numbers;
  for (std::int64_t i = 0; i < rows * 8; ++i) {
    numbers.push_back(comm::cases::value_of(seed, rank, i));
  }
  const DeviceGuard on_host(Device::cpu());
  return cast(Tensor::from(numbers, {rows, 8}), dtype).to(device);
}

// Gathered rows, sums, means and exchanged pieces, and this rank's gradients, in several rounds and
// two dtypes.
std::vector<Numbers> results_with_gradients(const Context& context) {
  const Device device = context.device();
  std::vector<Numbers> seen;
  const auto pieces =
      std::make_shared<TensorCollectives>(context.communicator().duplicate("pieces"));
  for (int round = 0; round < 3; ++round) {
    for (const DType dtype : {float32, bfloat16}) {
      const auto seed = static_cast<std::uint64_t>(round + 1);
      Tensor mine = numbered_rows(context.rank(), 5, dtype, seed, device);
      mine.set_requires_grad(true);
      const Tensor all = context.all_gather(mine);
      const Tensor weights =
          numbered_rows(context.rank() + 10, 5 * context.world_size(), dtype, seed, device);
      sum(all * weights).backward();
      seen.push_back(all.to_vector());
      seen.push_back(mine.grad().to_vector());
      mine.zero_grad();
      const Tensor sums = context.all_reduce(mine);
      const Tensor means = context.mean(mine);
      const Tensor own = numbered_rows(context.rank() + 20, 5, dtype, seed, device);
      sum(sums * own + means * own).backward();
      for (const Tensor& each : {sums, means, mine.grad()}) seen.push_back(each.to_vector());
      const std::int64_t ranks = context.world_size();
      Tensor given = numbered_rows(context.rank(), 3 * ranks, dtype, seed, device);
      given.set_requires_grad(true);
      const Tensor got = pieces->all_to_all(reshape(given, {ranks, 3, 8}));
      sum(got * reshape(numbered_rows(context.rank() + 30, 3 * ranks, dtype, seed, device),
                        {ranks, 3, 8}))
          .backward();
      for (const Tensor& each : {got, given.grad()}) seen.push_back(each.to_vector());
    }
  }
  return seen;
}

ByRank with_threads(int ranks, Device device) {
  ByRank results;
  std::mutex mutex;
  launch(
      ranks,
      [&](Context& context) {
        auto seen = results_with_gradients(context);
        const std::lock_guard lock(mutex);
        results[context.rank()] = std::move(seen);
      },
      device);
  return results;
}

TEST(TensorCollectivesDevice, RanksThatShareAGpuHaveTheCpusBits) {
  for (const int ranks : {1, 2, 3}) {
    EXPECT_EQ(with_threads(ranks, Device::cuda()), with_threads(ranks, Device::cpu())) << ranks;
  }
}

TEST(TensorCollectivesDevice, RanksOverNcclHaveTheCpusBits) {
  for (const int ranks : {2, 3}) {
    TESSERA_NEEDS_NCCL(ranks);
    ByRank results;
    std::mutex mutex;
    expect_no_failure(run_nccl(ranks,
                               [&](const std::shared_ptr<comm::Communicator>& communicator) {
                                 const DeviceGuard on_device(communicator->device());
                                 const Context context(
                                     world_of(communicator->rank(), communicator->size(), 0),
                                     communicator);
                                 auto seen = results_with_gradients(context);
                                 communicator->barrier();
                                 const std::lock_guard lock(mutex);
                                 results[communicator->rank()] = std::move(seen);
                               },
                               {.fixed_order = true}));
    EXPECT_EQ(results, with_threads(ranks, Device::cpu())) << ranks;
  }
}

TEST(TensorCollectivesDevice, RowsOnAnotherDeviceAreRefused) {
  launch(
      2,
      [](Context& context) {
        EXPECT_THROW(
            (void)context.all_gather(numbered_rows(context.rank(), 2, float32, 1, Device::cpu())),
            std::logic_error);
      },
      Device::cuda());
}

}  // namespace
}  // namespace tessera::testing
