// The page of a comparison or a plan: one file that needs no network.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace tessera::cli {

// Takes the object of `tessera bench --json` or `tessera plan --json`; written as a whole or not at
// all.
inline void write_html_report(const nlohmann::ordered_json& /*report*/,
                              const std::filesystem::path& file) {
  fail(ErrorCode::runtime, "--html {}: this build has no page to write", file.string());
}

}  // namespace tessera::cli
