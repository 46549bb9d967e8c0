// The values that a state has at one moment, for somebody who saves them while they change.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "checkpoint/state/state.h"
#include "engine/device/queue.h"

namespace tessera::checkpoint {

// Memory of its own, made once and used again. On a GPU it is page-locked host memory.
class Snapshot {
 public:
  // What such a state takes: all of its pieces but those in files, which stay there.
  static std::size_t bytes_of(const State& state);

  // Makes the memory on the calling thread, counted by its pool as `other`, of a GPU as the host's.
  // Does nothing when there is enough.
  void reserve(const State& state, Device device);

  // The same tensors and scalars, whose pieces lie in this memory, those of the model's floating
  // tensors as `model_dtype`, the file's, where that is smaller and they lie on the CPU. On the CPU
  // the values are there when it returns. On a GPU the copies are in the calling thread's current
  // queue, before what is put there from now on, and await() waits for them. Pieces in files are
  // not copied: until release(), whoever would write into these files waits (StateFile::Hold).
  State take(const State& state, Device device, DType model_dtype);

  // Any thread.
  void await() const;
  // Ends the hold on files. May be called by any thread, at any time, more than once.
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
