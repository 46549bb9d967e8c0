// The host's part of attention on a GPU: which kernels a call takes, and the memory it touches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/device/context.h"

namespace tessera::kernels::cuda {

// Dropout of probabilities, ready for the device. A probability whose draw lies below the
// threshold is dropped; no draws are made when it is 0.
struct AttentionDropout {
  std::uint32_t threshold;
  double kept_scale;  // 1 / (1 - dropout)
};
AttentionDropout dropout_of(const AttentionShape& shape);

// std::logic_error unless the shape is one that attention is defined for.
void check_attention(const AttentionShape& shape, const char* kernel);

// Whether the tensor-core kernels can take the call: bfloat16 or float16 on a device of compute
// capability 8.0 or more, heads of at most 128 elements, and rows that can be read 16 bytes at a
// time. Others go to the general kernels.
bool takes_tensor_cores(const Context& context, const AttentionForward& arguments);
bool takes_tensor_cores(const Context& context, const AttentionBackward& arguments);

// The memory of `batch * length` rows, from the first element used to the last.
std::size_t query_bytes(const AttentionShape& shape, std::int64_t stride);
std::size_t key_bytes(const AttentionShape& shape, std::int64_t stride);
std::size_t mask_bytes(const AttentionShape& shape);
// Of log_sum_exp, and of the backward's row products.
std::size_t statistic_bytes(const AttentionShape& shape);

// Blocks of a grid in which each (sample, head) has one block for each of its tiles of `rows` rows.
// std::logic_error when a grid cannot have that many.
unsigned attention_blocks(const AttentionShape& shape, std::int64_t heads, std::int64_t length,
                          std::int64_t rows, std::int64_t blocks_of_a_tile = 1);

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

}  // namespace tessera::kernels::cuda
