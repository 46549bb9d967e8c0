// The smallest bound of the ranks' costs for which the samples fit.
#include "tasks/batches/dealing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace tessera::tasks {
namespace {

// Samples by falling length, cut into runs.
class Runs {
 public:
  Runs(std::span<const std::int64_t> lengths, std::int64_t most_places, const RowCost& cost)
      : lengths_(lengths), order_(lengths.size()), most_places_(most_places), cost_(cost) {
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::int64_t a, std::int64_t b) { return length_of(a) > length_of(b); });
  }

  // The ends of runs, each as long as `bound` allows; empty if there are more than `parts`.
  [[nodiscard]] std::vector<std::size_t> ends(double bound, std::int64_t parts) const {
    std::vector<std::size_t> ends;
    for (std::size_t begin = 0; begin < order_.size();) {
      if (static_cast<std::int64_t>(ends.size()) == parts) return {};
      const std::int64_t length = std::max<std::int64_t>(length_of(order_[begin]), 1);
      const auto by_cost = static_cast<std::int64_t>(bound / cost_(length));
      const std::int64_t count = std::min(by_cost, most_places_ / length);
      if (count == 0) return {};
      begin = std::min(begin + static_cast<std::size_t>(count), order_.size());
      ends.push_back(begin);
    }
    return ends;
  }

  [[nodiscard]] double cost_of(std::size_t begin, std::size_t end) const {
    return static_cast<double>(end - begin) *
           cost_(std::max<std::int64_t>(length_of(order_[begin]), 1));
  }
  [[nodiscard]] const std::vector<std::int64_t>& order() const { return order_; }

 private:
  [[nodiscard]] std::int64_t length_of(std::int64_t sample) const {
    return lengths_[static_cast<std::size_t>(sample)];
  }

  std::span<const std::int64_t> lengths_;
  std::vector<std::int64_t> order_;
  std::int64_t most_places_;
  const RowCost& cost_;
};

// The bounds that can be the smallest one are costs of runs, so a bound between two of them
// finds the same runs: 50 halvings are enough for any lengths.
std::vector<std::size_t> best_ends(const Runs& runs, std::int64_t parts) {
  const auto samples = static_cast<std::int64_t>(runs.order().size());
  const std::int64_t equal = (samples + parts - 1) / parts;
  double low = 0, high = runs.cost_of(0, static_cast<std::size_t>(equal));
  high = std::nextafter(high, 2 * high);
  std::vector<std::size_t> best = runs.ends(high, parts);
  TESSERA_REQUIRE(!best.empty(), "{} samples do not fit into {} parts", samples, parts);
  for (int halving = 0; halving < 50; ++halving) {
    const double middle = (low + high) / 2;
    std::vector<std::size_t> ends = runs.ends(middle, parts);
    if (ends.empty()) {
      low = middle;
    } else {
      high = middle;
      best = std::move(ends);
    }
  }
  return best;
}

}  // namespace

std::vector<std::vector<std::int64_t>> deal_by_cost(std::span<const std::int64_t> lengths,
                                                    std::int64_t parts, std::int64_t most_places,
                                                    const RowCost& cost) {
  TESSERA_REQUIRE(parts > 0 && static_cast<std::int64_t>(lengths.size()) >= parts,
                  "{} samples for {} ranks; each needs one", lengths.size(), parts);
  const Runs runs(lengths, most_places, cost);
  std::vector<std::size_t> ends = best_ends(runs, parts);
  // A rank without samples takes half of the most expensive run.
  while (static_cast<std::int64_t>(ends.size()) < parts) {
    std::size_t widest = ends.size();
    double most = 0;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const std::size_t begin = i == 0 ? 0 : ends[i - 1];
      if (ends[i] - begin < 2 || runs.cost_of(begin, ends[i]) <= most) continue;
      widest = i;
      most = runs.cost_of(begin, ends[i]);
    }
    const std::size_t begin = widest == 0 ? 0 : ends[widest - 1];
    ends.insert(ends.begin() + static_cast<std::ptrdiff_t>(widest), (begin + ends[widest]) / 2);
  }
  std::vector<std::vector<std::int64_t>> dealt;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    std::vector<std::int64_t>& part =
        dealt.emplace_back(runs.order().begin() + static_cast<std::ptrdiff_t>(begin),
                           runs.order().begin() + static_cast<std::ptrdiff_t>(end));
    std::sort(part.begin(), part.end());
    begin = end;
  }
  return dealt;
}

}  // namespace tessera::tasks
