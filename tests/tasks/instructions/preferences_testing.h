// Pairs of answers whose tokens are bytes, in a file of JSON lines.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tasks/columnar/conversation_corpus.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {

// A prompt of so many letters and two answers, which end with a newline.
struct PairLengths {
  int prompt = 0, chosen = 0, rejected = 0;
};

inline std::string pair_lines(const std::vector<PairLengths>& lengths) {
  std::string lines;
  int letter = 0;
  const auto letters = [&](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += static_cast<char>('a' + (letter++ * 7) % 26);
    return text;
  };
  for (const PairLengths& one : lengths) {
    const std::string prompt = letters(one.prompt), chosen = letters(one.chosen - 1);
    lines += R"({"prompt": ")" + prompt + R"(", "chosen": ")" + chosen + R"(", "rejected": ")" +
             letters(one.rejected - 1) + "\"}\n";
  }
  return lines;
}

inline std::shared_ptr<const ConversationCorpus> byte_pairs(const DataFolder& folder,
                                                            const std::string& lines) {
  const TableText table{{{folder.write("pairs.jsonl", lines), TableFileKind::json_lines, {}}}};
  return std::make_shared<ConversationCorpus>(table, ByteTokenizer(), RowLoss::of_preferences);
}

}  // namespace tessera::tasks
