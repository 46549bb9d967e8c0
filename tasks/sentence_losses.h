// Losses of sentence encoders, over the embeddings that a rank computed for its batch. Each has the
// value and the gradients of the loss with the same name in Sentence Transformers.
//
// A loss is the mean over this rank's samples. The gradient of a step is the mean over the ranks,
// which the reductions of a sharded model compute. Embeddings are [batch, dimension] in any
// floating dtype; the arithmetic and the loss are fp32 (fp64 for fp64).
#pragma once

#include <cstdint>

#include "engine/nn/layers.h"
#include "engine/tensor.h"
#include "sharding/context/context.h"

namespace tessera::tasks {

// cos(u_i, v_i) [batch]; a norm below 1e-8 counts as 1e-8.
Tensor cosine_similarity(const Tensor& u, const Tensor& v);

// CosineSimilarityLoss: the mean of (cos(u_i, v_i) - labels_i)^2. labels: [batch] of a floating
// dtype.
Tensor cosine_similarity_loss(const Tensor& u, const Tensor& v, const Tensor& labels);

// The head of softmax_loss for embeddings of `dimension`: torch's nn.Linear(3 * dimension, labels)
// with a bias.
nn::Linear make_softmax_head(std::int64_t dimension, std::int64_t labels);

// The head's outputs for (u, v, |u - v|): [batch, labels].
Tensor softmax_logits(const Tensor& u, const Tensor& v, const nn::Linear& head);

// SoftmaxLoss: cross-entropy of head(u, v, |u - v|). labels: [batch] of int32 or int64, in [0,
// head's outputs). The head is called as a module, so it may be sharded.
Tensor softmax_loss(const Tensor& u, const Tensor& v, const Tensor& labels, const nn::Linear& head);

// MultipleNegativesRankingLoss: cross-entropy of scale * cos(anchor, every positive of every rank)
// against the anchor's own. Collective: all ranks have batches of the same size. With the mean over
// the ranks, W ranks of batch B have the loss and, to rounding, the gradients of one rank with
// batch W * B; Sentence Transformers calls this gather_across_devices.
Tensor multiple_negatives_ranking_loss(const Tensor& anchors, const Tensor& positives,
                                       const Context& context, double scale = 20);

// MSELoss, for distillation: the mean of (u - targets)^2 over all elements. targets: u's shape, a
// teacher's embeddings, which get no gradient.
Tensor mse_loss(const Tensor& u, const Tensor& targets);

// q . p - q . n [batch]: how much more similar a query is to its positive text than to its negative
// one.
Tensor dot_margins(const Tensor& queries, const Tensor& positives, const Tensor& negatives);

// MarginMSELoss, for distillation: the mean of (dot_margins - margins)^2. margins: [batch] of a
// floating dtype, the differences of a teacher's scores, which get no gradient.
Tensor margin_mse_loss(const Tensor& queries, const Tensor& positives, const Tensor& negatives,
                       const Tensor& margins);

}  // namespace tessera::tasks
