// D'Hondt's method, and the comparison of the ranks' speeds.
#include "trainer/rank_shares.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <string_view>
#include <utility>

#include "base/counted.h"
#include "base/error.h"

namespace tessera {
namespace {

constexpr std::string_view saved_name = "rank_samples";
constexpr std::size_t most_listed_ranks = 16;

// The largest time for a rank's samples, in any unit.
double slowest_of(const std::vector<std::int64_t>& samples, const std::vector<double>& speeds) {
  double slowest = 0;
  for (std::size_t rank = 0; rank < samples.size(); ++rank) {
    slowest = std::max(slowest, static_cast<double>(samples[rank]) / speeds[rank]);
  }
  return slowest;
}

void check_weights(const std::vector<double>& weights, int ranks, const std::string& option) {
  TESSERA_CHECK(weights.size() == static_cast<std::size_t>(ranks), ErrorCode::configuration,
                "{} has {} for {}; give one for each rank, or auto", option,
                counted(static_cast<std::int64_t>(weights.size()), "weight"),
                counted(ranks, "rank"));
  for (const double weight : weights) {
    TESSERA_CHECK(std::isfinite(weight) && weight > 0, ErrorCode::configuration,
                  "{} has the weight {}; a weight is a finite number above 0", option,
                  std::isnan(weight) ? std::fabs(weight) : weight);
  }
}

// The weights with the largest between 1 and 2, so that neither sums nor quotients overflow. A
// power of two as the factor leaves their proportions as they are.
std::vector<double> scaled(std::span<const double> weights) {
  const int exponent = std::ilogb(*std::max_element(weights.begin(), weights.end()));
  std::vector<double> result;
  for (const double weight : weights) result.push_back(std::ldexp(weight, -exponent));
  return result;
}

std::vector<double> weights_of(const std::vector<std::int64_t>& samples) {
  return {samples.begin(), samples.end()};
}

// Nothing if the text is not what text_to_save() returns for so many ranks.
std::vector<std::int64_t> read_samples(std::string_view text) {
  std::vector<std::int64_t> samples;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || value < 1) return {};
    samples.push_back(value);
    if (stop == end) return samples;
    if (*stop != ' ') return {};
    at = stop + 1;
  }
  return {};
}

}  // namespace

std::vector<std::int64_t> divide_samples(std::span<const double> weights, std::int64_t samples,
                                         std::int64_t most) {
  const std::size_t ranks = weights.size();
  TESSERA_REQUIRE(ranks > 0 && samples >= static_cast<std::int64_t>(ranks),
                  "{} samples over {} ranks: each rank takes at least one", samples, ranks);
  const auto even = (samples - 1) / static_cast<std::int64_t>(ranks) + 1;
  TESSERA_REQUIRE(most >= even, "{} samples over {} ranks of at most {}", samples, ranks, most);
  const std::vector<double> speeds = scaled(weights);
  // All samples up to this quotient are taken, and with the first one of each rank they are not too
  // many.
  const auto first = static_cast<double>(samples - static_cast<std::int64_t>(ranks)) /
                     std::accumulate(speeds.begin(), speeds.end(), 0.0);
  // A rank's quotient with one more sample; the smallest is on top.
  using Next = std::pair<double, std::size_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
  std::vector<std::int64_t> result(ranks);
  const auto add_next = [&](std::size_t rank) {
    if (result[rank] == most) return;
    queue.emplace(static_cast<double>(result[rank] + 1) / speeds[rank], rank);
  };
  std::int64_t left = samples;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto taken = static_cast<std::int64_t>(speeds[rank] * first);
    result[rank] = std::clamp<std::int64_t>(taken, 1, most);
    left -= result[rank];
    add_next(rank);
  }
  for (; left > 0; --left) {
    const std::size_t rank = queue.top().second;
    queue.pop();
    ++result[rank];
    add_next(rank);
  }
  return result;
}

std::int64_t largest_share(const RankWeightOptions& options, int ranks, std::int64_t batch_size) {
  const std::int64_t all = batch_size * ranks;
  if (options.measured) {
    const double bound = options.limit * static_cast<double>(batch_size);
    const std::int64_t others = ranks - 1;  // with one sample each
    return bound < static_cast<double>(all - others) ? static_cast<std::int64_t>(bound)
                                                     : all - others;
  }
  if (options.given.empty()) return batch_size;
  const std::vector<std::int64_t> samples = divide_samples(options.given, all);
  return *std::max_element(samples.begin(), samples.end());
}

RankShares::RankShares(const RankWeightOptions& options, int ranks, std::int64_t batch_size,
                       const std::string& option)
    : options_(options),
      all_(batch_size * ranks),
      samples_(static_cast<std::size_t>(ranks), batch_size) {
  if (!options_.given.empty()) {
    check_weights(options_.given, ranks, option);
    samples_ = divide_samples(options_.given, all_);
  }
  most_ = largest_share(options_, ranks, batch_size);
  begin_times();
}

std::int64_t RankShares::first_of(int rank) const {
  return std::accumulate(samples_.begin(), samples_.begin() + rank, std::int64_t{0});
}

bool RankShares::are_equal() const {
  return std::equal(samples_.begin() + 1, samples_.end(), samples_.begin());
}

void RankShares::begin_times() {
  sums_.assign(samples_.size(), {});
}

void RankShares::add(const std::vector<Work>& ranks) {
  TESSERA_REQUIRE(ranks.size() == sums_.size(), "the work of {} ranks, and there are {}",
                  ranks.size(), sums_.size());
  if (std::exchange(first_step_, false)) return;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    sums_[rank].tokens += ranks[rank].tokens;
    sums_[rank].seconds += ranks[rank].seconds;
  }
}

bool RankShares::settle(std::int64_t step) {
  if (!options_.measured || step % options_.rebalance_every != 0) return false;
  std::vector<double> speeds;
  for (const Work& work : sums_) {
    if (work.tokens <= 0 || !(work.seconds > 0)) return false;  // no whole step since the last look
    speeds.push_back(static_cast<double>(work.tokens) / work.seconds);
  }
  begin_times();
  std::vector<std::int64_t> better = divide_samples(speeds, all_, most_);
  if (slowest_of(samples_, speeds) < slowest_of(better, speeds) * (1 + least_gain)) return false;
  samples_ = std::move(better);
  first_step_ = true;
  return true;
}

void RankShares::save(Scalars& scalars) const {
  if (are_asked()) scalars.set(saved_name, fmt::format("{}", fmt::join(samples_, " ")));
}

void RankShares::restore(const Scalars& scalars, const std::string& folder) {
  if (!options_.measured || !scalars.contains(saved_name)) return;
  const auto text = scalars.get<std::string>(saved_name);
  const std::vector<std::int64_t> saved = read_samples(text);
  TESSERA_CHECK(!saved.empty(), ErrorCode::checkpoint,
                "{}: {} \"{}\" are not the samples of each rank", folder, saved_name,
                text.substr(0, 40));
  if (saved.size() != samples_.size()) return;  // another world: its speeds are not known yet
  samples_ = divide_samples(weights_of(saved), all_, most_);
}

double imbalance_of(const std::vector<RankShares::Work>& ranks) {
  double sum = 0, slowest = 0;
  for (const RankShares::Work& work : ranks) {
    sum += work.seconds;
    slowest = std::max(slowest, work.seconds);
  }
  return sum > 0 ? slowest * static_cast<double>(ranks.size()) / sum - 1 : 0;
}

std::string text_of_shares(const std::vector<std::int64_t>& samples) {
  const auto [least, most] = std::minmax_element(samples.begin(), samples.end());
  if (samples.size() > most_listed_ranks) return fmt::format("{} to {}", *least, *most);
  std::string text;
  for (std::size_t rank = 0; rank < samples.size(); ++rank) {
    const bool last = rank + 1 == samples.size();
    text += fmt::format("{}{}", rank == 0 ? "" : last ? " and " : ", ", samples[rank]);
  }
  return text;
}

}  // namespace tessera
