// Loads folders of sentence encoders and language models: shared by `encode` and `evaluate`.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/state/state.h"
#include "cli/command.h"
#include "models/language_model.h"
#include "models/sentence_encoder/sentence_encoder.h"
#include "sharding/fully_shard.h"
#include "tasks/encoding.h"

namespace tessera::cli {

// The number of elements of a module that is not sharded.
std::vector<checkpoint::LogicalTensor> whole_tensors(const nn::Module& module);

// "float32", "bfloat16" or "float16", also as fp32, bf16 and fp16; Error(usage) for anything else.
DType parse_compute_dtype(const std::string& name);
// Arguments of the commands that compute with a folder's model.
Argument encoding_device_argument(std::string& device);
Argument encoding_dtype_argument(std::string& dtype);
Argument base_argument(std::string& base);
// A strategy by its name in sharding/policy/strategy.h, in upper or lower case; Error(usage) for
// anything else.
Strategy parse_strategy(const std::string& name);

struct EncoderChoices {
  DType dtype = float32;  // for computation
  // How the ranks shard the parameters, which makes forwards collective; unset: each rank has its
  // own whole model.
  std::optional<Strategy> strategy = {};
  std::string base = {};  // for a folder with an adapter: models::find_weights()
  // True: spend time now for faster products later (nn::Linear::lay_in_first). Only for a whole
  // model in fp32 on a CPU; other models are not changed.
  bool many_texts = false;
  // False for a language model that reads ids of another one: its own tokenizer is not loaded.
  bool with_tokenizer = true;
  std::optional<std::string> prompt = {};  // unset: the folder's (SentenceEncoder::prompt())
};

// An encoder with its weights and its tokenizer, on the context's device, ready to use.
class LoadedEncoder {
 public:
  LoadedEncoder(const std::string& folder, const Context& context, const EncoderChoices& choices);

  [[nodiscard]] const models::SentenceEncoder& model() const { return *model_; }
  [[nodiscard]] const tasks::TextTokens& tokens() const { return tokens_; }
  [[nodiscard]] tasks::Encode encode() const;  // SentenceEncoder::embeddings()
  // The encoder and its tokens without prompt and truncation, as in training.
  [[nodiscard]] tasks::Encode encode_as_trained() const;
  [[nodiscard]] tasks::TextTokens tokens_as_trained() const;
  // The head of SoftmaxLoss, which a training run with this loss saves in its steps as
  // `classifier`: fp32, whole on every rank. Error(checkpoint) if there is none.
  [[nodiscard]] nn::Linear load_head() const;

 private:
  std::filesystem::path path_;
  std::unique_ptr<models::SentenceEncoder> model_;
  std::optional<ShardedModel> sharded_;
  tasks::TextTokens tokens_;
};

// A language model with its weights and its tokenizer, sharded over the ranks. The tokenizer is
// bytes if the folder has none and the model has a vocabulary of 256.
class LoadedLanguageModel {
 public:
  LoadedLanguageModel(const std::string& folder, const Context& context,
                      const EncoderChoices& choices);

  [[nodiscard]] models::LanguageModel& model() const { return *model_; }
  [[nodiscard]] const Tokenizer& tokenizer() const { return *tokenizer_; }
  // With its chat template.
  [[nodiscard]] const std::string& tokenizer_folder() const { return tokenizer_folder_; }
  // LoraOptions::modules_to_save of the adapter; empty without one.
  [[nodiscard]] const std::vector<std::string>& modules_to_save() const { return modules_to_save_; }

 private:
  std::vector<std::string> modules_to_save_;
  std::unique_ptr<models::LanguageModel> model_;
  std::optional<ShardedModel> sharded_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string tokenizer_folder_;
};

}  // namespace tessera::cli
