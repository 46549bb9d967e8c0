// The decoder of T5: attention to the rows before each row, with a bias by distance, and to the
// encoder's states. A text's rows follow each other; all texts of a batch have equally many.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/t5/t5.h"

namespace tessera::models {

// The encoder's states [batch, length, d_model], and 0 for padding in uint8 [batch, length].
struct T5Source {
  Tensor states, mask;
};

class T5CrossAttentionImpl : public nn::Module {
 public:
  explicit T5CrossAttentionImpl(const T5Config& config);
  // x [rows, d_model].
  Tensor forward(const Tensor& x, const Sequences& sequences, const Tensor& states,
                 const Tensor& mask) const;
  // The same for one row of each text, with a source's keys and values, [batch, length, heads *
  // d_kv], which keys_of() made.
  struct Projected {
    Tensor keys, values;
  };
  [[nodiscard]] Projected keys_of(const Tensor& states) const;
  [[nodiscard]] Tensor decode(const Tensor& x, const Projected& source, const Tensor& mask) const;

 private:
  AttentionOptions options_;
  nn::Linear q_, k_, v_, o_;
};
TESSERA_MODULE(T5CrossAttention);

// The keys and values of a block for a batch of texts that is being written.
struct T5BlockCache {
  T5AttentionImpl::Past own;
  T5CrossAttentionImpl::Projected source;
};
struct T5Writing {
  T5Source source;
  Sequences rows;        // one of each text
  Tensor bias;           // [heads, 1, the most rows], of the keys before the last of them
  std::int64_t written;  // rows
  std::vector<T5BlockCache> blocks;
};

class T5DecoderBlockImpl : public nn::Module {
 public:
  T5DecoderBlockImpl(const T5Config& config, bool is_first);
  Tensor forward(const Tensor& x, const Sequences& sequences, const Tensor& bias,
                 const Tensor& states, const Tensor& mask) const;
  // For the next row of each text, x [batch, d_model].
  Tensor decode(const Tensor& x, const Sequences& sequences, const Tensor& bias,
                const T5Source& source, T5BlockCache& cache) const;
  [[nodiscard]] const Tensor& distance_table() const { return attention_->distance_table(); }
  [[nodiscard]] std::string class_name() const override { return "T5Block"; }

 private:
  double dropout_;
  T5Attention attention_;
  T5CrossAttention cross_attention_;
  T5FeedForward feed_forward_;
  nn::RmsNorm attention_norm_, cross_attention_norm_, feed_forward_norm_;
};
TESSERA_MODULE(T5DecoderBlock);

class T5DecoderImpl : public nn::Module {
 public:
  explicit T5DecoderImpl(const T5GenerationConfig& config);
  Tensor forward(const Tensor& x, const Sequences& sequences, const Tensor& states,
                 const Tensor& mask) const;
  // Texts of at most `max_rows` rows. Without a gradient.
  [[nodiscard]] T5Writing begin(T5Source source, std::int64_t max_rows) const;
  // The next row of each text, x [batch, d_model].
  Tensor decode(const Tensor& x, T5Writing& writing) const;

 private:
  // The rows of the table for the keys `count - 1` .. 0 places before a query: [count, heads].
  [[nodiscard]] Tensor distances_before(std::int64_t count, Device device) const;
  // As sequence_attention() takes it; a row sees none after its own.
  [[nodiscard]] Tensor causal_bias(std::int64_t longest, Device device) const;

  std::int64_t buckets_, furthest_, positions_;
  double dropout_;
  nn::ModuleList<T5DecoderBlock> block_;
  nn::RmsNorm norm_;
};
TESSERA_MODULE(T5Decoder);

}  // namespace tessera::models
