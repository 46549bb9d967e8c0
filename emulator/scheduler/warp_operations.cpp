// Shuffles, votes and matches. The last lane of a warp computes them for the whole warp.
#include "emulator/scheduler/warp_operations.h"

#include <bit>

#include "emulator/scheduler/thread_operations.h"

namespace tessera::emulator {
namespace {

template <class Action>
void for_each_lane(unsigned mask, Action action) {
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) action(std::countr_zero(rest));
}

struct Shuffle {
  std::uint64_t bits;
  int source;
  bool source_came;
  std::uint64_t result;
};
struct Vote {
  bool predicate;
  unsigned result;
};
struct Match {
  std::uint64_t bits;
  unsigned result;
};

void perform_shuffle(const LaneArguments& lanes) {
  for_each_lane(lanes.mask, [&](int lane) {
    auto& mine = lanes.at<Shuffle>(lane);
    mine.source_came = ((lanes.mask >> mine.source) & 1) != 0;
    if (mine.source_came) mine.result = lanes.at<Shuffle>(mine.source).bits;
  });
}

void perform_vote(const LaneArguments& lanes) {
  unsigned result = 0;
  for_each_lane(lanes.mask,
                [&](int lane) { result |= (lanes.at<Vote>(lane).predicate ? 1u : 0u) << lane; });
  for_each_lane(lanes.mask, [&](int lane) { lanes.at<Vote>(lane).result = result; });
}

void perform_match(const LaneArguments& lanes) {
  for_each_lane(lanes.mask, [&](int lane) {
    unsigned same = 0;
    for_each_lane(lanes.mask, [&](int other) {
      same |= (lanes.at<Match>(lane).bits == lanes.at<Match>(other).bits ? 1u : 0u) << other;
    });
    lanes.at<Match>(lane).result = same;
  });
}

}  // namespace

std::uint64_t shuffle_bits(unsigned mask, std::uint64_t bits, int source,
                           const Operation& operation) {
  Shuffle mine{bits, source, false, 0};
  warp_meeting(mask, &mine, perform_shuffle, operation);
  if (!mine.source_came) fail("the shuffle reads a lane that is not in the mask", operation);
  return mine.result;
}

unsigned ballot(unsigned mask, bool predicate, const Operation& operation) {
  Vote mine{predicate, 0};
  warp_meeting(mask, &mine, perform_vote, operation);
  return mine.result;
}

unsigned match_bits(unsigned mask, std::uint64_t bits, const Operation& operation) {
  Match mine{bits, 0};
  warp_meeting(mask, &mine, perform_match, operation);
  return mine.result;
}

}  // namespace tessera::emulator
