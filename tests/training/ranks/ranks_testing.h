// Shared by the tests of how ranks divide samples and sequences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/training_testing.h"

namespace tessera::testing {

inline nlohmann::json json_in(const std::string& path) {
  return nlohmann::json::parse(read_text(path));
}

// A recipe that is refused in one line, before anything is written.
inline void expect_recipe_refused(const Ended& ended, const std::string& message) {
  EXPECT_EQ(ended.code, 3) << ended.err;
  EXPECT_TRUE(ended.err.starts_with("tessera: error: ")) << ended.err;
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err << "wanted: " << message;
  EXPECT_EQ(ended.out, "");
}

}  // namespace tessera::testing
