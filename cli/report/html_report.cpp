// The report's JSON goes into the page as data; the page shows it as text and never as markup.
#include "cli/report/html_report.h"

#include <string_view>

#include "base/error.h"
#include "cli/report/html_page.h"
#include "engine/storage/output_file.h"

namespace tessera::cli {
namespace {

// JSON that an HTML parser reads as text, whatever its strings contain: these characters occur only
// in strings, where \u can spell them too. Bytes that are not UTF-8 become U+FFFD, NaN and infinity
// become null.
std::string json_for_markup(const nlohmann::ordered_json& report) {
  const std::string json =
      report.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    switch (c) {
      case '<':
        text += "\\u003c";
        break;
      case '>':
        text += "\\u003e";
        break;
      case '&':
        text += "\\u0026";
        break;
      default:
        text += c;
    }
  }
  return text;
}

}  // namespace

bool is_html_report(std::string_view beginning) {
  return beginning.starts_with("<!doctype html>") &&
         beginning.find("<title>Tessera</title>") != std::string_view::npos;
}

std::string html_report_text(const nlohmann::ordered_json& report) {
  const bool named = report.is_object() && report.contains("format");
  TESSERA_REQUIRE(
      named && (report["format"] == "tessera-bench" || report["format"] == "tessera-plan"),
      "no page shows a report of the format {}", named ? report["format"].dump() : "");
  const HtmlPage page = html_page();
  std::string text;
  for (std::string_view rest = page.markup; !rest.empty();) {
    const std::size_t mark = rest.find('@');
    text += rest.substr(0, mark);
    if (mark == std::string_view::npos) break;
    rest.remove_prefix(mark + 1);
    const std::string_view name = rest.substr(0, rest.find('@'));
    rest.remove_prefix(name.size() + 1);
    if (name == "style") {
      text += page.style;
    } else if (name == "report") {
      text += json_for_markup(report);
    } else {
      TESSERA_REQUIRE(name == "script", "the page has no @{}@", name);
      for (const std::string_view script : page.scripts) text += script;
    }
  }
  return text;
}

void write_html_report(const nlohmann::ordered_json& report, const std::filesystem::path& file) {
  write_output("--html " + file.string(), file, html_report_text(report));
}

}  // namespace tessera::cli
