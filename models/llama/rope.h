// Rotary position tables of Llama: frequencies, their scaling, and the cosines and sines of
// positions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/tensor.h"
#include "models/language_model.h"
#include "models/llama/rope_scaling.h"

namespace tessera::models {

// fp32 tables of [positions, rotated elements of a head / 2].
struct RopeTables {
  Tensor cosine;
  Tensor sine;
  // For rows of several texts: AttentionOptions::document_starts. The tables then have a row for
  // each token of the batch, in its order.
  Tensor document_starts = {};
  // Documents::ranks, and the position of the batch's first column in the tables.
  std::shared_ptr<const ContextParallel> ranks = {};
  std::int64_t first = 0;
};

// The angle of pair i between one position and the next; `dim` elements of a head are rotated.
std::vector<float> rope_frequencies(std::int64_t dim, double theta, const RopeScaling& scaling);

// The factor of cosines and sines: 1, or the attention factor of YaRN (Peng et al. 2023,
// "YaRN: Efficient Context Window Extension of Large Language Models").
double rope_attention_factor(const RopeScaling& scaling);

// Rounds where transformers rounds (frequencies and angles to fp32), so that far positions agree as
// well.
RopeTables make_rope_tables(const std::vector<float>& frequencies, std::int64_t positions,
                            Device device = Device::cpu(), double attention_factor = 1.0);

// The tables of a model, made for the longest sequence so far.
class RopeCache {
 public:
  // For at most `positions` positions; `dim` elements of a head are rotated.
  RopeCache(std::int64_t dim, std::int64_t positions, double theta, const RopeScaling& scaling);

  // Valid until the next call. Tables grow by doubling, so a context of 131,072 positions costs
  // nothing until it is used.
  const RopeTables& for_length(std::int64_t length, Device device);
  // A table's row for each of these positions, int32 [rows], all below `length`.
  RopeTables for_positions(const Tensor& positions, std::int64_t length);
  // For rows of several texts: a table's row for each of the ids. Else as for_length() of whole
  // rows.
  RopeTables for_rows(const Tensor& ids, const Documents& documents, Device device);

 private:
  std::int64_t positions_;
  std::vector<float> frequencies_;
  double attention_factor_;
  RopeTables tables_;
};

}  // namespace tessera::models
