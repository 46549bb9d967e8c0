// Describes this build and this node, for `tessera env` and for reports of benchmarks.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera::planner {

// {"tessera": {...}, "cpu": {..., "bf16": bool}, "threads": {...}, "memory": {...}, "libraries":
// {...}, "parts": {...}}
nlohmann::ordered_json environment_report();

std::string environment_text(const nlohmann::ordered_json& environment);

}  // namespace tessera::planner
