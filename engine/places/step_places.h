// The places of a step's blocks. A step that allocates blocks of the same sizes in the same order
// as the steps before gets the same place in one range of addresses for each of them.
//
// Every step is recorded. After some equal steps a placement is made from the recorded lifetimes.
// Later steps follow it, as long as their allocations have the recorded sizes in the recorded
// order; from the first other allocation on, a step gets no places. A block that is in use is never
// given away: a place is taken only if it is free, so a block that lives longer than in the
// recorded steps costs the next owner its place, and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/places/free_ranges.h"
#include "engine/places/placement.h"
#include "engine/places/step_blocks.h"
#include "engine/places/step_statistics.h"

namespace tessera {

// Arithmetic alone: the owner brings the memory. Not thread-safe.
class StepPlaces {
 public:
  // A block of a step. The default is a block of no step.
  struct Ticket {
    std::uint64_t step = 0;
    std::uint32_t position = 0;
  };

  // The steps from now on, or after the present one, are of another kind: the placement ends at the
  // next settle() that finds it idle, and new steps count as those of a new run do.
  void expect_others();
  // Before a step: makes the placement, drops it, or makes another, if the steps before ask for it
  // and no block has a place now. bytes() may change.
  void settle();
  // `in_use`: bytes of all blocks that there are.
  void begin_step(std::size_t in_use);
  // `whole`: false if an exception ended the step. Such a step is not compared with others.
  void end_step(bool whole);
  [[nodiscard]] bool in_step() const { return in_step_; }
  // True in a step that has been as recorded so far.
  [[nodiscard]] bool follows() const { return follows_; }

  // Every allocation of the step. Takes its place: an offset, or none.
  struct Grant {
    Ticket ticket;
    std::optional<std::size_t> offset;
  };
  Grant allocate(std::size_t bytes);
  // The end of a block of a step, at any time and in any step.
  void free(Ticket ticket);
  // Gives the place of a block back, after free().
  void give_back(std::size_t offset, std::size_t bytes) { ranges_.give_back(offset, bytes); }

  // The bytes of the range; 0 if there is no placement now.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_idle() const { return ranges_.free_bytes() == bytes_; }
  [[nodiscard]] std::size_t end_of_use() const { return bytes_ - ranges_.free_before(bytes_); }
  // There is no memory for the range: forgets the placement. It must be idle.
  void drop();

  [[nodiscard]] const StepStatistics& statistics() const { return statistics_; }
  // The memory of the last whole step. Computes its places if they are not known yet.
  [[nodiscard]] StepNeeds needs();

 private:
  [[nodiscard]] bool conforms(std::uint32_t position, std::size_t bytes);
  void leave(std::uint64_t position, std::size_t wanted, std::size_t recorded);
  void adopt();
  const BlockPlaces& placement_of_last();

  StepBlocks recording_;  // of the present step
  StepBlocks last_;       // the last whole step, with the lives of those equal to it
  std::optional<BlockPlaces> last_placement_;
  std::size_t last_in_use_ = 0;  // at the beginning of the last whole step
  std::size_t in_use_ = 0;       // at the beginning of the present one

  StepBlocks placed_;  // sizes that the present placement was made for
  BlockPlaces placement_;
  FreeRanges ranges_{0};
  std::size_t bytes_ = 0;

  bool in_step_ = false;
  bool follows_ = false;
  bool stays_ = false;  // the last step was as recorded, lives too
  std::uint64_t displaced_before_ = 0;
  int equal_ = 0;  // steps in a row, since the last placement
  static constexpr int equal_steps_at_first = 2;
  int needed_ = equal_steps_at_first;  // equal steps for a placement; doubles with each one
  int different_in_a_row_ = 0;
  bool ends_ = false;  // the placement, as expect_others() asks
  StepStatistics statistics_;
};

}  // namespace tessera
