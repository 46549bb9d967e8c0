// Adds to a stream, and runs its first operation.
#include "emulator/runtime/stream.h"

#include <fmt/format.h>

#include "emulator/runtime/executor.h"
#include "emulator/runtime/parking.h"
#include "emulator/runtime/report.h"

namespace tessera::emulator {

Stream::Stream(const StreamOptions& options, const std::string* name, Executor& executor,
               AccessChecker& checker)
    : options_(options),
      name_(name),
      executor_(executor),
      checker_(checker),
      actor_(checker.add_stream()) {}

Stream::~Stream() {
  checker_.remove_stream(actor_);
}

void Stream::enqueue(const char* what, std::span<const Access> accesses,
                     std::function<void()> work) {
  auto operation = std::make_unique<StreamOperation>();
  operation->what = what;
  operation->work = std::move(work);
  {
    const std::lock_guard lock(producers_);
    checker_.operation(actor_, name(), what, accesses);
    add(std::move(operation));
  }
  executor_.added_to(*this);
}

MarkReference Stream::record() {
  auto operation = std::make_unique<StreamOperation>();
  operation->what = "record";
  MarkReference mark;
  {
    const std::lock_guard lock(producers_);
    mark = marks_->take(name());
    checker_.record(actor_, mark->known);
    operation->mark = mark;
    add(std::move(operation));
  }
  executor_.added_to(*this);
  return mark;
}

void Stream::wait(const MarkReference& mark) {
  auto operation = std::make_unique<StreamOperation>();
  operation->what = "wait";
  operation->wait = mark;
  {
    const std::lock_guard lock(producers_);
    checker_.wait(actor_, mark->known);
    add(std::move(operation));
  }
  executor_.added_to(*this);
}

void Stream::add(std::unique_ptr<StreamOperation> operation) {
  queue_.push(std::move(operation));
  added_.fetch_add(1, std::memory_order_relaxed);
  changes_.fetch_add(1, std::memory_order_release);
}

bool Stream::is_idle() const {
  if (done_.load(std::memory_order_relaxed) != added()) return false;
  // Acquired only now: the work of a stream that is still running is not known.
  return done_.load(std::memory_order_acquire) == added();
}

std::string Stream::state() const {
  const char* first = first_.load(std::memory_order_relaxed);
  const std::string* waits_for = waits_for_.load(std::memory_order_relaxed);
  std::string text =
      fmt::format("stream {}: {} operations done of {} added", *name(), done(), added());
  if (first != nullptr) text += fmt::format(", at: {}", first);
  if (waits_for != nullptr) text += fmt::format(" for stream {}", *waits_for);
  return text;
}

bool Stream::advance() {
  StreamOperation* operation = queue_.front();
  if (operation == nullptr) return false;
  if (operation->wait && !operation->wait->is_reached()) {
    first_.store(operation->what, std::memory_order_relaxed);
    waits_for_.store(operation->wait->name(), std::memory_order_relaxed);
    return false;
  }
  finish(*operation);
  return true;
}

bool Stream::advance_after_waiting() {
  StreamOperation* operation = queue_.front();
  if (operation == nullptr) return false;
  if (operation->wait) {
    first_.store(operation->what, std::memory_order_relaxed);
    waits_for_.store(operation->wait->name(), std::memory_order_relaxed);
    while (!operation->wait->is_reached()) sleep_while(operation->wait->reached, 0);
  }
  finish(*operation);
  return true;
}

void Stream::finish(StreamOperation& operation) {
  first_.store(operation.what, std::memory_order_relaxed);
  waits_for_.store(nullptr, std::memory_order_relaxed);
  if (operation.work) executor_.run(*this, operation);
  if (operation.mark) operation.mark->reach();
  queue_.pop();
  first_.store(nullptr, std::memory_order_relaxed);
  done_.fetch_add(1, std::memory_order_release);
}

std::uint32_t Stream::changes() const {
  return changes_.load(parking_order);
}

void Stream::sleep_while_unchanged(std::uint32_t changes) const {
  sleep_while(changes_, changes);
}

void Stream::wake() const {
  wake_all(changes_);
}

void Stream::stop() {
  stopped_.store(true, std::memory_order_relaxed);
  changes_.fetch_add(1, std::memory_order_release);
  wake();
}

bool Stream::stopped() const {
  return stopped_.load(parking_order);
}

}  // namespace tessera::emulator
