// Marks: points of a stream that other streams and the host wait for.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "emulator/access/access_clock.h"

namespace tessera::emulator {

// Reached once, by the thread that runs the stream; any thread may wait for it.
struct Mark {
  // 0 or 1. Released with 1 and acquired by waiters: only here is an operation of one stream
  // ordered before an operation of another.
  std::atomic<std::uint32_t> reached{0};
  // When it was reached, in milliseconds of the steady clock.
  std::atomic<double> time{0};
  std::atomic<std::uint32_t> references{0};
  // The name of the stream that took the mark. All fields that the host writes when it recycles the
  // mark are atomic: no synchronisation orders those writes after another thread's last read.
  std::atomic<const std::string*> stream_name{nullptr};
  AccessClock known;  // the stream's knowledge, for the access checker and under its lock

  void reach();
  [[nodiscard]] const std::string* name() const {
    return stream_name.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool is_reached() const { return reached.load(std::memory_order_acquire) != 0; }
};

// Prevents a mark from being recycled. The count orders nothing (it is never acquired while the
// mark's stream lives). If it did, the thread sanitizer would see threads that share a mark as
// ordered although they have no dependency.
class MarkReference {
 public:
  MarkReference() = default;
  explicit MarkReference(Mark* mark) : mark_(mark) { add(); }
  MarkReference(const MarkReference& other) : MarkReference(other.mark_) {}
  MarkReference(MarkReference&& other) noexcept : mark_(std::exchange(other.mark_, nullptr)) {}
  MarkReference& operator=(MarkReference other) noexcept {
    std::swap(mark_, other.mark_);
    return *this;
  }
  ~MarkReference() {
    if (mark_ != nullptr) mark_->references.fetch_sub(1, std::memory_order_release);
  }
  Mark* operator->() const { return mark_; }
  Mark& operator*() const { return *mark_; }
  explicit operator bool() const { return mark_ != nullptr; }

 private:
  void add() {
    if (mark_ != nullptr) mark_->references.fetch_add(1, std::memory_order_relaxed);
  }

  Mark* mark_ = nullptr;
};

// The marks of one stream, recycled once nothing refers to them: a training run of a million steps
// needs only as many as are in use at a time. A mark does not move to another stream while both
// live. So a waiter can see of a mark's earlier use only earlier operations of the same stream,
// which it may know.
class MarkPool {
 public:
  // A mark that is not reached. Callers must exclude one another.
  MarkReference take(const std::string* stream_name);
  // True when no mark has a reference, now or later: the pool may be destroyed.
  [[nodiscard]] bool is_unused() const;
  [[nodiscard]] std::size_t size() const { return marks_.size(); }

 private:
  std::deque<Mark> marks_;
  std::size_t next_ = 0;
};

}  // namespace tessera::emulator
