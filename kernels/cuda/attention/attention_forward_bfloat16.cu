// Attention forward on tensor cores, for bfloat16.
#include "kernels/cuda/attention/attention_forward_tiles.h"

namespace tessera::kernels::cuda {

void attention_forward_bfloat16(const AttentionForward& arguments, Context& context) {
  launch_attention_forward<__nv_bfloat16>(arguments, context);
}

}  // namespace tessera::kernels::cuda
