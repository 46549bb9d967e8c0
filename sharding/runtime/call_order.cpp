// Learns the order of a forward's calls.
#include "sharding/runtime/call_order.h"

#include <algorithm>

namespace tessera {
namespace {

// Forwards without a backward are recorded as well; this limits them in programs that run nothing
// else.
constexpr std::size_t most_recorded = std::size_t{1} << 14;

}  // namespace

void CallOrder::begin_call(int unit, std::uint64_t number, bool recorded) {
  if (recorded) {
    recorded_.push_back({unit, number});
    if (recorded_.size() > most_recorded) recorded_.pop_front();
  } else if (!trained_) {
    learn_without_backward(unit);
  }
  follow(unit);
}

void CallOrder::follow(int unit) {
  if (next() != end() && *next() == unit) {
    ++next_;
    return;
  }
  if (known_.empty()) return;
  const auto to = [&](std::vector<int>::const_iterator found) {
    next_ = static_cast<std::size_t>(found - known_.begin()) + 1;
  };
  if (known_.front() == unit) return to(known_.begin());
  // A unit was left out, or the forward began elsewhere. An unknown unit changes nothing.
  if (const auto later = std::find(next(), end(), unit); later != end()) return to(later);
  if (const auto earlier = std::find(known_.cbegin(), next(), unit); earlier != next()) to(earlier);
}

// When only evaluation runs, a unit that comes again begins a forward.
void CallOrder::learn_without_backward(int unit) {
  if (std::find(unrecorded_.begin(), unrecorded_.end(), unit) != unrecorded_.end()) {
    known_ = std::move(unrecorded_);
    unrecorded_.clear();
    next_ = 0;
  }
  unrecorded_.push_back(unit);
}

void CallOrder::end_backward(const std::vector<Call>& reached) {
  next_ = 0;
  if (!reached.empty()) {
    const auto ends =
        std::minmax_element(reached.begin(), reached.end(),
                            [](const Call& a, const Call& b) { return a.number < b.number; });
    auto first = std::find_if(recorded_.begin(), recorded_.end(),
                              [&](const Call& call) { return call.number == ends.first->number; });
    auto last = std::find_if(first, recorded_.end(),
                             [&](const Call& call) { return call.number == ends.second->number; });
    if (last != recorded_.end()) {
      // Calls around those that are reached may belong to the same forward: units without a
      // gradient, and the root. A unit that was already seen belongs to another forward.
      std::vector<int> seen;
      for (const Call& call : reached) seen.push_back(call.unit);
      const auto is_new = [&](int unit) {
        if (std::find(seen.begin(), seen.end(), unit) != seen.end()) return false;
        seen.push_back(unit);
        return true;
      };
      while (first != recorded_.begin() && is_new(std::prev(first)->unit)) --first;
      do {
        ++last;
      } while (last != recorded_.end() && is_new(last->unit));
      known_.clear();
      for (; first != last; ++first) known_.push_back(first->unit);
      trained_ = true;
      unrecorded_.clear();
    }
  }
  recorded_.clear();
}

}  // namespace tessera
