// Attention backward on tensor cores, for bfloat16.
#include "kernels/cuda/attention/attention_key_gradients.h"
#include "kernels/cuda/attention/attention_query_gradients.h"

namespace tessera::kernels::cuda {

void attention_backward_bfloat16(const AttentionBackward& arguments, const float* row_products,
                                 Context& context) {
  if (has_variants(arguments.shape)) {
    launch_key_gradients<__nv_bfloat16, true>(arguments, row_products, context);
    launch_query_gradients<__nv_bfloat16, true>(arguments, row_products, context);
  } else {
    launch_key_gradients<__nv_bfloat16, false>(arguments, row_products, context);
    launch_query_gradients<__nv_bfloat16, false>(arguments, row_products, context);
  }
}

}  // namespace tessera::kernels::cuda
