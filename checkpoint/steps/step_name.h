// The names of the folders that hold a step each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::checkpoint {

std::string step_name(std::int64_t step);  // "step-12"
// The step that a name like "step-12" stands for; none for any other name ("step-012",
// "step-12.bak").
std::optional<std::int64_t> parse_step_name(std::string_view name);

}  // namespace tessera::checkpoint
