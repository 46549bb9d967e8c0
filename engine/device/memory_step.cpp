// Steps of a pool: the range of memory in which their blocks have places.
#include "engine/device/memory_step.h"

#include <exception>
#include <mutex>
#include <thread>

#include "engine/device/pool_state.h"

namespace tessera {

// Settles the places of the next step. The memory of a new range comes from the blocks that served
// the steps before.
void MemoryPool::make_range() {
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(state_->mutex);
    state_->places.settle();
    if (state_->places.bytes() > 0) bytes = state_->rounded(state_->places.bytes());
    if (bytes == state_->range.bytes) return;
    state_->give_back_range();
  }
  if (bytes == 0) return;
  trim();
  state_->source->give_back_holes();
  std::byte* const memory = state_->source->obtain(bytes);
  const std::lock_guard lock(state_->mutex);
  if (memory == nullptr) {
    state_->places.drop();
    return;
  }
  state_->range = {memory, bytes, 0};
  state_->stats.reserved += bytes;
  ++state_->stats.system_allocations;
}

void MemoryPool::begin_step() {
  make_range();
  std::size_t without_pages = 0;
  {
    const std::lock_guard lock(state_->mutex);
    state_->step_thread = std::this_thread::get_id();
    state_->places.begin_step(state_->stats.in_use);
    if (state_->places.follows()) without_pages = state_->lengthen_range();
  }
  if (without_pages > 0) {
    const StepRange& range = state_->range;  // stays during a step
    state_->source->populate(range.memory + range.bytes - without_pages, without_pages);
  }
}

void MemoryPool::end_step(bool whole) {
  const std::lock_guard lock(state_->mutex);
  state_->places.end_step(whole);
}

void MemoryPool::expect_other_steps() {
  const std::lock_guard lock(state_->mutex);
  state_->places.expect_others();
}

bool MemoryPool::in_step() const {
  const std::lock_guard lock(state_->mutex);
  return state_->places.in_step();
}

StepStatistics MemoryPool::step_statistics() const {
  const std::lock_guard lock(state_->mutex);
  return state_->places.statistics();
}

StepNeeds MemoryPool::step_needs() const {
  const std::lock_guard lock(state_->mutex);
  return state_->places.needs();
}

MemoryStep::MemoryStep(Device device)
    : pool_(MemoryPool::current(device)), exceptions_(std::uncaught_exceptions()) {
  if (pool_->in_step()) {
    pool_.reset();
  } else {
    pool_->begin_step();
  }
}

MemoryStep::~MemoryStep() {
  if (pool_) pool_->end_step(std::uncaught_exceptions() == exceptions_);
}

}  // namespace tessera
