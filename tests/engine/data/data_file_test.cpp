// A data file is read at any place; anything but a regular file, and a file that became shorter, is
// an error.
#include "engine/data/data_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/errors.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class OpenDataFile : public ::testing::Test {
 protected:
  OpenDataFile() { std::ofstream(path_) << "0123456789"; }

  std::string refusal(const fs::path& path) const {
    return testing::error_of([&] { const DataFile file(path.string()); }, ErrorCode::data);
  }

  testing::TemporaryFolder folder_;
  fs::path path_ = folder_.path() / "data";
};

TEST_F(OpenDataFile, ReadsAtAPlace) {
  const DataFile file(path_.string());
  EXPECT_EQ(file.size(), 10);
  std::string text(4, '\0');
  file.read(6, text.data(), 4);
  EXPECT_EQ(text, "6789");
  EXPECT_EQ(file.read_to_end(8, text.data(), 4), 2U);
  EXPECT_EQ(text, "8989");
}

TEST_F(OpenDataFile, AFileThatBecameShorterIsAnError) {
  const DataFile file(path_.string());
  fs::resize_file(path_, 5);
  std::string text(4, '\0');
  EXPECT_EQ(testing::error_of([&] { file.read(4, text.data(), 4); }, ErrorCode::data),
            "data file " + path_.string() +
                " became shorter while it was in use: it had 10 bytes, now it ends before byte 8");
}

TEST_F(OpenDataFile, RefusesWhatIsNoRegularFile) {
  const fs::path pipe = folder_.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(refusal(pipe), "data file " + pipe.string() + " is not a regular file");
  EXPECT_EQ(refusal(folder_.path()),
            "data file " + folder_.path().string() + " is not a regular file");
  const std::string missing = (folder_.path() / "none").string();
  EXPECT_EQ(refusal(missing), "data file " + missing +
                                  " cannot be opened: open failed: No such file or directory "
                                  "(ENOENT)");
}

}  // namespace
}  // namespace tessera
