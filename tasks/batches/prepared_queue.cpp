// A worker's stream, and the slots that it fills in order.
#include "tasks/batches/prepared_queue.h"

#include <chrono>
#include <map>
#include <utility>

#include "tasks/batches/dealing.h"

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
      slot->prepared = task_.prepare(slot->batch.data_set, own_samples(slot->batch));
    });
    slots_.push_back(std::move(slot));
  }
}

std::vector<std::int64_t> PreparedQueue::own_samples(const BatchOrder::Batch& batch) const {
  if (!share_.deal) return order_.share(batch, share_.first, share_.samples);
  const std::vector<std::int64_t> all = order_.share(batch, 0, share_.all);
  const std::vector<std::int64_t> places = task_.places(batch.data_set, all);
  // Asking the task for each cost would read its model's configuration as often.
  std::map<std::int64_t, double> costs;
  const auto cost = [&](std::int64_t length) {
    const auto [found, is_new] = costs.try_emplace(length, 0.0);
    if (is_new) found->second = task_.row_cost(length);
    return found->second;
  };
  const auto dealt = deal_by_cost(places, share_.deal->parts, share_.deal->most_places, cost);
  std::vector<std::int64_t> own;
  for (const std::int64_t place : dealt[static_cast<std::size_t>(share_.deal->part)]) {
    own.push_back(all[static_cast<std::size_t>(place)]);
  }
  return own;
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
