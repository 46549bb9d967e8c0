// Vector clocks over the calls of the runtime.
#include "emulator/runtime/access_checker.h"

#include <fmt/format.h>

#include "emulator/runtime/checker.h"
#include "emulator/runtime/report.h"
#include "emulator/runtime/runtime.h"
#include "emulator/runtime/settings.h"

namespace tessera::emulator {
namespace {

AccessHistory::Range range_of(const void* memory, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  return {begin, begin + bytes};
}

std::string describe(const PastAccess& access) {
  return fmt::format("{} {} on {}", access.what, access.write ? "writes" : "reads",
                     access.stream_name != nullptr ? "stream " + *access.stream_name : "the host");
}

}  // namespace

AccessChecker::AccessChecker() : enabled_(settings().check) {}

void AccessChecker::set_enabled(bool enabled) {
  const std::lock_guard lock(mutex_);
  // Clears the past: a history without the waits in between would report false conflicts.
  history_.clear();
  enabled_.store(enabled, std::memory_order_relaxed);
}

int AccessChecker::conflicts() const {
  const std::lock_guard lock(mutex_);
  return conflicts_;
}

std::vector<std::string> AccessChecker::reports() const {
  const std::lock_guard lock(mutex_);
  return reports_;
}

void AccessChecker::reset() {
  const std::lock_guard lock(mutex_);
  conflicts_ = 0;
  reports_.clear();
  told_.clear();
}

Actor AccessChecker::add_stream() {
  const std::lock_guard lock(mutex_);
  if (unused_.empty()) {
    clocks_.emplace_back();
    return clocks_.size() - 1;
  }
  const Actor stream = unused_.back();
  unused_.pop_back();
  return stream;
}

void AccessChecker::remove_stream(Actor stream) {
  const std::lock_guard lock(mutex_);
  unused_.push_back(stream);
}

// The next operation of the stream: the stream knows what the host knows, because the host starts
// it.
void AccessChecker::begin(Actor stream) {
  AccessClock& clock = clocks_[stream];
  clock.merge(clocks_[host_actor]);
  clock.set(stream, clock.at(stream) + 1);
}

void AccessChecker::operation(Actor stream, const std::string* name, const char* what,
                              std::span<const Access> accesses) {
  if (!enabled()) return;
  const std::lock_guard lock(mutex_);
  begin(stream);
  const AccessClock& clock = clocks_[stream];
  for (const Access& access : accesses) {
    check(access, {stream, clock.at(stream), what, name, access.write}, clock);
  }
}

void AccessChecker::record(Actor stream, AccessClock& known) {
  if (!enabled()) return;
  const std::lock_guard lock(mutex_);
  begin(stream);
  known = clocks_[stream];
}

void AccessChecker::wait(Actor stream, const AccessClock& known) {
  if (!enabled()) return;
  const std::lock_guard lock(mutex_);
  clocks_[stream].merge(known);
}

void AccessChecker::host_waited(const AccessClock& known) {
  if (!enabled()) return;
  const std::lock_guard lock(mutex_);
  clocks_[host_actor].merge(known);
}

void AccessChecker::host_access(const Access& access, const char* what) {
  if (!enabled() || access.bytes == 0) return;
  const std::lock_guard lock(mutex_);
  AccessClock& clock = clocks_[host_actor];
  clock.set(host_actor, clock.at(host_actor) + 1);
  check(access, {host_actor, clock.at(host_actor), what, nullptr, access.write}, clock);
}

void AccessChecker::forget(const void* memory, std::size_t bytes) {
  if (!enabled()) return;
  const std::lock_guard lock(mutex_);
  history_.forget(range_of(memory, bytes));
}

void AccessChecker::check(const Access& access, const PastAccess& now, const AccessClock& known) {
  if (access.bytes == 0) return;
  history_.access(range_of(access.memory, access.bytes), now,
                  [&](const PastAccess& past, AccessHistory::Range range) {
                    if (!known.knows(past.actor, past.operation)) report(past, now, range);
                  });
}

void AccessChecker::report(const PastAccess& past, const PastAccess& now,
                           AccessHistory::Range range) {
  ++conflicts_;
  const std::string later = describe(now);
  const std::string earlier = describe(past);
  if (!told_.emplace(earlier, later).second) return;
  reports_.push_back(fmt::format("{} in [{:#x}, {:#x}) with nothing that orders it after: {}",
                                 later, range.begin, range.end, earlier));
  print_line("unordered accesses: {}", reports_.back());
  if (settings().halt) end_program("ended at the first unordered accesses, as asked");
}

namespace checker {

void set_enabled(bool enabled) {
  runtime().checker().set_enabled(enabled);
}
bool enabled() {
  return runtime().checker().enabled();
}
int conflicts() {
  return runtime().checker().conflicts();
}
std::vector<std::string> reports() {
  return runtime().checker().reports();
}
void reset() {
  runtime().checker().reset();
}
void host_access(const void* memory, std::size_t bytes, bool write, const char* what) {
  runtime().checker().host_access({memory, bytes, write}, what);
}

}  // namespace checker
}  // namespace tessera::emulator
