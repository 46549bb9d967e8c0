// A sentence encoder: a transformer, the pooling of its hidden states, and the modules that
// Sentence Transformers allows after it, dense layers and normalisation. Its folders are read and
// written whole.
//
// Parameters have the transformer's own names, without prefix. A dense layer's have those of its
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
    std::vector<PoolingMode> pooling;  // their results are concatenated
    // In their order, named after their folders, "2_Dense".
    std::vector<std::pair<std::string, SentenceModuleHandle>> modules;
    std::int64_t dimension = 0;  // of the result
    std::int64_t max_seq_length = 0;
    bool do_lower_case = false;
    std::string prompt;                        // default_prompt_name's text
    bool pools_prompts = true;                 // include_prompt
    std::int64_t embedding_width = 0;          // truncate_dim; 0: dimension
    std::map<std::string, std::string> files;  // the result of files()
  };
  explicit SentenceEncoder(Parts parts);

  // One row for each sequence: fp32 [batch, dimension()].
  Tensor forward(const TokenBatch& tokens) const;
  [[nodiscard]] std::int64_t dimension() const { return parts_.dimension; }
  [[nodiscard]] TextEncoder& transformer() const { return *parts_.transformer; }
  // Most tokens of a text, including special ones; longer texts are cut.
  [[nodiscard]] std::int64_t max_seq_length() const { return parts_.max_seq_length; }
  // True if texts are lowercased before they are tokenised, in addition to the tokenizer.
  [[nodiscard]] bool do_lower_case() const { return parts_.do_lower_case; }

  // Comes before each text that is encoded or evaluated, but not before those of training, as in
  // Sentence Transformers; usually empty.
  [[nodiscard]] const std::string& prompt() const { return parts_.prompt; }
  // Error(configuration) for a prompt, unless it is empty, where the folder's pooling would have to
  // leave out its tokens. The message begins with `place`.
  void check_prompt(const std::string& prompt, const std::string& place = "") const;
  // The numbers of an encoded text: dimension(), or fewer where the folder has truncate_dim.
  [[nodiscard]] std::int64_t embedding_width() const;
  // The first embedding_width() numbers of each row of forward().
  [[nodiscard]] Tensor embeddings(const TokenBatch& tokens) const;

  // Files of a saved folder besides weights, config.json and the tokenizer's files: modules.json,
  // 1_Pooling/config.json and so on, by path in the folder.
  [[nodiscard]] const std::map<std::string, std::string>& files() const { return parts_.files; }
  // The modules that have parameters, whose names begin with the folder's and a dot. Saves use them
  // as SaveOptions::tensor_folders.
  [[nodiscard]] std::set<std::string> tensor_folders() const;

  // Adds the pooler that transformers adds to BERT and MPNet, under its own name. Embeddings do not
  // use it, so it is frozen; it is kept for users who load a saved folder with transformers.
  void keep_pooler();

  // The transformer's.
  [[nodiscard]] nlohmann::json config(DType weights = float32) const override;
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override;
  [[nodiscard]] std::int64_t vocabulary() const override;
  [[nodiscard]] std::int64_t positions() const override;

 private:
  Parts parts_;
};

// True if the folder has a modules.json.
bool is_sentence_encoder_folder(const std::string& folder);

// Builds the model of a folder, with initial values as in the registry's functions: of a Sentence
// Transformers folder, or of a bare transformer, which gets mean pooling as in Sentence
// Transformers. Parts that are not supported are an Error(configuration) that names them.
std::unique_ptr<SentenceEncoder> make_sentence_encoder(const std::string& folder);
// The same with changes to the transformer's config.json (the recipe's).
std::unique_ptr<SentenceEncoder> make_sentence_encoder(const std::string& folder,
                                                       const nlohmann::json& changes);
// With mean pooling around a transformer that `config` describes; `source` is its place in errors.
std::unique_ptr<SentenceEncoder> make_mean_pooling_encoder(const nlohmann::json& config,
                                                           const std::string& source);

// The name of a pooler's first tensor in a checkpoint.
inline constexpr const char* pooler_weight = "pooler.dense.weight";

// True if the folder's weights have a pooler of the model's width, from which keep_pooler() is then
// filled.
bool has_pooler(const std::string& folder, const SentenceEncoder& model);

// Fills the pieces of the model's tensors from a folder of either kind. Missing, unexpected and
// mis-shaped tensors are one Error(checkpoint) that lists them.
void load_sentence_encoder(const std::string& folder, const SentenceEncoder& model,
                           std::vector<checkpoint::LogicalTensor>& tensors);

}  // namespace tessera::models
