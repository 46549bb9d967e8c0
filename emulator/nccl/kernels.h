// The work of emulated collectives on a stream.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <vector>

namespace tessera::emulator {

// receive[r * bytes ...] = sources[r] for every rank r; this rank's own shard may already be in
// place.
void enqueue_gather(cudaStream_t stream, const std::vector<const void*>& sources, int rank,
                    void* receive, std::size_t bytes);
// receive[i] = the sum over the ranks, in their order, of sources[r][first + i], rounded at each
// step.
void enqueue_sum(cudaStream_t stream, const std::vector<const void*>& sources, std::size_t first,
                 void* receive, std::size_t count, ncclDataType_t type);

std::size_t size_of(ncclDataType_t type);

}  // namespace tessera::emulator
