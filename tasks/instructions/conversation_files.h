// The files whose rows are conversations or pairs of answers.
#pragma once

#include <memory>
#include <string>

#include "engine/data/tokenizer.h"
#include "tasks/columnar/conversation_corpus.h"
#include "tasks/next_token.h"

namespace tessera::tasks {

// The rows of files, which are Parquet, Arrow or JSON lines; `tokenizer_folder` has the chat
// template. Error(data) for other files.
std::shared_ptr<const ConversationCorpus> open_rows(const TextData& data,
                                                    const Tokenizer& tokenizer,
                                                    const std::string& tokenizer_folder,
                                                    RowLoss loss);

}  // namespace tessera::tasks
