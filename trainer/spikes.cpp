// The window of losses and its limit.
#include "trainer/spikes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "base/error.h"

namespace tessera {
namespace {

constexpr const char* losses_name = "spikes/losses";
constexpr const char* in_a_row_name = "spikes/in_a_row";
// Equal losses have no deviation, but one that differs by rounding must not count.
constexpr double least_deviation = 1e-3;  // of the mean

std::vector<float> parse_losses(const std::string& text) {
  std::vector<float> losses;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    const auto [next, error] = std::from_chars(at, end, losses.emplace_back());
    TESSERA_CHECK(error == std::errc{} && std::isfinite(losses.back()) &&
                      (next == end || (*next == ' ' && next + 1 != end)),
                  ErrorCode::checkpoint, "{}: no run saved these losses: '{}'", losses_name, text);
    at = next == end ? end : next + 1;
  }
  return losses;
}

}  // namespace

std::string_view name_of(SpikeAction action) {
  switch (action) {
    case SpikeAction::stop:
      return "stop";
    case SpikeAction::skip:
      return "skip";
    case SpikeAction::rollback:
      return "rollback";
  }
  return "unknown";
}

std::optional<double> SpikeWatch::limit() const {
  if (!options_.sigma || static_cast<std::int64_t>(losses_.size()) < options_.window) return {};
  const auto count = static_cast<double>(losses_.size());
  double sum = 0;
  for (const float loss : losses_) sum += loss;
  const double mean = sum / count;
  double squares = 0;
  for (const float loss : losses_) squares += (loss - mean) * (loss - mean);
  const double deviation = std::sqrt(squares / count);
  return mean + *options_.sigma * std::max(deviation, least_deviation * std::fabs(mean));
}

std::optional<Spike> SpikeWatch::judge(std::int64_t step, float loss, float grad_norm) {
  const bool finite = std::isfinite(loss) && std::isfinite(grad_norm);
  const std::optional<double> highest = limit();
  if (finite && (!highest || loss <= *highest)) {
    in_a_row_ = 0;
    if (!options_.sigma) return std::nullopt;
    losses_.push_back(loss);
    const auto window = static_cast<std::size_t>(options_.window);
    if (losses_.size() > window) {
      losses_.erase(losses_.begin(), losses_.end() - static_cast<std::ptrdiff_t>(window));
    }
    return std::nullopt;
  }
  ++in_a_row_;
  return Spike{.step = step,
               .limit = finite ? highest : std::nullopt,
               .loss = loss,
               .grad_norm = grad_norm,
               .done = options_.action};
}

void SpikeWatch::save(Scalars& scalars) const {
  if (options_.action == SpikeAction::stop && !options_.sigma) return;
  scalars.set(losses_name, fmt::format("{}", fmt::join(losses_, " ")))
      .set(in_a_row_name, in_a_row_);
}

void SpikeWatch::restore(const Scalars& scalars) {
  losses_ = parse_losses(scalars.get<std::string>(losses_name, {}));
  const auto in_a_row = scalars.get<std::int64_t>(in_a_row_name, 0);
  TESSERA_CHECK(in_a_row >= 0 && in_a_row <= most_in_a_row, ErrorCode::checkpoint,
                "{}: no run saved {}", in_a_row_name, in_a_row);
  in_a_row_ = static_cast<int>(in_a_row);
  const std::size_t kept = options_.sigma ? static_cast<std::size_t>(options_.window) : 0;
  if (losses_.size() > kept) {
    losses_.erase(losses_.begin(), losses_.end() - static_cast<std::ptrdiff_t>(kept));
  }
}

}  // namespace tessera
