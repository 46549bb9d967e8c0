// Attention forward with our own kernels: on tensor cores, or the general ones.
#include "kernels/cuda/attention/attention_plan.h"

namespace tessera::kernels::cuda {

void attention_forward_own(const AttentionForward& arguments, Context& context) {
  if (!takes_tensor_cores(context, arguments)) {
    attention_forward_general(arguments, context);
  } else if (arguments.shape.dtype == bfloat16) {
    attention_forward_bfloat16(arguments, context);
  } else {
    attention_forward_float16(arguments, context);
  }
}

}  // namespace tessera::kernels::cuda
