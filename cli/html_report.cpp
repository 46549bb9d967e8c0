// The report's JSON goes into the page as data; it becomes text there and never markup.
#include "cli/html_report.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

#include "checkpoint/failure.h"
#include "checkpoint/file.h"
#include "cli/html_page.h"
#include "kernels/base/error.h"

namespace tessera::cli {
namespace {

// JSON that an HTML parser takes for text whatever its strings hold: these characters stand in
// strings alone, where \u spells them too. Bytes that are no UTF-8 become U+FFFD, NaN and infinity
// null.
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

// A link's target, so that the link stays one.
std::filesystem::path html_target(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_symlink(file, error)) return file;
  const std::filesystem::path target = std::filesystem::weakly_canonical(file, error);
  return error ? file : target;
}

// A device, a pipe: nothing that a rename may replace.
bool is_html_stream(const std::filesystem::path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

[[noreturn]] void refuse_html(const std::filesystem::path& file, ErrorCode code,
                              std::string_view why) {
  fail(code, "--html {}: cannot be written: {}", file.string(), why);
}

void write_html_stream(const std::filesystem::path& file, std::string_view text) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "wb"),
                                                               &std::fclose);
  if (!stream) refuse_html(file, ErrorCode::configuration, describe_errno("open", errno));
  if (std::fwrite(text.data(), 1, text.size(), stream.get()) != text.size() ||
      std::fflush(stream.get()) != 0) {
    refuse_html(file, ErrorCode::runtime, describe_errno("write", errno));
  }
}

// FILE.partial while it lives, unless it has been renamed.
class PartialPage {
 public:
  explicit PartialPage(const std::filesystem::path& file) : target_(html_target(file)) {
    partial_ = target_;
    partial_ += ".partial";
    try {
      TESSERA_CHECK(!std::filesystem::is_directory(target_), ErrorCode::configuration,
                    "it is a folder; name a file in it");
      file_.emplace(checkpoint::File::create_or_truncate(partial_));
    } catch (const Error& error) {
      refuse_html(file, ErrorCode::configuration, error.what());
    }
  }
  ~PartialPage() {
    file_.reset();
    std::error_code ignored;
    std::filesystem::remove(partial_, ignored);
  }
  PartialPage(const PartialPage&) = delete;
  PartialPage& operator=(const PartialPage&) = delete;

  void become(std::string_view text) {
    file_->write_at(0, text.data(), text.size());
    file_->sync();
    file_->close();
    checkpoint::rename_path(partial_, target_);
  }

 private:
  std::filesystem::path target_;
  std::filesystem::path partial_;
  std::optional<checkpoint::File> file_;
};

}  // namespace

void check_html_place(const std::filesystem::path& file) {
  if (!is_html_stream(file)) const PartialPage page(file);
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
  const std::string text = html_report_text(report);
  if (is_html_stream(file)) return write_html_stream(file, text);
  PartialPage page(file);
  try {
    page.become(text);
  } catch (const checkpoint::SystemFailure& failure) {
    refuse_html(file, ErrorCode::runtime, failure.what());
  }
}

}  // namespace tessera::cli
