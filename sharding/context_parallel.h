// Context parallelism: several ranks hold each sequence together, each a part of its positions.
//
//   const ContextParallel sequence(context, 4);       // ranks 0 to 3, 4 to 7, ..
//   ids = sequence.part_of(ids);                      // [batch, T] -> [batch, T / 4]
//   x = sequence.attention(q, k, v, options);         // the only op that sees other positions
//
// All other layers compute on a rank's own positions. Activations, and with them the longest
// sequence that fits, are divided by the number of ranks. Every strategy of fully_shard() shards
// over all ranks as without it: with the mean loss of the part on each rank, the average of the
// ranks' gradients is that of the whole batch.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/ops.h"
#include "sharding/context/context.h"
#include "sharding/runtime/statistics.h"

namespace tessera {

class StepRecorder;

class ContextParallel {
 public:
  // Collective. `ranks` consecutive ranks of the context hold a sequence together; `ranks` divides
  // the world.
  ContextParallel(const Context& context, int ranks);
  ~ContextParallel();
  ContextParallel(const ContextParallel&) = delete;
  ContextParallel& operator=(const ContextParallel&) = delete;

  [[nodiscard]] int ranks() const;
  // The ranks of a block read the same samples: the number of this rank's block, and of all.
  [[nodiscard]] int block() const { return block_; }
  [[nodiscard]] int blocks() const { return blocks_; }
  // This rank's part of a sequence: parts are equally long, in the order of the ranks.
  [[nodiscard]] int part() const;
  // The position of the first of the rank's `length` positions.
  [[nodiscard]] std::int64_t first_position(std::int64_t length) const { return part() * length; }
  // This rank's part of whole sequences [batch, T, ...]; T is a multiple of ranks(). It has no
  // gradient: for ids, targets and masks.
  [[nodiscard]] Tensor part_of(const Tensor& sequences) const;

  // attention() of whole sequences. q, k, v and the result have this rank's T / ranks() positions,
  // the options those of one rank: all heads, and document_starts [batch, T] for whole sequences.
  // Collective, and so is its backward.
  //
  // If ranks() divides the heads, an all-to-all gives each rank the whole sequence of heads /
  // ranks() heads, and another one gives the result back (DeepSpeed-Ulysses, Jacobs et al. 2023).
  // Key heads that ranks() does not divide are repeated first. A rank receives (ranks() - 1) /
  // ranks() of the bytes of q, k, v and the result, and as much again in the backward; no memory
  // grows with the whole sequence's length times all heads.
  //
  // Otherwise the keys and values of all positions are gathered, and their gradients are summed in
  // the order of the ranks. Then there are no document_starts, causal queries are not more than the
  // keys, and with causal attention the last ranks compute most and hold most; a plan is that of
  // the last one.
  //
  // Tensors that are moved in are freed as soon as they have been sent. Throws std::logic_error for
  // a key mask or a bias, and Error(rank_failed) if the ranks of a block pass other shapes, dtypes
  // or options. With dropout, each rank draws for its own
  // heads: valid masks, but others than those of one rank.
  [[nodiscard]] Tensor attention(Tensor q, Tensor k, Tensor v,
                                 const AttentionOptions& options) const;
  // packed_attention() in the same way: q, k and v go in one exchange if the ranks divide heads and
  // key heads.
  [[nodiscard]] Tensor packed_attention(Tensor qkv, const AttentionOptions& options) const;

  // From now on the recorder has its calls, as exposed communication; null: none.
  void record(std::shared_ptr<StepRecorder> recorder) const;
  // The communication of all calls of attention() so far.
  [[nodiscard]] CommunicationStatistics communication() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  int block_ = 0, blocks_ = 1;
};

}  // namespace tessera
