// T5's two stacks, its loss, and its texts.
#include "models/t5/t5_generation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/tensor_ops.h"
#include "models/language_model.h"

namespace tessera::models {
namespace {

// Names of the token table that some files have for each stack.
constexpr const char* copies[] = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"};

void check_text(const char* what, const Tensor& ids, std::int64_t batch, std::int64_t positions) {
  TESSERA_REQUIRE(ids.dimensions() == 2 && ids.size(0) == batch && ids.size(1) >= 1 &&
                      ids.size(1) <= positions && (ids.dtype() == int32 || ids.dtype() == int64),
                  "T5 takes {} of int32 or int64 [{}, 1 to {}], as many texts as the source has; "
                  "given {} {}",
                  what, batch, positions, name_of(ids.dtype()), ids.shape().to_string());
}

std::vector<std::int64_t> values_of(const Tensor& ids) {
  std::vector<std::int64_t> values;
  for (const double value : ids.to(Device::cpu()).to_vector()) {
    values.push_back(static_cast<std::int64_t>(value));
  }
  return values;
}

}  // namespace

T5ForConditionalGeneration::T5ForConditionalGeneration(T5GenerationConfig config)
    : config_(std::move(config)) {
  shared_ = register_module(
      "shared", nn::Embedding(config_.vocab_size, config_.d_model, config_.initializer_factor));
  encoder_ = register_module("encoder", T5Stack(config_));
  decoder_ = register_module("decoder", T5Decoder(config_));
  if (config_.tied) {
    reads_parameter(shared_->stored_weight());
  } else {
    lm_head_ = register_module(
        "lm_head",
        nn::Linear(config_.d_model, config_.vocab_size,
                   nn::LinearOptions{.bias = false, .deviation = config_.initializer_factor}));
  }
}

T5Source T5ForConditionalGeneration::encode(const TokenBatch& source) {
  const PaddedRows rows = rows_and_places(source, positions());
  const Tensor states = encoder_(shared_(rows.tokens.ids), rows.tokens.sequences);
  return {embedding(rows.row_of_place, states), rows.mask};
}

Tensor T5ForConditionalGeneration::for_head(const Tensor& states) const {
  return config_.tied ? states * (1 / std::sqrt(static_cast<double>(config_.d_model))) : states;
}

Tensor T5ForConditionalGeneration::head(const Tensor& states) const {
  const Tensor x = for_head(states);
  return lm_head_ ? lm_head_(x) : linear(x, shared_->weight());
}

Tensor T5ForConditionalGeneration::states(const TokenBatch& source, const Tensor& decoder_ids) {
  check_text("the decoder's tokens", decoder_ids, source.ids.size(0), positions());
  const T5Source encoded = encode(source);
  const std::int64_t batch = decoder_ids.size(0), length = decoder_ids.size(1);
  const Tensor x = reshape(shared_(decoder_ids), {batch * length, config_.d_model});
  const Sequences sequences = equal_sequences(batch, length, positions(), x.device());
  return reshape(decoder_(x, sequences, encoded.states, encoded.mask),
                 {batch, length, config_.d_model});
}

Tensor T5ForConditionalGeneration::forward(const TokenBatch& source, const Tensor& decoder_ids) {
  return head(states(source, decoder_ids));
}

Tensor T5ForConditionalGeneration::shifted(const Tensor& labels) const {
  const Device device = labels.device();
  if (device.is_meta() || device.is_planned()) return Tensor::empty(labels.shape(), int32, device);
  const std::vector<std::int64_t> values = values_of(labels);
  std::vector<std::int32_t> ids(values.size());
  const auto length = static_cast<std::size_t>(labels.size(1));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t before = i % length == 0 ? config_.decoder_start_token_id : values[i - 1];
    ids[i] = static_cast<std::int32_t>(before == -100 ? config_.pad_token_id : before);
  }
  return Tensor::from(ids, labels.shape()).to(device);
}

Tensor T5ForConditionalGeneration::loss(const TokenBatch& source, const Tensor& labels) {
  check_text("labels", labels, source.ids.size(0), positions());
  return loss_of_head(for_head(states(source, shifted(labels))), lm_head_, shared_, labels);
}

std::vector<std::vector<std::int32_t>> T5ForConditionalGeneration::write_greedily(
    const TokenBatch& source, std::int64_t max_tokens) {
  TESSERA_REQUIRE(max_tokens >= 1 && max_tokens <= positions() && !is_training(),
                  "T5 writes from 1 to {} tokens, in evaluation mode: call eval(); given {}",
                  positions(), max_tokens);
  const NoGradGuard no_grad;
  T5Writing writing = decoder_->begin(encode(source), max_tokens);
  const auto batch = static_cast<std::size_t>(source.ids.size(0));
  std::vector<std::vector<std::int32_t>> texts(batch);
  std::vector<bool> ended(batch, false);
  std::vector<std::int32_t> last(batch, static_cast<std::int32_t>(config_.decoder_start_token_id));
  const std::vector<std::int64_t>& ends = config_.eos_token_ids;
  for (std::int64_t t = 0;
       t < max_tokens && std::find(ended.begin(), ended.end(), false) != ended.end(); ++t) {
    const Tensor ids =
        Tensor::from(last, {static_cast<std::int64_t>(batch)}).to(source.ids.device());
    const Tensor logits = head(decoder_->decode(shared_(ids), writing));
    const std::vector<std::int64_t> best = values_of(argmax(logits, -1));
    for (std::size_t b = 0; b < batch; ++b) {
      last[b] = static_cast<std::int32_t>(ended[b] ? config_.pad_token_id : best[b]);
      if (ended[b]) continue;
      texts[b].push_back(last[b]);
      ended[b] = std::find(ends.begin(), ends.end(), best[b]) != ends.end();
    }
  }
  return texts;
}

HuggingFaceNames T5ForConditionalGeneration::hugging_face_names() const {
  HuggingFaceNames names;
  names.aliases = [](const std::string& name) {
    if (name == "shared.weight") return std::vector<std::string>{name, copies[0], copies[1]};
    return std::vector<std::string>{name};
  };
  names.ignored = {copies[0], copies[1],
                   "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"};
  if (config_.tied) names.ignored.emplace_back("lm_head.weight");
  return names;
}

}  // namespace tessera::models
