// Direct preference optimisation: a language model on pairs of answers, of which one is preferred,
// beside a frozen reference.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "models/language_model.h"
#include "tasks/evaluators.h"
#include "tasks/instructions/preference_samples.h"
#include "tasks/losses/preference_loss.h"
#include "tasks/next_token.h"
#include "tasks/task.h"

namespace tessera::tasks {

// The frozen model whose log-probabilities the trained one's are compared with.
class Reference {
 public:
  Reference() = default;
  virtual ~Reference() = default;
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  // LanguageModel::row_losses() outside the graph. Collective.
  [[nodiscard]] virtual Tensor row_losses(const Tensor& ids, const Tensor& targets) = 0;
  // The communication of its forwards so far.
  [[nodiscard]] virtual CommunicationStatistics communication() const = 0;
};

struct DpoOptions : LanguageModelOptions {
  PreferenceOptions preference = {};
  // Null: the trained model without its adapters, which it then has.
  std::shared_ptr<Reference> reference = {};
};

// The loss of a step is the mean over all pairs of the global batch, for every split into ranks and
// micro-batches. Reads data first, as make_next_token_task().
std::unique_ptr<ModelTask> make_dpo_task(const DpoOptions& options);

// The pairs of files, which are Parquet, Arrow or JSON lines; `tokenizer_folder` has the chat
// template. Error(data) for other files.
std::shared_ptr<const ConversationCorpus> open_preferences(const TextData& data,
                                                           const Tokenizer& tokenizer,
                                                           const std::string& tokenizer_folder);

// LanguageModel::row_losses() outside the graph, in evaluation mode, of a model with adapters as if
// it had none. Collective.
[[nodiscard]] Tensor losses_without_adapters(models::LanguageModel& model, const Tensor& ids,
                                             const Tensor& targets);

// LanguageModel::row_losses() of two models.
using RowLosses = std::function<Tensor(const Tensor& ids, const Tensor& targets)>;
struct ComparedModels {
  RowLosses trained, reference;
};

// Collective. `loss` over the first `count` samples in batches, the rewards' means and `pairs`. The
// batches are the same for every world size, and so are the bits. `took`, if it is set, is called
// with each batch of this rank, and `between` before each batch, equally often on every rank.
Scores evaluate_preferences(const ComparedModels& models, const PreferenceSamples& samples,
                            std::int64_t count, std::int64_t batch_size,
                            const PreferenceOptions& options, const Context& context,
                            const std::function<void(const PreferenceBatch&)>& took = {},
                            const std::function<void()>& between = {});

}  // namespace tessera::tasks
