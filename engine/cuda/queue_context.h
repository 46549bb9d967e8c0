// The resources of one queue's kernels: its stream, fault record and scratch memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/arena.h"
#include "engine/cuda/fault_record.h"
#include "engine/cuda/point.h"
#include "kernels/cuda/device/context.h"

namespace tessera::cuda {

class QueueContext final : public kernels::cuda::Context {
 public:
  QueueContext(int device_index, const std::string& name, QueuePriority priority,
               std::shared_ptr<Arena> arena);
  ~QueueContext() override;  // waits for the stream
  QueueContext(const QueueContext&) = delete;
  QueueContext& operator=(const QueueContext&) = delete;

  void* scratch(std::size_t bytes) override;

  [[nodiscard]] std::shared_ptr<Point> record(bool timed) const;
  // Waits for the stream; throws its errors, including faults.
  void synchronize();

 private:
  struct Block {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    PointHandle last_use;  // null: still in use
  };
  [[nodiscard]] std::byte* take(std::size_t bytes);
  void release_outgrown(bool wait);

  std::shared_ptr<Arena> arena_;
  std::shared_ptr<FaultRecord> faults_;
  Block scratch_;
  std::vector<Block> outgrown_;  // active launches may still use them
};

}  // namespace tessera::cuda
