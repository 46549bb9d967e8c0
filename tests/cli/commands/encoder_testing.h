// A Sentence Transformers folder with a sentence encoder of a few thousand parameters, and
// sentences for it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/safetensors/safetensors.h"
#include "engine/autograd.h"
#include "engine/random.h"
#include "models/sentence_encoder/sentence_encoder.h"
#include "tasks/encoding.h"
#include "tests/cli/training_testing.h"
#include "tokenizers/load.h"

namespace tessera::testing {

// BERT's vocabulary: special tokens, then every letter and digit, alone and within a word.
inline std::string letters_vocabulary() {
  std::string lines = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  const std::string characters = "abcdefghijklmnopqrstuvwxyz0123456789.,";
  for (const char character : characters) lines += std::string(1, character) + "\n";
  for (const char character : characters) lines += std::string("##") + character + "\n";
  return lines;
}

inline nlohmann::json tiny_bert() {
  return {{"model_type", "bert"},    {"architectures", {"BertModel"}}, {"vocab_size", 81},
          {"hidden_size", 32},       {"num_hidden_layers", 2},         {"num_attention_heads", 2},
          {"intermediate_size", 64}, {"max_position_embeddings", 64},  {"pad_token_id", 0}};
}

// The contents of a file with the module's parameters.
inline std::vector<checkpoint::TensorToWrite> tensors_of(const nn::Module& module) {
  std::vector<checkpoint::TensorToWrite> tensors;
  for (const auto& parameter : module.named_parameters()) {
    const auto sizes = parameter.shape.sizes();
    tensors.push_back(
        {{parameter.name, float32, {sizes.begin(), sizes.end()}}, parameter.tensor.data()});
  }
  return tensors;
}

// Writes the folder and returns its path.
inline std::string make_encoder_folder(const std::filesystem::path& folder) {
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << text;
  };
  manual_seed(21);
  const auto model = models::make_mean_pooling_encoder(tiny_bert(), "tiny");
  std::filesystem::create_directories(folder);
  checkpoint::write_safetensors(folder / "model.safetensors", tensors_of(*model));
  write("config.json", model->config().dump(2));
  for (const auto& [name, text] : model->files()) write(name, text);
  write("vocab.txt", letters_vocabulary());
  return folder.string();
}

inline std::vector<std::string> sentences(std::size_t count, std::uint64_t seed) {
  static const char* const words[] = {"a",   "shard", "of",   "every", "mosaic", "is", "gathered",
                                      "and", "then",  "tile", "by",    "tile",   "we", "reduce"};
  std::vector<std::string> all;
  std::uint64_t state = seed;
  for (std::size_t i = 0; i < count; ++i) {
    std::string text = "number " + std::to_string(i);
    const std::size_t length = 1 + i * 7 % 23;
    for (std::size_t word = 0; word < length; ++word) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      text += std::string(" ") + words[(state >> 33) % std::size(words)];
    }
    all.push_back(text + ".");
  }
  return all;
}

inline std::string lines_of(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text + "\n";
  return all;
}

// Loads the folder into the model and returns the model's tensors.
inline std::vector<checkpoint::TensorToWrite> load_encoder(const std::string& folder,
                                                           models::SentenceEncoder& model) {
  std::vector<checkpoint::LogicalTensor> tensors;
  for (const auto& parameter : model.named_parameters()) {
    const auto sizes = parameter.shape.sizes();
    tensors.push_back({parameter.name,
                       float32,
                       {sizes.begin(), sizes.end()},
                       {{0, parameter.tensor.elements(), parameter.tensor.raw_data()}}});
  }
  models::load_sentence_encoder(folder, model, tensors);
  return tensors_of(model);
}

// The embedding of each text alone, computed by the folder's encoder in this process.
inline std::vector<std::vector<float>> embeddings_of(const std::string& folder,
                                                     const std::vector<std::string>& texts) {
  const auto tokenizer = tokenizers::load_tokenizer(folder);
  const auto model = models::make_sentence_encoder(folder);
  (void)load_encoder(folder, *model);
  model->eval();
  const NoGradGuard no_grad;
  std::vector<std::vector<float>> rows;
  for (const std::string& text : texts) {
    const auto ids = tokenizer->encode_sequence(text, model->max_seq_length());
    const Tensor row = model->forward(tasks::make_token_batch({ids}, 0, Device::cpu()));
    rows.emplace_back(row.data_as<float>(), row.data_as<float>() + row.elements());
  }
  return rows;
}

}  // namespace tessera::testing
