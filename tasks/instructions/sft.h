// Supervised fine-tuning: a language model on conversations, with the loss on the answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "models/language_model.h"
#include "tasks/evaluators.h"
#include "tasks/instructions/conversation_samples.h"
#include "tasks/next_token.h"
#include "tasks/task.h"

namespace tessera::tasks {

struct SftOptions : LanguageModelOptions {
  LossOn loss_on = LossOn::answers;
  bool packing = false;
  TeachingOptions teaching = {};
};

// The loss of a step is the mean over all tokens in the loss of the global batch, for every split
// into ranks, micro-batches and packs. With a teacher it is that of Teaching over these tokens.
// Reads data first, as make_next_token_task().
std::unique_ptr<ModelTask> make_sft_task(const SftOptions& options);

// The conversations of files, which are Parquet, Arrow or JSON lines; `tokenizer_folder` has the
// chat template. Error(data) for other files.
std::shared_ptr<const ConversationCorpus> open_conversations(const TextData& data,
                                                             const Tokenizer& tokenizer,
                                                             const std::string& tokenizer_folder,
                                                             LossOn loss_on);

// The model's mean loss over the tokens of a batch that count. `sequence`: the ranks that hold its
// rows together, if there are any.
[[nodiscard]] Tensor conversation_loss(models::LanguageModel& model, const ConversationBatch& batch,
                                       Device device,
                                       const std::shared_ptr<const ContextParallel>& sequence = {});

// Collective. `loss` over the first `count` samples in batches, `perplexity`, and `tokens`: those
// in the loss. The batches are the same for every world size, and so are the bits. `took`, if it is
// set, is called with each batch of this rank, and `between` before each batch, equally often on
// every rank.
Scores evaluate_conversations(models::LanguageModel& model, const ConversationSamples& samples,
                              std::int64_t count, std::int64_t batch_size, const Context& context,
                              const std::function<void(const ConversationBatch&)>& took = {},
                              const std::function<void()>& between = {},
                              const std::shared_ptr<const ContextParallel>& sequence = {});

}  // namespace tessera::tasks
