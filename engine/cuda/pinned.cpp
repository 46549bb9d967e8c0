// The pool of page-locked memory.
#include "engine/cuda/pinned.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/device/error.h"

namespace tessera::cuda {
namespace {

class PageLockedMemory final : public MemorySource {
 public:
  [[nodiscard]] std::size_t granularity(std::size_t) const override { return 4096; }
  [[nodiscard]] std::byte* take(std::size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t error =
        cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return nullptr;
    }
    TESSERA_CUDA(error);
    return static_cast<std::byte*>(memory);
  }
  // At the end of the program the CUDA runtime and this memory may be gone already.
  void give_back(std::byte* block, std::size_t) override { (void)cudaFreeHost(block); }
  [[nodiscard]] std::string shortage() const override { return " in page-locked host memory"; }
};

}  // namespace

const std::shared_ptr<MemoryPool>& pinned_pool() {
  static const std::shared_ptr<MemoryPool> pool =
      MemoryPool::create(std::make_shared<PageLockedMemory>());
  return pool;
}

}  // namespace tessera::cuda
