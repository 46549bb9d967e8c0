// Attention of one query per sequence, for text generation: without blocks; keys and values are
// read once, in memory order.
#pragma once

#include "kernels/attention.h"

namespace tessera::kernels::cpu {

// True if attention_forward uses this path: one query, no backward (training has the bits of the
// blocked path), and no mask, documents or dropout.
bool is_single_query(const AttentionForward& arguments);
void attention_single(const AttentionForward& arguments);

}  // namespace tessera::kernels::cpu
