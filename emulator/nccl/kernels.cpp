// Copies, and sums as kernels of one thread.
#include "emulator/nccl/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "emulator/runtime/launch.h"

namespace tessera::emulator {
namespace {

constexpr std::size_t most_ranks = 16;
struct Sources {
  std::array<const void*, most_ranks> of_rank{};
  std::size_t ranks = 0;
};

float widened(float value) {
  return value;
}
double widened(double value) {
  return value;
}
float widened(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
float widened(__half value) {
  return __half2float(value);
}

template <class T, class Wide>
T rounded(Wide value) {
  if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
void sum_kernel(Sources sources, std::size_t first, T* receive, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T total = static_cast<const T*>(sources.of_rank[0])[first + i];
    for (std::size_t r = 1; r < sources.ranks; ++r) {
      const T next = static_cast<const T*>(sources.of_rank[r])[first + i];
      total = rounded<T>(widened(total) + widened(next));
    }
    receive[i] = total;
  }
}

template <class T>
void launch_sum(cudaStream_t stream, const Sources& sources, std::size_t first, void* receive,
                std::size_t count) {
  LaunchRecord record{"nccl sum", dim3(1), dim3(1), 0};
  for (std::size_t r = 0; r < sources.ranks; ++r) {
    record.add_access(static_cast<const T*>(sources.of_rank[r]) + first, count * sizeof(T), false);
  }
  record.add_access(receive, count * sizeof(T), true);
  (void)launch(stream, std::move(record), &sum_kernel<T>, sources, first, static_cast<T*>(receive),
               count);
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
    case ncclInt32:
    case ncclUint32:
      return 4;
    case ncclFloat64:
    case ncclInt64:
    case ncclUint64:
      return 8;
    default:
      return 0;
  }
}

void enqueue_gather(cudaStream_t stream, const std::vector<const void*>& sources, int rank,
                    void* receive, std::size_t bytes) {
  for (std::size_t r = 0; r < sources.size(); ++r) {
    std::byte* to = static_cast<std::byte*>(receive) + r * bytes;
    const bool in_place = static_cast<int>(r) == rank && to == sources[r];
    if (in_place || bytes == 0) continue;
    (void)cudaMemcpyAsync(to, sources[r], bytes, cudaMemcpyDeviceToDevice, stream);
  }
}

void enqueue_sum(cudaStream_t stream, const std::vector<const void*>& sources, std::size_t first,
                 void* receive, std::size_t count, ncclDataType_t type) {
  if (count == 0) return;
  if (sources.size() > most_ranks) {
    std::fprintf(stderr, "the emulated NCCL sums over at most %zu ranks\n", most_ranks);
    std::abort();
  }
  Sources all;
  all.ranks = sources.size();
  std::copy(sources.begin(), sources.end(), all.of_rank.begin());
  switch (type) {
    case ncclFloat32:
      return launch_sum<float>(stream, all, first, receive, count);
    case ncclFloat64:
      return launch_sum<double>(stream, all, first, receive, count);
    case ncclBfloat16:
      return launch_sum<__nv_bfloat16>(stream, all, first, receive, count);
    case ncclFloat16:
      return launch_sum<__half>(stream, all, first, receive, count);
    default:
      std::fprintf(stderr, "the emulated NCCL does not sum type %d\n", static_cast<int>(type));
      std::abort();
  }
}

}  // namespace tessera::emulator
