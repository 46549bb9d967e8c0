// Losses of sentence encoders, over the embeddings that a rank computed for its batch. Each is the
// loss of Sentence Transformers that has its name: the same value and the same gradients.
//
// A loss is the mean over this rank's samples; the gradient of a step is the mean over the ranks,
// which a sharded model's reductions take by themselves. Embeddings are [batch, dimension] in any
// floating dtype; the arithmetic and the loss are fp32 (fp64 for fp64).
#pragma once

#include <cstdint>

#include "engine/nn/layers.h"
#include "engine/tensor.h"
#include "sharding/context/context.h"

namespace tessera::tasks {

// cos(u_i, v_i) [batch]; a norm below 1e-8 counts as that.
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
// head's outputs). The head is called as the module that it is, so it may be sharded.
Tensor softmax_loss(const Tensor& u, const Tensor& v, const Tensor& labels, const nn::Linear& head);

// MultipleNegativesRankingLoss: cross-entropy of scale * cos(anchor, every positive of every rank)
// against the anchor's own. Collective: all ranks have batches of one size. With the mean over the
// ranks, W ranks of batch B have the loss and, to rounding, the gradients of one rank with batch
// W * B; gather_across_devices is what Sentence Transformers calls it.
Tensor multiple_negatives_ranking_loss(const Tensor& anchors, const Tensor& positives,
                                       const Context& context, double scale = 20);

// MSELoss, for distillation: the mean of (u - targets)^2 over all elements. targets: u's shape, a
// teacher's embeddings, which get no gradient.
Tensor mse_loss(const Tensor& u, const Tensor& targets);

}  // namespace tessera::tasks
