// Checks of attention's arguments and the choice of its kernels.
#include "kernels/cuda/attention/attention_plan.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "base/error.h"

namespace tessera::kernels::cuda {
namespace {

constexpr std::int64_t largest_head_on_tensor_cores = 128;
constexpr std::int64_t elements_of_16_bytes = 8;

// True if rows of heads begin at multiples of 16 bytes in all tensors.
bool rows_of_16_bytes(const AttentionShape& s, std::initializer_list<const void*> tensors) {
  for (const std::int64_t size :
       {s.head_dim, value_dim_of(s), s.q_stride, s.k_stride, s.v_stride, s.out_stride}) {
    if (size % elements_of_16_bytes != 0) return false;
  }
  for (const void* tensor : tensors) {
    if (reinterpret_cast<std::uintptr_t>(tensor) % 16 != 0) return false;
  }
  return true;
}

bool shape_fits_tensor_cores(const Context& context, const AttentionShape& s) {
  // The kernels need at most the 99 KiB of shared memory that every such device has. They take the
  // maximum of the scores before scaling, hence a positive scale.
  return (s.dtype == bfloat16 || s.dtype == float16) && context.compute_capability >= 80 &&
         std::max(s.head_dim, value_dim_of(s)) <= largest_head_on_tensor_cores && s.scale > 0.0f &&
         s.bias == nullptr;
}

std::size_t row_bytes(const AttentionShape& s, std::int64_t rows, std::int64_t stride,
                      std::int64_t row) {
  if (rows == 0) return 0;
  return static_cast<std::size_t>((rows - 1) * stride + row) * size_of(s.dtype);
}

}  // namespace

AttentionDropout dropout_of(const AttentionShape& shape) {
  return {.threshold = static_cast<std::uint32_t>(shape.dropout * 0x1p32),
          .kept_scale = 1.0 / (1.0 - static_cast<double>(shape.dropout))};
}

void check_attention(const AttentionShape& s, const char* kernel) {
  const auto needs = [&](bool condition, const char* what) {
    TESSERA_REQUIRE(
        condition,
        "{}: {} (batch {}, heads {}, key heads {}, head dim {}, value dim {}, lengths {} and {}, "
        "row strides {}, {}, {}, {}, dropout {}, {})",
        kernel, what, s.batch, s.heads, s.key_heads, s.head_dim, value_dim_of(s), s.query_length,
        s.key_length, s.q_stride, s.k_stride, s.v_stride, s.out_stride, s.dropout,
        name_of(s.dtype));
  };
  // Kernels count queries, keys and heads in 32 bits, and add two lengths.
  constexpr std::int64_t most = 1 << 29;
  needs(is_floating(s.dtype), "the tensors must be of a floating-point type");
  needs(s.batch >= 0 && s.query_length >= 0 && s.key_length >= 0, "a size is negative");
  needs(s.heads > 0 && s.key_heads > 0 && s.head_dim > 0 && s.value_dim >= 0,
        "a size is not positive");
  needs(s.batch <= most && s.query_length <= most && s.key_length <= most && s.heads <= most &&
            s.head_dim <= most && s.value_dim <= most,
        "a size is above 2^29");
  needs(s.heads % s.key_heads == 0, "heads must be a multiple of key heads");
  const std::int64_t value_dim = value_dim_of(s);
  needs(s.q_stride >= s.heads * s.head_dim && s.k_stride >= s.key_heads * s.head_dim &&
            s.v_stride >= s.key_heads * value_dim && s.out_stride >= s.heads * value_dim,
        "a row stride is less than a row");
  needs(s.dropout >= 0.0f && s.dropout < 1.0f, "dropout must lie in [0, 1)");
  needs(s.window >= 0 && s.window <= most && (s.window == 0 || s.causal),
        "a window must be positive and causal");
  needs(s.soft_cap >= 0.0f, "the soft cap must be positive");
  needs(s.document_starts == nullptr || s.causal, "documents must be causal");
}

bool takes_tensor_cores(const Context& context, const AttentionForward& a) {
  return shape_fits_tensor_cores(context, a.shape) &&
         rows_of_16_bytes(a.shape, {a.q, a.k, a.v, a.out});
}

bool takes_tensor_cores(const Context& context, const AttentionBackward& a) {
  return shape_fits_tensor_cores(context, a.shape) &&
         rows_of_16_bytes(a.shape, {a.q, a.k, a.v, a.dout, a.dq, a.dk, a.dv});
}

std::size_t query_bytes(const AttentionShape& s) {
  return row_bytes(s, s.batch * s.query_length, s.q_stride, s.heads * s.head_dim);
}

std::size_t key_bytes(const AttentionShape& s) {
  return row_bytes(s, s.batch * s.key_length, s.k_stride, s.key_heads * s.head_dim);
}

std::size_t value_bytes(const AttentionShape& s) {
  return row_bytes(s, s.batch * s.key_length, s.v_stride, s.key_heads * value_dim_of(s));
}

std::size_t output_bytes(const AttentionShape& s) {
  return row_bytes(s, s.batch * s.query_length, s.out_stride, s.heads * value_dim_of(s));
}

std::size_t bias_bytes(const AttentionShape& s) {
  if (s.bias == nullptr) return 0;
  return static_cast<std::size_t>(bias_samples(s) * bias_heads(s) * s.query_length * s.key_length) *
         (s.dtype == float64 ? sizeof(double) : sizeof(float));
}

std::size_t mask_bytes(const AttentionShape& s) {
  return static_cast<std::size_t>(s.batch * s.key_length);
}

std::size_t document_bytes(const AttentionShape& s) {
  return static_cast<std::size_t>(s.batch * s.key_length) * sizeof(std::int32_t);
}

std::size_t statistic_bytes(const AttentionShape& s) {
  return static_cast<std::size_t>(s.batch * s.heads * s.query_length) *
         (s.dtype == float64 ? sizeof(double) : sizeof(float));
}

unsigned attention_blocks(const AttentionShape& s, std::int64_t heads, std::int64_t length,
                          std::int64_t rows, std::int64_t blocks_of_a_tile) {
  const std::int64_t tiles = (length + rows - 1) / rows;
  const std::int64_t blocks = s.batch * heads * tiles * blocks_of_a_tile;
  TESSERA_REQUIRE(blocks <= std::numeric_limits<std::int32_t>::max(),
                  "attention: batch {}, heads {} and length {} make {} blocks, more than a grid "
                  "has; split the batch",
                  s.batch, heads, length, blocks);
  return static_cast<unsigned>(blocks);
}

}  // namespace tessera::kernels::cuda
