// The map of ranges: split, look up, record, join.
#include "emulator/access/access_history.h"

#include <algorithm>
#include <iterator>

namespace tessera::emulator {
namespace {

void remember(std::vector<PastAccess>& accesses, const PastAccess& now) {
  if (now.write) {
    accesses.assign(1, now);
    return;
  }
  const auto same_reader =
      std::find_if(accesses.begin(), accesses.end(),
                   [&](const PastAccess& past) { return !past.write && past.actor == now.actor; });
  if (same_reader != accesses.end()) {
    *same_reader = now;
  } else {
    accesses.push_back(now);
  }
}

}  // namespace

void AccessHistory::access(Range range, const PastAccess& now,
                           const std::function<void(const PastAccess&, Range)>& visit) {
  split_at(range.begin);
  split_at(range.end);
  fill_gaps(range);
  const auto end = segments_.lower_bound(range.end);
  for (auto segment = segments_.lower_bound(range.begin); segment != end; ++segment) {
    for (const PastAccess& past : segment->second.accesses) {
      if (past.actor != now.actor && (past.write || now.write)) {
        visit(past, {segment->first, segment->second.end});
      }
    }
    remember(segment->second.accesses, now);
  }
  join(range);
}

void AccessHistory::forget(Range range) {
  split_at(range.begin);
  split_at(range.end);
  segments_.erase(segments_.lower_bound(range.begin), segments_.lower_bound(range.end));
}

// Afterwards no segment has `address` inside it.
void AccessHistory::split_at(std::uintptr_t address) {
  auto segment = segments_.upper_bound(address);
  if (segment == segments_.begin()) return;
  --segment;
  if (segment->first == address || segment->second.end <= address) return;
  const Segment rest{segment->second.end, segment->second.accesses};
  segment->second.end = address;
  segments_.emplace_hint(std::next(segment), address, rest);
}

void AccessHistory::fill_gaps(Range range) {
  std::uintptr_t covered = range.begin;
  auto segment = segments_.lower_bound(range.begin);
  while (covered < range.end) {
    const bool gap = segment == segments_.end() || segment->first > covered;
    if (!gap) {
      covered = segment->second.end;
      ++segment;
      continue;
    }
    const std::uintptr_t end =
        segment == segments_.end() ? range.end : std::min(range.end, segment->first);
    segments_.emplace_hint(segment, covered, Segment{end, {}});
    covered = end;
  }
}

// Joins neighbours with equal histories, in the range and at its ends.
void AccessHistory::join(Range range) {
  auto segment = segments_.lower_bound(range.begin);
  if (segment != segments_.begin()) --segment;
  while (segment != segments_.end() && segment->first <= range.end) {
    const auto next = std::next(segment);
    if (next != segments_.end() && next->first == segment->second.end &&
        next->second.accesses == segment->second.accesses) {
      segment->second.end = next->second.end;
      segments_.erase(next);
    } else {
      segment = next;
    }
  }
}

}  // namespace tessera::emulator
