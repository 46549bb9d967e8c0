// Finds the files of conversations by their kind.
#include "tasks/instructions/conversation_files.h"

#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/data/corpus.h"
#include "tasks/columnar/table_files.h"

namespace tessera::tasks {

std::shared_ptr<const ConversationCorpus> open_rows(const TextData& data,
                                                    const Tokenizer& tokenizer,
                                                    const std::string& tokenizer_folder,
                                                    RowLoss loss) {
  TableText table{{}, data.columns, tokenizer_folder};
  if (auto tables = find_table_files(data.files)) {
    check_no_format(data, *tables);
    table.files = std::move(*tables);
  } else {
    const std::vector<std::string> names = expand_files(data.files);
    auto lines = data.json_lines ? json_lines(names) : find_json_lines(names);
    TESSERA_CHECK(lines.has_value(), ErrorCode::data,
                  "data file {}: {} are in Parquet, Arrow or JSON lines (.jsonl, or with another "
                  "name and format: jsonl)",
                  fmt::join(names, ", "),
                  loss == RowLoss::of_preferences ? "pairs of answers" : "conversations");
    table.files = std::move(*lines);
  }
  return std::make_shared<ConversationCorpus>(table, tokenizer, loss);
}

}  // namespace tessera::tasks
