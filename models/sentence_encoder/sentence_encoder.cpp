// The sentence encoder as a module; its folders are in sentence_folder.cpp.
#include "models/sentence_encoder/sentence_encoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/nn/lora.h"
#include "engine/tensor_ops.h"
#include "models/bert/encoder_layer.h"
#include "models/sentence_encoder/sentence_modules.h"

namespace tessera::models {

SentenceEncoder::SentenceEncoder(Parts parts) : parts_(std::move(parts)) {
  register_children_of(*parts_.transformer);
  for (const auto& [name, module] : parts_.modules) register_module(name, module);
}

void SentenceEncoder::keep_pooler() {
  const std::int64_t width = parts_.transformer->width();
  const Names pooler(std::make_shared<NamesImpl>());
  pooler->add("dense", nn::Linear(width, width));
  freeze(*pooler);
  register_module("pooler", pooler);
}

Tensor SentenceEncoder::forward(const TokenBatch& tokens) const {
  const TokenRows token_rows = parts_.transformer->rows_of(tokens);
  Tensor x =
      pool_sequences(parts_.transformer->forward(token_rows), token_rows.sequences, parts_.pooling);
  for (const auto& named : parts_.modules) x = named.second(x);
  return x.dtype() == float64 ? x : cast(x, float32);
}

void SentenceEncoder::check_prompt(const std::string& prompt, const std::string& place) const {
  TESSERA_CHECK(
      prompt.empty() || parts_.pools_prompts, ErrorCode::configuration,
      "{}{}the prompt '{}': the model's Pooling has include_prompt false, which leaves out the "
      "tokens of prompts and is not supported; encode without a prompt, and without "
      "default_prompt_name in its config_sentence_transformers.json",
      place, place.empty() ? "" : ": ", prompt);
}

std::int64_t SentenceEncoder::embedding_width() const {
  const std::int64_t width = parts_.embedding_width;
  return width == 0 ? parts_.dimension : std::min(width, parts_.dimension);
}

Tensor SentenceEncoder::embeddings(const TokenBatch& tokens) const {
  const Tensor rows = forward(tokens);
  return embedding_width() == dimension() ? rows : narrow(rows, 1, 0, embedding_width());
}

std::set<std::string> SentenceEncoder::tensor_folders() const {
  std::set<std::string> folders;
  for (const auto& [name, module] : parts_.modules) {
    if (!module->named_parameters().empty()) folders.insert(name);
  }
  return folders;
}

nlohmann::json SentenceEncoder::config(DType weights) const {
  return parts_.transformer->config(weights);
}

HuggingFaceNames SentenceEncoder::hugging_face_names() const {
  return parts_.transformer->hugging_face_names();
}

std::string SentenceEncoder::layer_class() const {
  return parts_.transformer->layer_class();
}

std::int64_t SentenceEncoder::vocabulary() const {
  return parts_.transformer->vocabulary();
}

std::int64_t SentenceEncoder::positions() const {
  return parts_.transformer->positions();
}

SentenceDenseImpl::SentenceDenseImpl(const SentenceDenseOptions& options)
    : activation_(options.activation) {
  linear_ = register_module(
      "linear", nn::Linear(options.in, options.out, nn::LinearOptions{.bias = options.bias}));
}

Tensor SentenceDenseImpl::forward(const Tensor& x) const {
  Tensor y = linear_(x);
  switch (activation_) {
    case SentenceActivation::identity:
      return y;
    case SentenceActivation::tanh:
      return tanh(y);
    case SentenceActivation::relu:
      return relu(y);
    case SentenceActivation::gelu:
      return gelu(y);
    case SentenceActivation::sigmoid:
      return sigmoid(y);
    case SentenceActivation::silu:
      return silu(y);
  }
  return y;
}

Tensor SentenceNormalizeImpl::forward(const Tensor& x) const {
  return normalize_rows(x);
}

}  // namespace tessera::models
