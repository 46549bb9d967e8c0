// Side streams as worker threads.
#include "engine/stream.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>

#include "kernels/base/parallel.h"

namespace tessera {

struct Event::State {
  std::mutex mutex;
  std::condition_variable reached;
  bool done = false;
  std::exception_ptr error;

  void finish(std::exception_ptr failure) {
    {
      const std::lock_guard lock(mutex);
      done = true;
      error = std::move(failure);
    }
    reached.notify_all();
  }
};

void Event::wait() const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  state_->reached.wait(lock, [&] { return state_->done; });
  if (state_->error) std::rethrow_exception(state_->error);
}

bool Event::done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

bool Event::succeeded() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done && !state_->error;
}

struct Stream::State {
  struct Item {
    std::function<void()> work;
    std::shared_ptr<Event::State> event;
  };
  std::string name;
  bool serial = false;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<Item> items;
  bool stopping = false;
  std::exception_ptr failure;
  double busy = 0;
  std::thread worker;

  void execute(Item& item) {
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex);
      error = failure;
    }
    const auto begin = std::chrono::steady_clock::now();
    if (!error) {
      try {
        item.work();
      } catch (...) {
        error = std::current_exception();
      }
    }
    item.work = nullptr;  // what it holds is released before the event is seen
    {
      const std::lock_guard lock(mutex);
      failure = error;
      busy += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    item.event->finish(error);
  }

  void loop() {
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    set_compute_threads(1);
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

Stream::Stream(std::string name) : state_(std::make_unique<State>()) {
  state_->name = std::move(name);
  const char* serial = std::getenv("TESSERA_SERIAL_STREAMS");
  state_->serial = serial != nullptr && std::string_view(serial) == "1";
  if (!state_->serial) state_->worker = std::thread([state = state_.get()] { state->loop(); });
}

Stream::~Stream() {
  if (!state_->worker.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->worker.join();
}

Event Stream::enqueue(std::function<void()> work) {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  State::Item item{std::move(work), event.state_};
  if (state_->serial) {
    state_->execute(item);
    return event;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->items.push_back(std::move(item));
  }
  state_->changed.notify_one();
  return event;
}

void Stream::wait(const Event& event) {
  if (event.succeeded()) return;
  enqueue([event] { event.wait(); });
}

void Stream::synchronize() {
  run([] {});
}

double Stream::busy_seconds() const {
  const std::lock_guard lock(state_->mutex);
  return state_->busy;
}

}  // namespace tessera
