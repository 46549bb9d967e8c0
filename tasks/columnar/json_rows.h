// Lines of JSON objects.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/data/text_reader.h"

namespace tessera::tasks {

// True for a line with nothing but white space, which JSON lines may have between their rows.
bool is_blank_line(std::string_view line);

// Calls `take` with each line that is not blank, without its end, and its place: "text rows.jsonl,
// line 3". Memory holds some MiB, and at least a line. Error(data) for a line of more than 64 MiB.
void for_each_json_line(
    TextReader& reader,
    const std::function<void(std::string_view line, const std::string& place)>& take);

// The object in a line, with its members in their order, each once. Error(data) that begins with
// `place` for anything but a JSON object in UTF-8.
nlohmann::ordered_json json_row(std::string_view line, const std::string& place);

}  // namespace tessera::tasks
