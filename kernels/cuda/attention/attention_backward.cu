// Attention backward with our own kernels: first the products of the output's rows with their
// gradients, which every later kernel reads, and then the kernels on tensor cores or the general
// ones. Keys' and queries' gradients have a kernel each, and both recompute the probabilities.
// Every sum therefore has one owner and one order, without atomic additions.
#include "kernels/cuda/attention/attention_tiles.h"
#include "kernels/cuda/device/block_reduce.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int row_product_threads = 128;

// One warp per row of a head. The gradient of a row's log-sum-exp, if there is one, adds to that of
// each score as the negative of the product does.
template <class T>
__global__ void __launch_bounds__(row_product_threads)
    row_product_kernel(AttentionShape shape, const T* out, const T* dout,
                       const Compute<T>* log_sum_exp, const Compute<T>* dlog_sum_exp,
                       Compute<T>* row_products) {
  constexpr int warps = row_product_threads / warp_size;
  const std::int64_t rows = shape.batch * shape.query_length * shape.heads;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * warps;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  // Neighbouring warps have neighbouring heads of a query, which are adjacent in memory.
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp_size;
       row < rows; row += step) {
    const std::int64_t position = row / shape.heads;
    const std::int64_t head = row % shape.heads;
    const std::int64_t width = value_dim_of(shape);
    const std::int64_t offset = position * shape.out_stride + head * width;
    Compute<T> sum = 0;
    for (std::int64_t i = lane; i < width; i += warp_size) {
      sum += to_compute(out[offset + i]) * to_compute(dout[offset + i]);
    }
    sum = warp_reduce<Add>(sum);
    if (lane == 0) {
      const std::int64_t batch = position / shape.query_length;
      const std::int64_t query = position % shape.query_length;
      const std::int64_t index = (batch * shape.heads + head) * shape.query_length + query;
      // A row without visible keys has no scores, and may have any gradient.
      const bool further =
          dlog_sum_exp != nullptr && log_sum_exp[index] != -static_cast<Compute<T>>(INFINITY);
      row_products[index] = further ? sum - dlog_sum_exp[index] : sum;
    }
  }
}

template <class T>
Compute<T>* make_row_products(const AttentionBackward& a, Context& context) {
  const AttentionShape& s = a.shape;
  auto* const row_products = static_cast<Compute<T>*>(context.scratch(statistic_bytes(s)));
  constexpr int warps = row_product_threads / warp_size;
  launch(context,
         {"attention_row_products",
          {s.batch, s.heads, s.query_length, value_dim_of(s)},
          {reads(a.out, output_bytes(s)), reads(a.dout, output_bytes(s)),
           reads(a.log_sum_exp, a.dlog_sum_exp == nullptr ? 0 : statistic_bytes(s)),
           reads(a.dlog_sum_exp, a.dlog_sum_exp == nullptr ? 0 : statistic_bytes(s)),
           writes(row_products, statistic_bytes(s))}},
         {blocks_for(s.batch * s.heads * s.query_length, warps), row_product_threads},
         row_product_kernel<T>, s, static_cast<const T*>(a.out), static_cast<const T*>(a.dout),
         static_cast<const Compute<T>*>(a.log_sum_exp),
         static_cast<const Compute<T>*>(a.dlog_sum_exp), row_products);
  return row_products;
}

}  // namespace

void attention_backward_own(const AttentionBackward& arguments, Context& context) {
  for_floating(arguments.shape.dtype, "attention_backward", [&]<class T>(TypeTag<T>) {
    const Compute<T>* const row_products = make_row_products<T>(arguments, context);
    if (!takes_tensor_cores(context, arguments)) {
      attention_backward_general(arguments, row_products, context);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      attention_backward_bfloat16(arguments, row_products, context);
    } else if constexpr (std::is_same_v<T, __half>) {
      attention_backward_float16(arguments, row_products, context);
    }
    if (arguments.bias_gradient != nullptr) {
      attention_bias_gradient(arguments, row_products, context);
    }
  });
}

}  // namespace tessera::kernels::cuda
