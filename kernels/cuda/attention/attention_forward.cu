// Attention forward: the checks, and the choice between the kernels on tensor cores and the general
// ones.
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {

void attention_forward(const AttentionForward& arguments, Queue queue) {
  check_attention(arguments.shape, "attention_forward");
  Context& context = context_of(queue);
  if (!takes_tensor_cores(context, arguments)) {
    attention_forward_general(arguments, context);
  } else if (arguments.shape.dtype == bfloat16) {
    attention_forward_bfloat16(arguments, context);
  } else {
    attention_forward_float16(arguments, context);
  }
}

}  // namespace tessera::kernels::cuda
