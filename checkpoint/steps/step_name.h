// The names of step folders.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::checkpoint {

std::string step_name(std::int64_t step);  // "step-12"
// The step of a name like "step-12"; none for any other name ("step-012", "step-12.bak").
std::optional<std::int64_t> parse_step_name(std::string_view name);

}  // namespace tessera::checkpoint
