// Marks: points of a stream that other streams and the host wait for.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "emulator/access/access_clock.h"

namespace tessera::emulator {

// Reached once by the thread that runs the stream, waited for by anybody.
struct Mark {
  // 0 or 1. Released with 1 and acquired by whoever waits: the one place where an operation of one
  // stream gets to be ordered before an operation of another.
  std::atomic<std::uint32_t> reached{0};
  // When it was reached, in milliseconds of the steady clock.
  std::atomic<double> time{0};
  std::atomic<std::uint32_t> references{0};
  // Of the stream that took the mark. Atomic as all else here that the host writes when it takes
  // the mark again: nothing orders that after the last look of a thread that let go of it.
  std::atomic<const std::string*> stream_name{nullptr};
  AccessClock known;  // what the stream knew, for the access checker and under its lock

  void reach();
  [[nodiscard]] const std::string* name() const {
    return stream_name.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool is_reached() const { return reached.load(std::memory_order_acquire) != 0; }
};

// Keeps a mark from being taken again. The count orders nothing (while the mark's stream lives, it
// is never acquired): were it to, threads that share a mark but no dependency would seem ordered to
// the thread sanitizer.
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

// The marks of one stream, taken again once nobody refers to them: a training run of a million
// steps needs as many as are under way. A mark never moves to another stream while both live: what
// a waiter sees of a mark's earlier use is then what the same stream did earlier, which it may
// know.
class MarkPool {
 public:
  // A mark that is not reached. Callers keep one another out.
  MarkReference take(const std::string* stream_name);
  // Nobody refers to any of them, nor will: it may be destroyed.
  [[nodiscard]] bool is_unused() const;
  [[nodiscard]] std::size_t size() const { return marks_.size(); }

 private:
  std::deque<Mark> marks_;
  std::size_t next_ = 0;
};

}  // namespace tessera::emulator
