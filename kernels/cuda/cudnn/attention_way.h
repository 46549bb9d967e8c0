// The choice of the implementation of attention on a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/attention.h"
#include "kernels/cuda/cudnn/cudnn_library.h"
#include "kernels/cuda/device/context.h"

namespace tessera::kernels::cuda {

enum class AttentionWay : std::uint8_t {
  automatic,  // cuDNN if it can be loaded, else the engine's own kernels
  own,
  cudnn,  // cuDNN; an error if it cannot be loaded, or has no plan for a call that it covers
};

// Parses "auto" (also null and ""), "own" or "cudnn"; anything else is an Error(configuration).
AttentionWay attention_way_of(const char* text);

// The process's choice: TESSERA_CUDA_ATTENTION in the environment at the first call.
AttentionWay attention_way();

// The implementation in use: "cuDNN 9.19.0 (its file)", or "our own kernels" with the reason.
std::string describe_attention(AttentionWay way, const CudnnLibrary& library);

// Loads the library of the process's choice, if it has one (see load_products).
void load_attention();

// Compute cuda::attention_forward and cuda::attention_backward in the given way. Calls that cuDNN
// does not cover (cudnn_attention.h) use the own kernels in every way; the context counts both.
// Error(configuration) for AttentionWay::cudnn without a library.
void attention_forward_by(AttentionWay way, const AttentionForward& arguments, Context& context,
                          const CudnnLibrary& library);
void attention_backward_by(AttentionWay way, const AttentionBackward& arguments, Context& context,
                           const CudnnLibrary& library);

}  // namespace tessera::kernels::cuda
