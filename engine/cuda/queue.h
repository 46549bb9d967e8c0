// A CUDA stream as an engine queue.
#pragma once

#include "engine/cuda/queue_context.h"
#include "engine/cuda/staging.h"
#include "engine/device/queue.h"

namespace tessera::cuda {

class Queue final : public DeviceQueue {
 public:
  Queue(int device, const std::string& name, QueuePriority priority, std::shared_ptr<Arena> arena)
      : context_(device, name, priority, std::move(arena)) {}

  [[nodiscard]] Device device() const override { return Device::cuda(context_.device); }
  [[nodiscard]] kernels::Queue native() override;

  [[nodiscard]] PointHandle record() override { return context_.record(false); }
  [[nodiscard]] PointHandle record_timed() override { return context_.record(true); }
  void wait(const PointHandle& point) override;
  void synchronize() override { context_.synchronize(); }

  void copy(void* to, const void* from, std::size_t bytes) override;
  void zero(void* memory, std::size_t bytes) override;
  void copy_from_host(void* to, const void* from, std::size_t bytes) override;
  void copy_to_host(void* to, const void* from, std::size_t bytes) override;
  void enqueue_copy_from_pinned(void* to, const void* from, std::size_t bytes) override;
  void enqueue_copy_to_pinned(void* to, const void* from, std::size_t bytes) override;
  void run_own(const OwnWork& work, const std::function<void(void* stream)>& enqueue) override;
  [[nodiscard]] kernels::ProductCounts products() const override { return context_.products; }
  [[nodiscard]] kernels::AttentionCounts attention() const override { return context_.attention; }

 private:
  void enqueue_copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);

  StagingRing staging_;  // ends after the stream has been waited for
  QueueContext context_;
};

}  // namespace tessera::cuda
