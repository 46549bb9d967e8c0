// The values of a state at one moment, to save while training changes them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "checkpoint/state/state.h"
#include "engine/device/queue.h"

namespace tessera::checkpoint {

// Owns memory that is allocated once and reused. For a GPU it is page-locked host memory.
class Snapshot {
 public:
  // The bytes of a state's copy: all of its pieces except those in files, which stay there.
  static std::size_t bytes_of(const State& state);

  // Allocates the memory on the calling thread, counted by its pool as `other` (for a GPU, by the
  // host's pool). Does nothing if there is enough.
  void reserve(const State& state, Device device);

  // Returns the same tensors and scalars with pieces in this memory. The model's floating tensors
  // have `model_dtype`, the file's, if that is smaller and they lie on the CPU. On the CPU the
  // values are there on return. On a GPU the copies are in the calling thread's current queue,
  // before all later work, and await() waits for them. Pieces in files are not copied: until
  // release(), writers of these files wait (StateFile::Hold).
  State take(const State& state, Device device, DType model_dtype);

  // Any thread.
  void await() const;
  // Ends the hold on files. Any thread may call it, at any time, more than once.
  [[nodiscard]] std::function<void()> release() const;

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t reserved_ = 0;
  PointHandle copied_;
  struct Holds {
    std::mutex mutex;
    std::vector<std::shared_ptr<void>> of_files;
  };
  std::shared_ptr<Holds> holds_ = std::make_shared<Holds>();
};

}  // namespace tessera::checkpoint
