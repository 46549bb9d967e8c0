// A comparison or a plan as one HTML file with plots. It needs no network and no other file. The@//
// page itself is in cli/report/.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera::cli {

// Whether a file that begins like this is such a page.
bool is_html_report(std::string_view beginning);

// Draws what `tessera bench --json` and `tessera plan --json` write: "format" is "tessera-bench" or
// "tessera-plan", anything else is misuse; missing values of a row are shown as unknown. The file
// is written as write_output() writes (engine/storage/output_file.h).
void write_html_report(const nlohmann::ordered_json& report, const std::filesystem::path& file);

// The text of that file.
std::string html_report_text(const nlohmann::ordered_json& report);

}  // namespace tessera::cli
