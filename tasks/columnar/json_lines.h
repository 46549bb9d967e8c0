// The texts of JSON lines as one sequence of tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/data/text_reader.h"
#include "engine/data/tokenizer.h"
#include "tasks/columnar/text_appender.h"

namespace tessera::tasks {

// Writes the texts of a column of JSON lines, one object in each line that is not blank, as
// TextAppender does, and returns the number of tokens. `column` is a key, or a path with dots into
// objects. Memory holds some MiB, and at least a line, of 64 MiB at most. `between` is called
// between lines and may throw to stop. Error(data) with the line's number: what is not a JSON
// object in UTF-8; a column that is missing, null, or no text; no line at all, except for a shard.
std::int64_t write_json_line_tokens(TextReader& reader, const std::string& column,
                                    const Tokenizer& tokenizer, int workers, const TokenOutput& out,
                                    const std::function<void()>& between = {});

}  // namespace tessera::tasks
