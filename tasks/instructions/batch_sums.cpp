// Batches in turn over the ranks.
#include "tasks/instructions/batch_sums.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "comm/exchange_values.h"

namespace tessera::tasks {

std::vector<double> sum_over_batches(std::int64_t count, std::int64_t batch_size,
                                     const Context& context, const BatchNumbers& of_batch,
                                     int sharers) {
  TESSERA_REQUIRE(count > 0 && batch_size > 0, "an evaluation of {} samples in batches of {}",
                  count, batch_size);
  const std::int64_t batches = (count + batch_size - 1) / batch_size;
  const std::int64_t blocks = context.world_size() / sharers;
  std::vector<double> mine;  // of each batch
  std::size_t width = 0;
  for (std::int64_t first = 0; first < batches; first += blocks) {
    // A rank without a batch of its own repeats the last one.
    const std::int64_t number = first + context.rank() / sharers;
    const std::int64_t begin = std::min(number, batches - 1) * batch_size;
    std::vector<std::int64_t> samples(
        static_cast<std::size_t>(std::min(batch_size, count - begin)));
    std::iota(samples.begin(), samples.end(), begin);
    const bool repeats = number >= batches;
    const std::vector<double> numbers = of_batch(samples, repeats);
    width = numbers.size();
    if (!repeats) mine.insert(mine.end(), numbers.begin(), numbers.end());
  }
  const auto parts = comm::exchange_arrays(context.communicator(), std::span(std::as_const(mine)),
                                           comm::Tag{0, 0, comm::Phase::metrics});
  std::vector<double> sums(width);
  for (std::int64_t number = 0; number < batches; ++number) {
    const std::size_t place = width * static_cast<std::size_t>(number / blocks);
    for (std::int64_t sharer = 0; sharer < sharers; ++sharer) {
      const std::int64_t rank = number % blocks * sharers + sharer;
      const std::vector<double>& from = parts[static_cast<std::size_t>(rank)];
      TESSERA_CHECK(place + width <= from.size(), ErrorCode::rank_failed,
                    "rank {} evaluated other samples; give every rank the same data", rank);
      for (std::size_t i = 0; i < width; ++i) sums[i] += from[place + i];
    }
  }
  return sums;
}

}  // namespace tessera::tasks
