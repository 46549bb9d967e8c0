// Recording, comparing, and following a placement.
#include "engine/places/step_places.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

// Steps whose sizes keep changing (sentences) would otherwise be placed again and again, each time
// with new memory.
constexpr int most_equal_steps_needed = 64;
// A placement is kept over one different step.
constexpr int different_steps_to_drop = 2;

}  // namespace

void StepPlaces::expect_others() {
  ends_ = true;
}

void StepPlaces::settle() {
  if (in_step_ || !is_idle()) return;
  if (std::exchange(ends_, false)) {
    drop();
    needed_ = equal_steps_at_first;
    stays_ = false;
    return;
  }
  if (stays_) return;
  if (equal_ >= needed_) {
    adopt();
  } else if (different_in_a_row_ >= different_steps_to_drop) {
    drop();
  }
}

void StepPlaces::begin_step(std::size_t in_use) {
  TESSERA_REQUIRE(!in_step_, "a step begins inside another step");
  in_step_ = true;
  in_use_ = in_use;
  ++statistics_.steps;
  recording_.clear();
  follows_ = bytes_ > 0;
  displaced_before_ = statistics_.displaced;
}

StepPlaces::Grant StepPlaces::allocate(std::size_t bytes) {
  const std::uint32_t position = recording_.add(bytes);
  Grant grant{{statistics_.steps, position}, std::nullopt};
  if (!follows_ || !conforms(position, bytes)) return grant;
  const std::size_t offset = placement_.offsets[position];
  if (offset == BlockPlaces::nowhere) return grant;
  if (ranges_.take_at(offset, bytes)) {
    grant.offset = offset;
  } else {
    ++statistics_.displaced;
  }
  return grant;
}

bool StepPlaces::conforms(std::uint32_t position, std::size_t bytes) {
  const auto& recorded = placed_.blocks();
  const std::size_t expected = position < recorded.size() ? recorded[position].bytes : 0;
  if (bytes == expected) return true;
  leave(position, bytes, expected);
  return false;
}

void StepPlaces::leave(std::uint64_t position, std::size_t wanted, std::size_t recorded) {
  follows_ = false;
  ++statistics_.different;
  statistics_.last = {statistics_.steps, position, wanted, recorded};
}

void StepPlaces::free(Ticket ticket) {
  if (in_step_ && ticket.step == statistics_.steps) recording_.free(ticket.position);
}

void StepPlaces::end_step(bool whole) {
  in_step_ = false;
  const std::size_t recorded = placed_.blocks().size();
  const std::size_t done = recording_.blocks().size();
  if (follows_ && done < recorded) leave(done, 0, placed_.blocks()[done].bytes);
  const bool placed = std::exchange(follows_, false);
  if (placed) ++statistics_.placed;
  stays_ = placed && statistics_.displaced == displaced_before_;
  different_in_a_row_ = placed || bytes_ == 0 ? 0 : different_in_a_row_ + 1;
  if (!whole) {
    equal_ = 0;
    return;
  }
  if (recording_.has_sizes_of(last_)) {
    ++equal_;
    recording_.extend_lives(last_);
  } else {
    equal_ = 1;
  }
  std::swap(last_, recording_);
  last_in_use_ = in_use_;
  last_placement_.reset();
}

const BlockPlaces& StepPlaces::placement_of_last() {
  if (!last_placement_) last_placement_ = place_blocks(last_.blocks());
  return *last_placement_;
}

void StepPlaces::adopt() {
  drop();
  placed_ = last_;
  placement_ = placement_of_last();
  bytes_ = placement_.bytes;
  ranges_ = FreeRanges(bytes_);
  needed_ = std::min(2 * needed_, most_equal_steps_needed);
}

void StepPlaces::drop() {
  TESSERA_REQUIRE(is_idle(), "a placement ends while blocks use it");
  placed_.clear();
  placement_ = {};
  bytes_ = 0;
  ranges_ = FreeRanges(0);
  equal_ = 0;
  different_in_a_row_ = 0;
}

StepNeeds StepPlaces::needs() {
  const BlockPlaces& placement = placement_of_last();
  return {placement.bytes, placement.live_bytes, last_in_use_ + last_.lasting_bytes()};
}

}  // namespace tessera
