// Next-token prediction: a language model on a long sequence of tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/tokenizer.h"
#include "engine/optim/schedule.h"
#include "models/language_model.h"
#include "tasks/columnar/table_files.h"
#include "tasks/losses/language_teacher.h"
#include "tasks/task.h"

namespace tessera::tasks {

// Files of texts or tokens, each a data set, or files that are one data set together: all shards of
// a corpus (engine/data/token_shards.h), Parquet, Arrow and tar files (columnar/table_corpus.h).
struct TextData {
  std::vector<std::string> files;  // paths, patterns and folders
  // The columns of Parquet, Arrow and tar files, and of JSON lines, which are a text without them.
  // Empty: the usual ones (TableText).
  std::vector<std::string> columns = {};
  bool json_lines = false;  // whatever the names are
};

// Error(configuration) if the files are said to be JSON lines, and are these.
void check_no_format(const TextData& data, const std::vector<TableFile>& tables);

// The options that all tasks of a language model share.
struct LanguageModelOptions {
  std::vector<TextData> train;
  std::optional<TextData> valid;  // one data set
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string tokenizer_folder = {};  // with a chat template; empty: there is none
  std::int64_t seq_len = 0;
  bool shuffle = true;
  std::int64_t seed = 0;
  std::int64_t eval_batches = 1;  // of each rank
  bool reads_data = true;         // false if a run is only planned

  nlohmann::json model;  // Hugging Face's config.json
  bool pretrained = false;
  std::function<void(models::Model&)> adapt = {};  // further changes to the built model, on `meta`
  bool takes_vocabulary = false;                   // `model` has no vocab_size: the data's is used
  std::string model_source;                        // and where it came from
  // The place of the run's settings and their keys, for messages.
  std::string source, train_place, valid_place, seq_len_place;
};

// The model on `meta`, on the thread's default device with the thread's seed. Error(configuration)
// if it does not fit the tokenizer or seq_len.
std::unique_ptr<models::LanguageModel> make_trained_model(const LanguageModelOptions& options);

// A task whose model is a language model.
class LanguageModelTask : public ModelTask {
 public:
  [[nodiscard]] nn::Module& module() override { return *model_; }
  [[nodiscard]] const models::Model& model() const override { return *model_; }
  [[nodiscard]] std::map<std::string, std::string> files(DType weights) const override {
    return {{"config.json", model_->config(weights).dump(2) + "\n"}};
  }
  [[nodiscard]] std::string needs_equal_batches() const override {
    if (!model_->config().value("output_router_logits", false)) return {};
    return "output_router_logits adds the load-balancing loss, which is that of each rank's tokens";
  }
  // A token's products take about 24 * width^2 operations in a layer, its attention 4 * width for
  // each earlier token: as many at 6 * width places.
  [[nodiscard]] double row_cost(std::int64_t places) const override;

 protected:
  // share_sequences() of a task whose sequences have these lengths. `packs`: rows have several
  // texts.
  [[nodiscard]] std::string share(const std::shared_ptr<const ContextParallel>& ranks,
                                  const std::vector<std::int64_t>& lengths, bool packs);
  // Between the ranks that hold sequences together, if there are any.
  [[nodiscard]] CommunicationStatistics communication_of_parts() const {
    return sequence_ ? sequence_->communication() : CommunicationStatistics{};
  }

  std::unique_ptr<models::LanguageModel> model_;
  std::shared_ptr<const ContextParallel> sequence_;  // null: each rank has whole sequences
};

struct NextTokenOptions : LanguageModelOptions {
  // The settings name the tokenizer. Without that, `bytes` takes files of ids of any tokenizer, of
  // one in all files.
  bool tokenizer_is_given = false;
  TeachingOptions teaching = {};
  // Steps that cut each sequence into rows of so many tokens, which divide seq_len.
  StepRamp seq_len_ramp = {};
};

// Reads data first: errors in a file are reported before a model is built, on the thread's default
// device with the thread's seed.
std::unique_ptr<ModelTask> make_next_token_task(const NextTokenOptions& options);

}  // namespace tessera::tasks
