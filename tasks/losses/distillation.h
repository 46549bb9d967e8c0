// The loss of a language model that learns from the logits of another one.
#pragma once

#include "engine/tensor.h"

namespace tessera::tasks {

struct DistillationOptions {
  double temperature = 2;  // T, above 0
  double weight = 0.5;     // of the teacher's part, above 0 and at most 1
};

// weight * T^2 * KL(teacher || student) + (1 - weight) * cross_entropy(logits, targets), each the
// mean over the targets that are not -100, as one element in fp32 (fp64 for fp64 logits). With
// p = softmax(teacher / T) and q = softmax(logits / T) the divergence of a row is the sum of
// p * (log p - log q). The factor T^2 keeps the size of the gradient when T changes. Hinton,
// Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network", arXiv:1503.02531,
// section 2.
//
// logits and teacher [..., vocabulary] have one shape, and any floating dtypes; targets [...] are
// ids. The teacher's logits get no gradient. Without a target that counts, loss and gradient are 0.
// For the backward it keeps the logits of both, and it computes in chunks of rows, of about a
// million elements.
Tensor distillation_loss(const Tensor& logits, const Tensor& teacher, const Tensor& targets,
                         const DistillationOptions& options = {});

}  // namespace tessera::tasks
