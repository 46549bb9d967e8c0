// Inputs with a text in each line: plain lines, or JSON lines for texts that have line breaks.
#pragma once

#include <string>

#include "cli/command.h"

namespace tessera::cli {

// The option --column of a command that reads such an input.
Argument text_column_argument(std::string* column);

// The line itself or, with a column, the text under this key of the line's JSON object. Throws
// Error(data), which begins with `place`, for a line without one.
std::string text_of_line(std::string line, const std::string& column, const std::string& place);

}  // namespace tessera::cli
