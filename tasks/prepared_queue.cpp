// A worker's stream, and the slots that it fills in order.
#include "tasks/prepared_queue.h"

#include <chrono>
#include <utility>

namespace tessera::tasks {

PreparedQueue::PreparedQueue(const Task& task, const BatchOrder& order, const Share& share,
                             DataPosition from)
    : task_(task), order_(order), share_(share), next_(std::move(from)) {
  fill();
}

void PreparedQueue::fill() {
  while (slots_.size() < depth) {
    auto slot = std::make_shared<Slot>();
    slot->batch = order_.at(next_, share_.all);
    order_.advance(next_, slot->batch);
    slot->ready = worker_.enqueue([this, slot] {
      const auto samples = order_.share(slot->batch, share_.first, share_.samples);
      slot->prepared = task_.prepare(slot->batch.data_set, samples);
    });
    slots_.push_back(std::move(slot));
  }
}

PreparedQueue::Taken PreparedQueue::take() {
  const std::shared_ptr<Slot> slot = std::move(slots_.front());
  slots_.pop_front();
  const auto asked = std::chrono::steady_clock::now();
  slot->ready.wait();
  waited_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - asked).count();
  fill();
  return {slot->batch, std::move(slot->prepared)};
}

}  // namespace tessera::tasks
