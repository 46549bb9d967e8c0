// The page of a comparison.
#include "cli/html_report.h"

#include "kernels/base/error.h"

namespace tessera::cli {

void write_html_report(const nlohmann::ordered_json& /*report*/,
                       const std::filesystem::path& file) {
  fail(ErrorCode::configuration, "--html {}: not built yet", file.string());
}

}  // namespace tessera::cli
