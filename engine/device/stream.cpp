// Side streams: each is a worker thread, on a GPU with its own queue.
#include "engine/device/stream.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "base/home_process.h"
#include "base/parallel.h"
#include "engine/device/backend.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

struct Event::State {
  explicit State(Device stream_device) : device(stream_device) {}

  const Device device;
  const HomeProcess home;
  std::mutex mutex;
  std::condition_variable reached;
  bool done = false;  // the worker has reached the point
  std::exception_ptr error;
  PointHandle point;  // the point that the device must reach; null on the CPU

  void finish(std::exception_ptr failure, PointHandle device_point) {
    {
      const std::lock_guard lock(mutex);
      done = true;
      error = std::move(failure);
      point = std::move(device_point);
    }
    reached.notify_all();
  }

  PointHandle wait_for_worker() {
    home.require("waiting for a stream");
    std::unique_lock lock(mutex);
    reached.wait(lock, [&] { return done; });
    if (error) std::rethrow_exception(error);
    return point;
  }
};

void Event::wait() const {
  if (!state_) return;
  if (const PointHandle point = state_->wait_for_worker()) point->synchronize();
}

void Event::join() const {
  if (!state_) return;
  if (const PointHandle point = state_->wait_for_worker()) {
    current_queue(state_->device).wait(point);
  }
}

bool Event::done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done && (!state_->point || state_->point->reached());
}

bool Event::succeeded() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done && !state_->error && (!state_->point || state_->point->reached());
}

struct Stream::State {
  struct Item {
    std::function<void()> work;
    std::shared_ptr<Event::State> event;
    PointHandle begin;  // of the enqueuing thread's queue
  };
  // The queue was busy between two timed points.
  struct Span {
    PointHandle begin, end;
  };

  State(std::string stream_name, Device stream_device)
      : name(std::move(stream_name)), device(stream_device) {
    const char* setting = std::getenv("TESSERA_SERIAL_STREAMS");
    // Planned work takes no time; serial order makes the plan deterministic.
    serial = device.is_planned() || (setting != nullptr && std::string_view(setting) == "1");
    if (on_gpu()) require_device(device);
    if (device.is_planned() || (on_gpu() && !serial)) {
      queue = backend_of(device.type).make_queue(device, name, QueuePriority::high);
    }
  }

  const std::string name;
  const Device device;
  const HomeProcess home;
  bool serial = false;
  std::unique_ptr<DeviceQueue> queue;  // of the worker, on a GPU
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<Item> items;
  bool stopping = false;
  std::exception_ptr failure;
  mutable double busy = 0;
  mutable std::deque<Span> spans;  // not yet counted in `busy`
  std::thread worker;

  [[nodiscard]] bool on_gpu() const { return device.type == DeviceType::cuda; }

  // Adds the time of finished spans; needs the mutex.
  void count_reached_spans() const {
    while (!spans.empty() && spans.front().end->reached()) {
      busy += spans.front().end->seconds_since(*spans.front().begin);
      spans.pop_front();
    }
  }

  // Runs the work and returns the point at its end. A stream without its own queue uses the
  // caller's queue, and waits for it.
  PointHandle run(Item& item) {
    if (!queue) {
      item.work();
      if (on_gpu()) current_queue(device).synchronize();
      return nullptr;
    }
    queue->wait(item.begin);
    const PointHandle begin = queue->record_timed();
    item.work();
    PointHandle end = queue->record_timed();
    if (!on_gpu()) return end;  // planned work takes no time
    const std::lock_guard lock(mutex);
    spans.push_back({begin, end});
    count_reached_spans();
    return end;
  }

  // Runs work on the caller, for a stream without a worker.
  void execute_here(Item& item) {
    std::optional<QueueGuard> guard;
    if (queue) guard.emplace(*queue);
    execute(item);
  }

  void execute(Item& item) {
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex);
      error = failure;
    }
    PointHandle end;
    const auto begin = Clock::now();
    if (!error) {
      try {
        end = run(item);
      } catch (...) {
        error = std::current_exception();
      }
    }
    item.work = nullptr;  // releases what it holds before the event is visible
    {
      const std::lock_guard lock(mutex);
      failure = error;
      if (!queue) busy += seconds_between(begin, Clock::now());
    }
    item.event->finish(error, std::move(end));
  }

  void loop() {
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    set_compute_threads(1);
    std::optional<QueueGuard> guard;
    if (queue) guard.emplace(*queue);
    for (;;) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stopping || !items.empty(); });
      if (items.empty()) return;
      Item item = std::move(items.front());
      items.pop_front();
      lock.unlock();
      execute(item);
    }
  }
};

Stream::Stream(std::string name, Device device)
    : state_(std::make_unique<State>(std::move(name), device)) {
  if (!state_->serial) state_->worker = std::thread([state = state_.get()] { state->loop(); });
}

// The queue's own destructor waits for the remaining work of the device.
Stream::~Stream() {
  if (!state_->worker.joinable()) return;
  if (state_->home.left()) {
    // The worker belongs to the parent: joining it, or destroying what it waits on, would block
    // forever.
    (void)state_.release();
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->worker.join();
}

Event Stream::enqueue(std::function<void()> work) {
  if (!state_->serial) state_->home.require("work on a stream");
  Event event;
  event.state_ = std::make_shared<Event::State>(state_->device);
  State::Item item{std::move(work), event.state_, nullptr};
  if (state_->queue) item.begin = current_queue(state_->device).record();
  if (state_->serial) {
    state_->execute_here(item);
    return event;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->items.push_back(std::move(item));
  }
  state_->changed.notify_one();
  return event;
}

Stream::Two Stream::enqueue(std::function<void()> first, std::function<void()> second) {
  if (state_->serial) return {enqueue(std::move(first)), enqueue(std::move(second))};
  state_->home.require("work on a stream");
  Two events;
  events.first.state_ = std::make_shared<Event::State>(state_->device);
  events.second.state_ = std::make_shared<Event::State>(state_->device);
  PointHandle begin;
  if (state_->queue) begin = current_queue(state_->device).record();
  {
    const std::lock_guard lock(state_->mutex);
    state_->items.push_back({std::move(first), events.first.state_, begin});
    state_->items.push_back({std::move(second), events.second.state_, std::move(begin)});
  }
  state_->changed.notify_one();
  return events;
}

void Stream::wait(const Event& event) {
  if (event.succeeded()) return;
  // Queues of one device wait for each other; across devices the worker waits.
  const bool same_device = event.state_->device == state_->device;
  enqueue([event, same_device] { same_device ? event.join() : event.wait(); });
}

void Stream::attempt(std::function<void()> work) {
  std::exception_ptr failure;
  run([&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

void Stream::synchronize() {
  run([] {});
}

bool Stream::is_serial() const {
  return state_->serial;
}

double Stream::busy_seconds() const {
  const std::lock_guard lock(state_->mutex);
  state_->count_reached_spans();
  return state_->busy;
}

void StallClock::join(const Event& event) {
  run([&event] { event.join(); });
}

void StallClock::run(const std::function<void()>& work) {
  if (device_.type != DeviceType::cuda) {
    const auto begin = Clock::now();
    struct Stop {
      double& seconds;
      Clock::time_point begin;
      ~Stop() { seconds += seconds_between(begin, Clock::now()); }
    } const stop{thread_seconds_, begin};
    work();
    return;
  }
  // Measures from the point at which the queue runs out of other work to the end of this work. This
  // includes the time in which the thread waits for the stream's worker, once the queue is empty.
  DeviceQueue& queue = current_queue(device_);
  const PointHandle before = queue.record_timed();
  work();
  pending_.push_back({before, queue.record_timed()});
  std::size_t reached = 0;  // keeps a clock that is never read from growing
  for (; reached < pending_.size() && pending_[reached].after->reached(); ++reached) {
    queue_seconds_ += pending_[reached].after->seconds_since(*pending_[reached].before);
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(reached));
}

double StallClock::seconds() const {
  for (const Pair& pair : pending_) {
    pair.after->synchronize();
    queue_seconds_ += pair.after->seconds_since(*pair.before);
  }
  pending_.clear();
  return thread_seconds_ + queue_seconds_;
}

}  // namespace tessera
