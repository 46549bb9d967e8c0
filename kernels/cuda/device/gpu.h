// The GPU as kernels see it. Every .cu file includes this file.
//
// nvcc compiles a .cu file for GPUs. Any other C++ compiler compiles the same file against the
// emulator (emulator/device), which runs each GPU thread on the host. Kernels therefore use CUDA's
// own names (threadIdx, __syncthreads, __shfl_xor_sync, atomicAdd, __stwb ...) and, for constructs
// without a portable spelling, the functions below. Kernels do not use `__shared__`: shared memory
// comes from shared_memory() and dynamic_shared_memory().
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

namespace tessera::kernels::cuda {

// A block's variable of type T in static shared memory, uninitialised. One for each pair (T, Tag).
template <class T, class Tag = T>
__device__ __forceinline__ T& shared_memory() {
  __shared__ __align__(16) unsigned char bytes[sizeof(T)];
  return *reinterpret_cast<T*>(bytes);
}

// The block's dynamic shared memory (its size is set at the launch), 16-byte aligned.
template <class T>
__device__ __forceinline__ T* dynamic_shared_memory() {
  extern __shared__ __align__(16) unsigned char tessera_dynamic_shared_memory[];
  return reinterpret_cast<T*>(tessera_dynamic_shared_memory);
}

// d = a * b + c of one warp on its tensor core: mma.sync.m16n8k16, a row-major 16 x 16, b
// column-major 16 x 8, fp32 accumulators, fragments as the PTX manual lays them out.
#define TESSERA_MMA_M16N8K16(name, type)                                                        \
  __device__ __forceinline__ void name(float(&d)[4], const std::uint32_t(&a)[4],                \
                                       const std::uint32_t(&b)[2], const float(&c)[4]) {        \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                         \
                 ".f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"                  \
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), \
                   "f"(c[1]), "f"(c[2]), "f"(c[3]));                                            \
  }
TESSERA_MMA_M16N8K16(mma_bfloat16, "bf16")
TESSERA_MMA_M16N8K16(mma_float16, "f16")
#undef TESSERA_MMA_M16N8K16

// ldmatrix: loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the
// address of row l % 8 of matrix l / 8 (16 bytes, 16-byte aligned); fragment i gets matrix i's
// elements (l / 4, 2 * (l % 4)) and the next. The transposed form returns the transposed matrices.
#define TESSERA_LOAD_MATRIX(name, modifier)                                                   \
  __device__ __forceinline__ void name(std::uint32_t(&fragment)[4], const void* row) {        \
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));           \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" modifier ".shared.b16 {%0,%1,%2,%3}, [%4];"  \
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3]) \
                 : "r"(address)                                                               \
                 : "memory");                                                                 \
  }
TESSERA_LOAD_MATRIX(load_matrix_x4, "")
TESSERA_LOAD_MATRIX(load_matrix_x4_transposed, ".trans")
#undef TESSERA_LOAD_MATRIX

// Asynchronous copy of 16 bytes (both 16-byte aligned) from global to shared memory, or of 16
// zeroes if the source is not `present`; then it is not read. The thread sees the data after
// copy_async_wait; other threads also need a barrier.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global,
                                              bool present = true) {
  // __pipeline_memcpy_async() would compare its count of zeroes with 17 values.
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile(
      "{ .reg .pred absent; setp.eq.u32 absent, %2, 0;"
      " cp.async.cg.shared.global [%0], [%1], 16, absent; }"
      :
      : "r"(address), "l"(global), "r"(static_cast<std::uint32_t>(present))
      : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  __pipeline_commit();
}
// Waits until at most `pending` of the committed groups are unfinished.
template <int pending>
__device__ __forceinline__ void copy_async_wait() {
  __pipeline_wait_prior(pending);
}

}  // namespace tessera::kernels::cuda

#else
#include "emulator/device/gpu.h"
#endif

namespace tessera::kernels::cuda {
inline constexpr int warp_size = 32;
inline constexpr unsigned whole_warp = 0xffffffffu;
}  // namespace tessera::kernels::cuda
