// Positions in the data, and the ends of epochs.
#include "tasks/batch_order.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "engine/data/permutation.h"

namespace tessera::tasks {

BatchOrder::BatchOrder(BatchOrderOptions options) : options_(std::move(options)) {
  TESSERA_REQUIRE(!options_.samples.empty(), "a batch order needs a data set");
  for (const std::int64_t samples : options_.samples) {
    TESSERA_REQUIRE(samples > 0, "a batch order needs samples, got {}", samples);
  }
}

DataPosition BatchOrder::begin() const {
  return {0, std::vector<std::int64_t>(options_.samples.size(), 0)};
}

std::size_t BatchOrder::data_set_of(std::int64_t batch) const {
  const std::size_t sets = options_.samples.size();
  const auto number = static_cast<std::uint64_t>(batch);
  if (options_.mix == Mix::round_robin || sets == 1) return number % sets;
  constexpr std::uint64_t purpose = 0x6d6978;  // keeps the draw apart from the samples' order
  const std::int64_t all =
      std::accumulate(options_.samples.begin(), options_.samples.end(), std::int64_t{0});
  auto draw = static_cast<std::int64_t>(mix(mix(options_.seed, purpose), number) %
                                        static_cast<std::uint64_t>(all));
  std::size_t set = 0;
  while (draw >= options_.samples[set]) draw -= options_.samples[set++];
  return set;
}

BatchOrder::Batch BatchOrder::at(const DataPosition& position, std::int64_t size) const {
  TESSERA_REQUIRE(position.next.size() == options_.samples.size(),
                  "a position in {} data sets, not in {}", position.next.size(),
                  options_.samples.size());
  Batch batch{data_set_of(position.batches), 0, size};
  const std::int64_t samples = options_.samples[batch.data_set];
  batch.first = position.next[batch.data_set];
  if (options_.drop_last && batch.first % samples + size > samples) {
    TESSERA_CHECK(size <= samples, ErrorCode::data,
                  "an epoch of {} has no whole batch of {}, and data.drop_last leaves out "
                  "what is less; use more data, a smaller batch or drop_last: false",
                  counted(samples, "sample"), size);
    batch.first = (batch.first / samples + 1) * samples;
  }
  return batch;
}

void BatchOrder::advance(DataPosition& position, const Batch& batch) const {
  const std::int64_t samples = options_.samples[batch.data_set];
  std::int64_t next = batch.first + batch.size;
  if (options_.even_batches) next = std::min(next, (batch.first / samples + 1) * samples);
  position.batches += 1;
  position.next[batch.data_set] = next;
}

std::vector<std::int64_t> BatchOrder::share(const Batch& batch, std::int64_t offset,
                                            std::int64_t count) const {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), batch.first + offset);
  if (!options_.even_batches) return numbers;
  const std::int64_t samples = options_.samples[batch.data_set];
  const std::int64_t epoch = batch.first / samples * samples;
  for (std::int64_t& number : numbers) number = epoch + (number - epoch) % samples;
  return numbers;
}

void OrderComparison::add(const char* key, const Scalars& there, const char* name,
                          std::int64_t here) {
  const auto value = there.get<std::int64_t>(name, 0);
  if (value != here) changed_.push_back(fmt::format("{} {}, not {}", key, value, here));
}

void OrderComparison::add(const char* key, const Scalars& there, const char* name, bool here) {
  const auto value = there.get<bool>(name, false);
  if (value != here) changed_.push_back(fmt::format("{} {}, not {}", key, value, here));
}

void OrderComparison::check(const std::string& folder) const {
  TESSERA_CHECK(changed_.empty(), ErrorCode::configuration,
                "{}: the run there has {}: the data order would be another; set it back, or start "
                "anew from the weights with model.pretrained",
                folder, fmt::join(changed_, ", and "));
}

}  // namespace tessera::tasks
