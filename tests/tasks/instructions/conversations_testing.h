// Conversations of prompts and completions whose tokens are bytes, in a file of JSON lines.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tasks/columnar/conversation_corpus.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {

// A prompt of so many letters and a completion, which ends with a newline.
struct PromptLengths {
  int prompt = 0, completion = 0;
};

inline std::string prompt_lines(const std::vector<PromptLengths>& lengths) {
  std::string lines;
  int letter = 0;
  const auto letters = [&](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += static_cast<char>('a' + (letter++ * 7) % 26);
    return text;
  };
  for (const PromptLengths& one : lengths) {
    const std::string prompt = letters(one.prompt);
    lines += R"({"prompt": ")" + prompt + R"(", "completion": ")" + letters(one.completion - 1) +
             "\"}\n";
  }
  return lines;
}

inline std::shared_ptr<const ConversationCorpus> byte_conversations(
    const DataFolder& folder, const std::string& lines, LossOn loss_on = LossOn::answers) {
  const TableText table{{{folder.write("rows.jsonl", lines), TableFileKind::json_lines, {}}}};
  return std::make_shared<ConversationCorpus>(table, ByteTokenizer(), loss_on);
}

}  // namespace tessera::tasks
