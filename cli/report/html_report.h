// A comparison or a plan as one HTML file with plots that needs nothing else: no network, no other
// file. The page itself is in cli/report/.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::cli {

// Error(configuration) when a page could not be written there: for those who have minutes of work
// before they write it.
void check_html_place(const std::filesystem::path& file);

// Draws what `tessera bench --json` and `tessera plan --json` write: "format" is "tessera-bench" or
// "tessera-plan", anything else is misuse; what a row lacks is shown as unknown. The file is
// written as write_output() writes (engine/storage/output_file.h).
void write_html_report(const nlohmann::ordered_json& report, const std::filesystem::path& file);

// The text of that file.
std::string html_report_text(const nlohmann::ordered_json& report);

}  // namespace tessera::cli
