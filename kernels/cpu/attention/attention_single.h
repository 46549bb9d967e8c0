// Attention of a single query a sequence, as text is generated: nothing is blocked, and the keys
// and values pass by once in the order in which they lie.
#pragma once

#include "kernels/attention.h"

namespace tessera::kernels::cpu {

// Whether attention_forward takes this way: one query, whose log-sum-exp nobody wants (training
// always does, so that its bits are the blocked way's), and neither mask nor dropout.
bool is_single_query(const AttentionForward& arguments);
void attention_single(const AttentionForward& arguments);

}  // namespace tessera::kernels::cpu
