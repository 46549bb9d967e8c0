// Attention forward on tensor cores, for float16.
#include "kernels/cuda/attention/attention_forward_tiles.h"

namespace tessera::kernels::cuda {

void attention_forward_float16(const AttentionForward& arguments, Context& context) {
  launch_attention_forward<__half>(arguments, context);
}

}  // namespace tessera::kernels::cuda
