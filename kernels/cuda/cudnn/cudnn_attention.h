// Attention with cuDNN.
#pragma once

#include <cstddef>

#include "kernels/attention.h"
#include "kernels/cuda/cudnn/cudnn_library.h"
#include "kernels/cuda/device/context.h"

namespace tessera::kernels::cuda {

// The most memory for the scores' gradients of a backward (see attention_backward_cudnn).
inline constexpr std::size_t most_score_bytes = std::size_t{256} << 20;

// These start attention on the context's stream and return true. They return false, without
// starting anything, if cuDNN does not cover the call:
//   * another type than bfloat16 and float16, or a device older than compute capability 8.0;
//   * dropout, a key mask, a window, documents, a soft cap or a scale that is not positive;
//   * a causal mask with different numbers of queries and keys, or less than two of either;
//   * a backward with a gradient of log_sum_exp;
//   * heads of more than 128 elements, or rows that do not begin on 16 bytes;
//   * a graph for which cuDNN has no plan. The thread remembers that; with `required`, it is an
//     Error(runtime) with cuDNN's text instead.
// The arguments are checked. `library` has functions. The context's device is the thread's current
// one. A failure of cuDNN outside the making of a plan is an Error(runtime).
bool attention_forward_cudnn(const AttentionForward& arguments, Context& context,
                             const CudnnLibrary& library, bool required);

// Gives the same bits each time. For that, cuDNN stores the gradients of the scores (16 bits each)
// and multiplies them in a kernel of its own, instead of adding to the queries' gradients in any
// order. The samples, and if necessary the heads of a sample, are computed in parts for which
// `score_bytes` are enough. Devices of compute capability 10.0 and more have no such kernels, so
// they are not covered.
bool attention_backward_cudnn(const AttentionBackward& arguments, Context& context,
                              const CudnnLibrary& library, bool required,
                              std::size_t score_bytes = most_score_bytes);

}  // namespace tessera::kernels::cuda
