// Attention backward on tensor cores, for float16.
#include "kernels/cuda/attention/attention_key_gradients.h"
#include "kernels/cuda/attention/attention_query_gradients.h"

namespace tessera::kernels::cuda {

void attention_backward_float16(const AttentionBackward& arguments, const float* row_products,
                                Context& context) {
  if (has_variants(arguments.shape)) {
    launch_key_gradients<__half, true>(arguments, row_products, context);
    launch_query_gradients<__half, true>(arguments, row_products, context);
  } else {
    launch_key_gradients<__half, false>(arguments, row_products, context);
    launch_query_gradients<__half, false>(arguments, row_products, context);
  }
}

}  // namespace tessera::kernels::cuda
