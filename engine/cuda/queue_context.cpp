// A stream, its name for profilers, and scratch memory that grows in stream order.
#include "engine/cuda/queue_context.h"

#include <nvtx3/nvToolsExtCudaRt.h>

#include "base/error.h"
#include "engine/cuda/device.h"
#include "kernels/cuda/cudnn/attention_way.h"
#include "kernels/cuda/device/error.h"
#include "kernels/cuda/matmul/matmul_way.h"

namespace tessera::cuda {
namespace {

// Scratch sizes are rounded up to this, so that scratch grows a few times per program, not per op.
constexpr std::size_t scratch_unit = std::size_t{1} << 20;

}  // namespace

QueueContext::QueueContext(int device_index, const std::string& name, QueuePriority priority,
                           std::shared_ptr<Arena> arena)
    : arena_(std::move(arena)), faults_(std::make_shared<FaultRecord>()) {
  bind_thread(device_index);
  kernels::cuda::load_products();
  kernels::cuda::load_attention();
  const cudaDeviceProp& description = properties(device_index);
  device = device_index;
  multiprocessors = description.multiProcessorCount;
  compute_capability = description.major * 10 + description.minor;
  shared_memory_of_a_block = description.sharedMemPerBlockOptin;
  fault = faults_->address();
  int lowest = 0, highest = 0;
  TESSERA_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  TESSERA_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                            priority == QueuePriority::high ? highest : lowest));
  nvtxNameCudaStreamA(stream, name.c_str());
  arena_->add(*this);
}

QueueContext::~QueueContext() {
  (void)cudaStreamSynchronize(stream);
  arena_->remove(*this);
  (void)cudaStreamDestroy(stream);
  outgrown_.push_back(scratch_);
  for (const Block& block : outgrown_) {
    if (block.memory != nullptr) arena_->give_back_idle(block.memory, block.bytes);
  }
}

std::shared_ptr<Point> QueueContext::record(bool timed) const {
  return std::make_shared<Point>(EventPool::of(device), stream, timed, faults_);
}

void QueueContext::synchronize() {
  bind_thread(device);
  TESSERA_CUDA(cudaStreamSynchronize(stream));
  faults_->check_and_clear();
}

void QueueContext::release_outgrown(bool wait) {
  if (wait) {
    bind_thread(device);
    TESSERA_CUDA(cudaStreamSynchronize(stream));
  }
  std::erase_if(outgrown_, [&](const Block& block) {
    if (!block.last_use->reached()) return false;
    arena_->give_back_idle(block.memory, block.bytes);
    return true;
  });
}

// If the arena is full, this queue and all pools first release the memory that they keep for later.
std::byte* QueueContext::take(std::size_t bytes) {
  if (std::byte* memory = arena_->take(bytes)) return memory;
  release_outgrown(true);
  std::byte* memory = arena_->obtain(bytes);
  TESSERA_CHECK(memory != nullptr, ErrorCode::out_of_memory,
                "out of memory: {} bytes asked for by a kernel for its intermediate results{}; use "
                "a smaller batch, a sharding strategy that holds less, or more ranks",
                bytes, arena_->shortage());
  return memory;
}

void* QueueContext::scratch(std::size_t bytes) {
  if (bytes <= scratch_.bytes) return scratch_.memory;
  release_outgrown(false);
  if (scratch_.memory != nullptr) {
    scratch_.last_use = record(false);
    outgrown_.push_back(scratch_);
    scratch_ = {};
  }
  const std::size_t rounded = (bytes + scratch_unit - 1) / scratch_unit * scratch_unit;
  scratch_.memory = take(rounded);
  scratch_.bytes = rounded;
  return scratch_.memory;
}

}  // namespace tessera::cuda
