// The tokenizers and lines of make_fixtures.py.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"
#include "tokenizers/load.h"

namespace tessera::tokenizers::testing {

namespace fs = std::filesystem;

inline fs::path fixture(const std::string& name) {
  const char* const source = std::getenv("TESSERA_SOURCE_DIR");
  if (source == nullptr) throw std::runtime_error("TESSERA_SOURCE_DIR is not set; run ctest");
  return fs::path(source) / "tests/tokenizers/fixtures" / name;
}

inline nlohmann::json json_of(const fs::path& path) {
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error("no " + path.string());
  return nlohmann::json::parse(stream);
}

using ScratchFolder = tessera::testing::TemporaryFolder;

inline std::string contents_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// Runs `body` and returns the one line of the Error that it must throw.
inline std::string refusal_of(const std::function<void()>& body, ErrorCode code) {
  std::string line = tessera::testing::error_of(body, code);
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  return line;
}

inline ::testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << text << "' lacks '" << part << "'";
}

}  // namespace tessera::tokenizers::testing
