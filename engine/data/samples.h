// Training sequences by global number. A sequence depends only on its number. Data order is
// therefore the same for every world size, and a run resumes in the middle of an epoch from the
// number alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/data/corpus.h"

namespace tessera {

// `count` sequences of `seq_len` tokens, row by row. targets[i] is the token that follows
// inputs[i].
struct Batch {
  std::int64_t count = 0;
  std::int64_t seq_len = 0;
  std::int64_t first_sample = 0;  // global number of row 0
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
};

struct SampleOptions {
  std::int64_t seq_len = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;
};

// The corpus split into windows whose inputs do not overlap. An epoch takes every window once, in
// the file's order or shuffled. Each shuffled epoch has another order and another starting token;
// the start moves within the rest of the file that does not fill a window.
class Samples {
 public:
  // Throws Error(data) with the sizes if the corpus is shorter than one sequence and its last
  // target.
  Samples(std::shared_ptr<const Corpus> corpus, const SampleOptions& options);

  [[nodiscard]] std::int64_t samples_per_epoch() const { return windows_; }
  [[nodiscard]] const Corpus& corpus() const { return *corpus_; }

  // The first input token of a sample in the corpus.
  [[nodiscard]] std::int64_t position(std::int64_t sample) const;
  // Samples first_sample ... first_sample + count - 1, across epochs if necessary.
  [[nodiscard]] Batch batch(std::int64_t first_sample, std::int64_t count) const;
  // Fills a batch and reuses its memory.
  void fill(std::int64_t first_sample, std::int64_t count, Batch& batch) const;
  // Fills a batch with samples of any numbers, in this order.
  void fill(std::span<const std::int64_t> samples, Batch& batch) const;

 private:
  std::shared_ptr<const Corpus> corpus_;
  SampleOptions options_;
  std::int64_t windows_ = 0;
};

// The number of the first sample of a rank's micro-batch. In each micro-batch, W ranks of batch B
// see the samples that one rank of batch W x B sees. Micro-batches are numbered from 0 over the
// whole run.
constexpr std::int64_t first_sample_of(std::int64_t micro_batch, std::int64_t world_size,
                                       std::int64_t rank, std::int64_t batch_size) {
  return (micro_batch * world_size + rank) * batch_size;
}

}  // namespace tessera
