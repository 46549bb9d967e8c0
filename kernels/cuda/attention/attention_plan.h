// The host's part of attention on a GPU: the choice of kernels for a call, and the memory that it
// uses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/device/context.h"

namespace tessera::kernels::cuda {

// Dropout of probabilities, prepared for the device. A probability is dropped if its draw is below
// the threshold; no draws are made if the threshold is 0.
struct AttentionDropout {
  std::uint32_t threshold;
  double kept_scale;  // 1 / (1 - dropout)
};
AttentionDropout dropout_of(const AttentionShape& shape);

// Throws a std::logic_error if attention is not defined for the shape.
void check_attention(const AttentionShape& shape, const char* kernel);

// True if the tensor-core kernels support the call: bfloat16 or float16 on a device of compute
// capability 8.0 or more, heads of at most 128 elements, rows that can be read 16 bytes at a time,
// and no bias. The general kernels take all others.
bool takes_tensor_cores(const Context& context, const AttentionForward& arguments);
bool takes_tensor_cores(const Context& context, const AttentionBackward& arguments);

// The bytes of q, k, v and out, and of their gradients, from the first element used to the last.
std::size_t query_bytes(const AttentionShape& shape);
std::size_t key_bytes(const AttentionShape& shape);
std::size_t value_bytes(const AttentionShape& shape);
std::size_t output_bytes(const AttentionShape& shape);
std::size_t mask_bytes(const AttentionShape& shape);
std::size_t document_bytes(const AttentionShape& shape);
std::size_t bias_bytes(const AttentionShape& shape);
// The bytes of log_sum_exp, and of the backward's row products.
std::size_t statistic_bytes(const AttentionShape& shape);

// The number of blocks of a grid in which each (sample, head) has one block for each of its tiles
// of `rows` rows. Throws a std::logic_error if that exceeds the limit of a grid.
unsigned attention_blocks(const AttentionShape& shape, std::int64_t heads, std::int64_t length,
                          std::int64_t rows, std::int64_t blocks_of_a_tile = 1);

// Our own kernels. The arguments are checked.
void attention_forward_own(const AttentionForward& arguments, Context& context);
void attention_backward_own(const AttentionBackward& arguments, Context& context);

// Kernels by path. All take checked arguments; row_products is [batch, heads, query_length], the
// products of the output's rows with their gradients.
void attention_forward_bfloat16(const AttentionForward& arguments, Context& context);
void attention_forward_float16(const AttentionForward& arguments, Context& context);
void attention_forward_general(const AttentionForward& arguments, Context& context);
void attention_backward_bfloat16(const AttentionBackward& arguments, const float* row_products,
                                 Context& context);
void attention_backward_float16(const AttentionBackward& arguments, const float* row_products,
                                Context& context);
void attention_backward_general(const AttentionBackward& arguments, const void* row_products,
                                Context& context);
// The gradient of the bias, whichever kernels compute the others.
void attention_bias_gradient(const AttentionBackward& arguments, const void* row_products,
                             Context& context);

}  // namespace tessera::kernels::cuda
