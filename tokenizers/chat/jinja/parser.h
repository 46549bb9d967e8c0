// From a template's tokens to its statements.
#pragma once

#include <string>
#include <string_view>

#include "tokenizers/chat/jinja/syntax.h"

namespace tessera::tokenizers::jinja {

// Throws Error(data) that begins with `source` and the line: text that is not UTF-8, a mistake, and
// what chat templates do not have (include, import, extends, block, calls with * and **).
Body parse_template(std::string_view text, const std::string& source);

}  // namespace tessera::tokenizers::jinja
