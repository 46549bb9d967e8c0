// A comparison, or a plan, as one HTML page that needs nothing else.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace tessera::cli {

// Writes the page of `tessera bench --json` (or `tessera plan --json`) as a whole or not at all.
void write_html_report(const nlohmann::ordered_json& report, const std::filesystem::path& file);

}  // namespace tessera::cli
