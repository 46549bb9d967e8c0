// A sentence encoder: a transformer, the pooling of its hidden states, and what Sentence
// Transformers lets follow, dense layers and normalisation. Its folders are read and written whole.
//
// Parameters have the transformer's own names, without prefix, and a dense layer's those of its
// folder ("2_Dense.linear.weight"): Sentence Transformers keeps the first in model.safetensors and
// the second in 2_Dense/model.safetensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/state/state.h"
#include "models/text_encoder.h"

namespace tessera::models {

// A step after pooling: [batch, in] -> [batch, out].
class SentenceModule : public nn::Module {
 public:
  virtual Tensor forward(const Tensor& x) const = 0;
};
using SentenceModuleHandle = nn::ModuleHandle<SentenceModule>;

class SentenceEncoder : public Model {
 public:
  struct Parts {
    std::unique_ptr<TextEncoder> transformer;
    std::vector<PoolingMode> pooling;  // their results stand side by side
    // In their order; named as their folders, "2_Dense".
    std::vector<std::pair<std::string, SentenceModuleHandle>> modules;
    std::int64_t dimension = 0;  // of what comes out
    std::int64_t max_seq_length = 0;
    bool do_lower_case = false;
    std::map<std::string, std::string> files;  // what files() gives
  };
  explicit SentenceEncoder(Parts parts);

  // One row a sequence: fp32 [batch, dimension()].
  Tensor forward(const TokenBatch& tokens) const;
  [[nodiscard]] std::int64_t dimension() const { return parts_.dimension; }
  [[nodiscard]] TextEncoder& transformer() const { return *parts_.transformer; }
  // Tokens of a text, special ones included, past which it is cut.
  [[nodiscard]] std::int64_t max_seq_length() const { return parts_.max_seq_length; }
  // Whether texts are made lower case before they are tokenised, whatever the tokenizer does.
  [[nodiscard]] bool do_lower_case() const { return parts_.do_lower_case; }

  // What a saved folder holds beside weights, config.json and the tokenizer's files: modules.json,
  // 1_Pooling/config.json and so on, by path in the folder.
  [[nodiscard]] const std::map<std::string, std::string>& files() const { return parts_.files; }
  // The modules that have parameters, whose names begin with the folder's and a dot. Saves take
  // them as SaveOptions::tensor_folders.
  [[nodiscard]] std::set<std::string> tensor_folders() const;

  // The pooler that transformers put on BERT and MPNet, under its own name: no embedding goes
  // through it, so it is frozen, and kept for those who load a saved folder with transformers.
  void keep_pooler();

  // Of the transformer.
  [[nodiscard]] nlohmann::json config(DType weights = float32) const override;
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override;
  [[nodiscard]] std::int64_t vocabulary() const override;
  [[nodiscard]] std::int64_t positions() const override;

 private:
  Parts parts_;
};

// Whether the folder has a modules.json.
bool is_sentence_encoder_folder(const std::string& folder);

// Builds what the folder describes, with initial values as the registry's functions do: a Sentence
// Transformers folder, or a bare transformer's, which gets mean pooling as Sentence Transformers
// does. What is not supported is an Error(configuration) that names it.
std::unique_ptr<SentenceEncoder> make_sentence_encoder(const std::string& folder);
// The same with changes to the transformer's config.json (the recipe's).
std::unique_ptr<SentenceEncoder> make_sentence_encoder(const std::string& folder,
                                                       const nlohmann::json& changes);
// With mean pooling around a transformer that `config` describes; `source` says in errors where
// it came from.
std::unique_ptr<SentenceEncoder> make_mean_pooling_encoder(const nlohmann::json& config,
                                                           const std::string& source);

// The name of a pooler's first tensor in a checkpoint.
inline constexpr const char* pooler_weight = "pooler.dense.weight";

// Whether the folder's weights have a pooler of the model's width: keep_pooler() is then filled
// from it.
bool has_pooler(const std::string& folder, const SentenceEncoder& model);

// Fills the pieces of the model's tensors from a folder of either kind. Missing, unexpected and
// mis-shaped tensors are one Error(checkpoint) that lists them.
void load_sentence_encoder(const std::string& folder, const SentenceEncoder& model,
                           std::vector<checkpoint::LogicalTensor>& tensors);

}  // namespace tessera::models
