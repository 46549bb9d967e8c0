// The operations of a stream, in order.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "emulator/runtime/mark.h"

namespace tessera::emulator {

// Waits for `wait`, runs `work`, reaches `mark`; each may be absent.
struct StreamOperation {
  const char* what = "";
  MarkReference wait = {};
  std::function<void()> work = {};
  MarkReference mark = {};
  std::atomic<StreamOperation*> next = nullptr;
};

// One consumer; producers exclude one another. The link to each operation is an atomic of its own:
// the consumer sees by it what the producer did before that operation, and nothing later.
class OperationQueue {
 public:
  OperationQueue() = default;
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;
  ~OperationQueue() {
    while (front() != nullptr) pop();
  }

  void push(std::unique_ptr<StreamOperation> operation) {
    StreamOperation* added = operation.get();
    tail_->next.store(operation.release(), std::memory_order_release);
    tail_ = added;
  }

  // Null when empty.
  [[nodiscard]] StreamOperation* front() const {
    return head_->next.load(std::memory_order_acquire);
  }
  // Only if not empty. Destroys what the operation holds.
  void pop() {
    StreamOperation* first = front();
    first->wait = {};
    first->work = nullptr;
    first->mark = {};
    head_.reset(first);
  }

 private:
  std::unique_ptr<StreamOperation> head_ =
      std::make_unique<StreamOperation>();  // finished; owns the next by link
  StreamOperation* tail_ = head_.get();
};

}  // namespace tessera::emulator
