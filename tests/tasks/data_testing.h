// A folder for data files, and the message of an error.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "tests/support/temporary_folder.h"

namespace tessera::tasks {

class DataFolder : public testing::TemporaryFolder {
 public:
  using TemporaryFolder::path;
  [[nodiscard]] std::string path(const std::string& name) const { return (*this / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    return TemporaryFolder::write(name, content).string();
  }
};

}  // namespace tessera::tasks
