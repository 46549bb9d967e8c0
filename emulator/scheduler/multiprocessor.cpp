// Runs a block: turns, barriers, meetings of lanes.
#include "emulator/scheduler/multiprocessor.h"

#include <bit>
#include <utility>

#include "emulator/scheduler/indices.h"
#include "emulator/scheduler/sanitizers.h"

namespace tessera::emulator {
namespace {

thread_local Multiprocessor* running = nullptr;

constexpr unsigned bit(int position) {
  return 1u << position;
}

// Without the thread sanitizer the fiber of a finished thread runs the next one. With it every
// thread of a block is a thread for the sanitizer, and two consecutive blocks have different ones.
constexpr int sanitizer_sets = 2;

constexpr unsigned barrier_ordering(bool turn) {
  return turn ? 1 : 0;
}
constexpr unsigned meeting_ordering(int warp, int lowest_lane, bool turn) {
  return 2 + static_cast<unsigned>((warp * lanes_of_a_warp + lowest_lane) * 2 + (turn ? 1 : 0));
}

}  // namespace

Multiprocessor::Multiprocessor() : threads_(most_threads_of_a_block) {
  meetings_.reserve(most_warps_of_a_block);
  contexts_.reserve((sanitizer_sets + 1) * most_threads_of_a_block);
  idle_contexts_.reserve(most_threads_of_a_block);
  if constexpr (sanitizer::thread) contexts_.resize(sanitizer_sets * most_threads_of_a_block);
#if defined(TESSERA_EMULATOR_THREAD)
  cleaner_ = __tsan_create_fiber(0);
#endif
}

Multiprocessor::~Multiprocessor() {
#if defined(TESSERA_EMULATOR_THREAD)
  __tsan_destroy_fiber(cleaner_);
#endif
}

Multiprocessor* Multiprocessor::current() {
  return running;
}

// ---- grids and blocks

void Multiprocessor::begin_grid(const GridWork& work) {
  running = this;
  work_ = &work;
  ordering_ = std::make_unique<GridOrdering>();
  host_.adopt_calling_thread();
  blockDim = work.block;
  gridDim = work.grid;
  thread_count_ = static_cast<int>(work.block.x * work.block.y * work.block.z);
  warp_count_ = (thread_count_ + lanes_of_a_warp - 1) / lanes_of_a_warp;
  while (static_cast<int>(meetings_.size()) < warp_count_) meetings_.emplace_back();
  if (threads_have_identities()) make_sanitizer_contexts();
}

void Multiprocessor::end_grid() {
  sanitizer::acquire(&ordering_->end);
  ordering_.reset();
  work_ = nullptr;
  running = nullptr;
}

void Multiprocessor::run_block(std::uint64_t block) {
  const dim3 grid = work_->grid;
  blockIdx = {static_cast<unsigned>(block % grid.x), static_cast<unsigned>(block / grid.x % grid.y),
              static_cast<unsigned>(block / grid.x / grid.y)};
  random_ = Random(work_->schedule.seed * 1000003 + block);
  block_parity_ ^= 1;
  shared_memory_.begin_block(work_->shared_bytes);
  // For each block: its shared memory was taken before its threads begin.
  sanitizer::release(&ordering_->start);
  begin_threads();
  enter(host_, take_ready());
  end_shared_memory();
}

void Multiprocessor::end_shared_memory() {
  if (const char* wrong = shared_memory_.check_gaps()) fail(wrong, {"the block's end", {"", 0}});
#if defined(TESSERA_EMULATOR_THREAD)
  if (!threads_have_identities()) {
    shared_memory_.end_block();
    return;
  }
  // A thread that is ordered after the block's frees it. This thread must not, or the next blocks
  // would be ordered too.
  void* self = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(cleaner_, __tsan_switch_to_fiber_no_sync);
  sanitizer::acquire(&ordering_->end);
  shared_memory_.end_block();
  __tsan_switch_to_fiber(self, __tsan_switch_to_fiber_no_sync);
#else
  shared_memory_.end_block();
#endif
}

void Multiprocessor::begin_threads() {
  const dim3 block = work_->block;
  alive_ = thread_count_;
  barrier_ = {};
  uint3 index{};
  for (int i = 0; i < thread_count_; ++i) {
    threads_[i] = {index, ThreadState::ready, false, nullptr, {}, {}};
    if (++index.x == block.x) {
      index.x = 0;
      if (++index.y == block.y) {
        index.y = 0;
        ++index.z;
      }
    }
  }
  order_warps();
  for (int warp = 0; warp < warp_count_; ++warp) {
    const int lanes = thread_count_ - warp * lanes_of_a_warp;
    ready_lanes_[warp] = lanes >= lanes_of_a_warp ? ~0u : bit(lanes) - 1;
  }
}

// ---- turns

void Multiprocessor::order_warps() {
  const Schedule::Order order = work_->schedule.order;
  for (int turn = 0; turn < warp_count_; ++turn) {
    warp_at_[turn] = static_cast<std::uint8_t>(
        order == Schedule::Order::reverse ? warp_count_ - 1 - turn : turn);
  }
  if (order == Schedule::Order::random) {
    for (int turn = warp_count_ - 1; turn > 0; --turn) {
      std::swap(warp_at_[turn], warp_at_[random_.below(static_cast<unsigned>(turn) + 1)]);
    }
  }
  for (int turn = 0; turn < warp_count_; ++turn) {
    turn_of_[warp_at_[turn]] = static_cast<std::uint8_t>(turn);
  }
  ready_turns_ = warp_count_ == lanes_of_a_warp ? ~0u : bit(warp_count_) - 1;
}

void Multiprocessor::make_ready(int thread) {
  const int warp = thread / lanes_of_a_warp;
  threads_[thread].state = ThreadState::ready;
  ready_lanes_[warp] |= bit(thread % lanes_of_a_warp);
  ready_turns_ |= bit(turn_of_[warp]);
}

int Multiprocessor::take_ready() {
  const int turn = std::countr_zero(ready_turns_);
  const int warp = warp_at_[turn];
  const unsigned lanes = ready_lanes_[warp];
  int lane = 0;
  switch (work_->schedule.order) {
    case Schedule::Order::forward:
      lane = std::countr_zero(lanes);
      break;
    case Schedule::Order::reverse:
      lane = lanes_of_a_warp - 1 - std::countl_zero(lanes);
      break;
    case Schedule::Order::random: {
      unsigned rest = lanes;
      for (unsigned skip = random_.below(static_cast<unsigned>(std::popcount(lanes))); skip > 0;
           --skip) {
        rest &= rest - 1;
      }
      lane = std::countr_zero(rest);
      break;
    }
  }
  ready_lanes_[warp] &= ~bit(lane);
  if (ready_lanes_[warp] == 0) ready_turns_ &= ~bit(turn);
  return warp * lanes_of_a_warp + lane;
}

void Multiprocessor::make_current(int thread) {
  current_ = thread;
  threadIdx = threads_[thread].index;
}

bool Multiprocessor::threads_have_identities() const {
  return sanitizer::thread && work_->schedule.races == Schedule::Races::threads;
}

// For the thread sanitizer, creating a thread orders the creator before it. So the host creates
// them all, instead of one thread of a block the next.
void Multiprocessor::make_sanitizer_contexts() {
  for (int set = 0; set < sanitizer_sets; ++set) {
    for (int thread = 0; thread < thread_count_; ++thread) {
      auto& context = contexts_[set * most_threads_of_a_block + thread];
      if (context == nullptr) {
        context = std::make_unique<Context>(&serve_threads, Context::Identity::own);
      }
    }
  }
}

Context& Multiprocessor::context_for(int thread) {
  if (threads_have_identities()) {
    return *contexts_[block_parity_ * most_threads_of_a_block + static_cast<unsigned>(thread)];
  }
  if (idle_contexts_.empty()) {
    return *contexts_.emplace_back(
        std::make_unique<Context>(&serve_threads, Context::Identity::of_its_os_thread));
  }
  Context* context = idle_contexts_.back();
  idle_contexts_.pop_back();
  return *context;
}

void Multiprocessor::enter(Context& from, int next) {
  make_current(next);
  Context*& context = threads_[next].context;
  if (context == nullptr) context = &context_for(next);
  from.switch_to(*context);
}

// Leaves the current thread, which waits or is ready; returns when it gets its next turn.
void Multiprocessor::hand_over() {
  if (ready_turns_ == 0) fail_deadlock();
  const int self = current_;
  const int next = take_ready();
  if (next != self) enter(*threads_[self].context, next);
}

// ---- a thread's life

void Multiprocessor::serve_threads() {
  for (;;) {
    // Read again each time: another OS thread may run the next block.
    running->run_current_thread();
    running->finish_current_thread();
  }
}

void Multiprocessor::run_current_thread() {
  sanitizer::acquire(&ordering_->start);
  work_->body(work_->argument);
  sanitizer::release(&ordering_->end);
}

// Returns when this fiber must run another thread, which is then the current one.
void Multiprocessor::finish_current_thread() {
  DeviceThread& self = threads_[current_];
  if (self.copies.first != nullptr) {
    fail("the thread has exited with asynchronous copies that it never waited for",
         {"copy_async_16", {"", 0}});
  }
  self.state = ThreadState::exited;
  --alive_;
  if (barrier_.arrived > 0) {
    fail("the thread has exited while others wait for it at a barrier", barrier_.operation);
  }
  Context& context = *self.context;
  if (alive_ == 0) {
    if (!threads_have_identities()) idle_contexts_.push_back(&context);
    context.switch_to(host_);
    return;
  }
  if (ready_turns_ == 0) fail_deadlock();
  const int next = take_ready();
  if (!threads_have_identities()) {
    if (threads_[next].context == nullptr) {
      threads_[next].context = &context;
      make_current(next);
      return;
    }
    idle_contexts_.push_back(&context);
  }
  enter(context, next);
}

// ---- barriers

void Multiprocessor::block_barrier(const Operation& operation) {
  if (alive_ != thread_count_) {
    fail("threads of the block have exited without coming to this barrier", operation);
  }
  if (barrier_.arrived == 0) {
    barrier_.operation = operation;
  } else if (!(barrier_.operation == operation)) {
    fail("threads of one block wait at different barriers", operation);
  }
  const bool turn = barrier_.turn;
  sanitizer::release(shared_memory_.ordering(barrier_ordering(turn)));
  threads_[current_].state = ThreadState::at_barrier;
  threads_[current_].waiting_at = operation;
  if (++barrier_.arrived == thread_count_) release_barrier();
  hand_over();
  sanitizer::acquire(shared_memory_.ordering(barrier_ordering(turn)));
}

void Multiprocessor::release_barrier() {
  barrier_.arrived = 0;
  barrier_.turn = !barrier_.turn;
  if (work_->schedule.order == Schedule::Order::random) {
    order_warps();
  }
  for (int i = 0; i < thread_count_; ++i) make_ready(i);
}

// ---- warps

unsigned Multiprocessor::live_lanes() const {
  const int first = current_ / lanes_of_a_warp * lanes_of_a_warp;
  unsigned live = 0;
  for (int lane = 0; lane < lanes_of_a_warp && first + lane < thread_count_; ++lane) {
    if (threads_[first + lane].state != ThreadState::exited) live |= bit(lane);
  }
  return live;
}

void Multiprocessor::open_meeting(Meeting& meeting, int warp, unsigned mask,
                                  const Operation& operation) {
  for (unsigned lanes = mask; lanes != 0; lanes &= lanes - 1) {
    const int thread = warp * lanes_of_a_warp + std::countr_zero(lanes);
    if (thread >= thread_count_) fail("the mask names a lane beyond the block", operation);
    if (threads_[thread].state == ThreadState::exited) {
      fail("the mask names a lane that has exited", operation);
    }
  }
  meeting.arguments.mask = mask;
  meeting.operation = operation;
}

void Multiprocessor::warp_meeting(unsigned mask, void* argument,
                                  void (*perform)(const LaneArguments&), bool orders_memory,
                                  const Operation& operation) {
  const int self = lane();
  const int warp = current_ / lanes_of_a_warp;
  if ((mask & bit(self)) == 0) fail("the calling lane is not in its own mask", operation);
  const int lowest = std::countr_zero(mask);
  Meeting& meeting = meetings_[warp][lowest];
  if (meeting.arrived == 0) {
    open_meeting(meeting, warp, mask, operation);
  } else if (meeting.arguments.mask != mask) {
    fail("lanes of one warp give different masks", operation);
  } else if (!(meeting.operation == operation)) {
    fail("lanes of one warp have come to different warp operations", operation);
  }
  void* order = shared_memory_.ordering(meeting_ordering(warp, lowest, meeting.turn));
  if (orders_memory) sanitizer::release(order);
  meeting.arguments.of[self] = argument;
  meeting.arrived |= bit(self);
  if (meeting.arrived != mask) {
    threads_[current_].state = ThreadState::in_warp_operation;
    threads_[current_].waiting_at = operation;
    hand_over();
  } else {
    meeting.arrived = 0;
    meeting.turn = !meeting.turn;
    if (perform != nullptr) perform(meeting.arguments);
    for (unsigned lanes = mask & ~bit(self); lanes != 0; lanes &= lanes - 1) {
      make_ready(warp * lanes_of_a_warp + std::countr_zero(lanes));
    }
    if (work_->schedule.order == Schedule::Order::random) {
      make_ready(current_);
      hand_over();
    }
  }
  if (orders_memory) sanitizer::acquire(order);
}

}  // namespace tessera::emulator
