// Messages are compared by the parts that they must contain, not by their exact text.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::testing {

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  }
}

}  // namespace tessera::testing
