// Sources without contents, sources that cannot be read, and places that no checkpoint can have:
// each is refused by one line that names the file, the reason and the way out.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "checkpoint/convert/convert.h"
#include "checkpoint/formats/formats_testing.h"
#include "checkpoint/formats/gguf_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

class ConvertMessages : public ::testing::Test {
 protected:
  std::string refusal(const fs::path& source, const fs::path& target, ErrorCode code,
                      bool force = false) {
    std::string text =
        error_of([&] { convert(source, target, {.to = "gguf", .force = force}); }, code);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 0) << text;
    return text;
  }
  fs::path model() {
    const fs::path path = folder_.path() / "hf";
    if (!fs::exists(path)) write_small_model(path, small_llama_tensors(), small_llama_config());
    return path;
  }
  [[nodiscard]] fs::path target() const { return folder_.path() / "m.gguf"; }
  TemporaryFolder folder_;
};

TEST_F(ConvertMessages, PathsThatNameNothingNew) {
  for (const char* path : {"", "/", "..", "out/.."}) {
    EXPECT_TRUE(has(refusal(model(), path, ErrorCode::usage),
                    "'" + std::string(path) + "' does not name a checkpoint; add a name"))
        << path;
  }
}

TEST_F(ConvertMessages, DevicesAndLinksAreNoPlaceWithAndWithoutForce) {
  fs::create_symlink(model(), folder_.path() / "link");
  for (const bool force : {false, true}) {
    EXPECT_TRUE(has(refusal(model(), "/dev/null", ErrorCode::checkpoint, force),
                    "'/dev/null' is a device or a pipe, and a checkpoint is a file or a folder"));
    EXPECT_TRUE(has(refusal(model(), folder_.path() / "link" / "", ErrorCode::usage, force),
                    "one is in the other"));
    EXPECT_TRUE(has(refusal(model(), "/dev/stdout", ErrorCode::checkpoint, force),
                    "'/dev/stdout' is a link, and a checkpoint"));
  }
}

TEST_F(ConvertMessages, FilesOfNoBytes) {
  for (const char* name : {"m.pt", "m.safetensors", "m.gguf", "m.bin", "m"}) {
    const fs::path source = folder_.path() / "empty" / name;
    fs::create_directories(source.parent_path());
    write_all(source, "");
    EXPECT_TRUE(has(refusal(source, target(), ErrorCode::checkpoint),
                    std::string(name) + "' has 0 bytes: it was not written"))
        << name;
  }
}

TEST_F(ConvertMessages, FoldersOfFilesOfNoBytes) {
  const fs::path folder = folder_.path() / "empty";
  fs::create_directories(folder);
  write_all(folder / "pytorch_model.bin", "");
  EXPECT_TRUE(has(refusal(folder, target(), ErrorCode::checkpoint),
                  "pytorch_model.bin' has 0 bytes: it was not written"));
}

// Root reads every file, so the test runs as another user where it can.
TEST_F(ConvertMessages, SourcesWithoutTheRightToRead) {
  constexpr uid_t other_user = 65534;
  const fs::path source = folder_.path() / "m.pt";
  write_all(source, "PK");
  const fs::path folder = folder_.path() / "closed";
  fs::create_directory(folder);
  for (const fs::path& path : {source, folder, model() / "model.safetensors"}) {
    fs::permissions(path, fs::perms::none);
  }
  fs::permissions(folder_.path(), fs::perms::all);
  const uid_t user = ::geteuid();
  if (user == 0 && ::seteuid(other_user) != 0) GTEST_SKIP() << "this system has no user 65534";
  const std::string file = refusal(source, target(), ErrorCode::checkpoint);
  const std::string closed = refusal(folder, target(), ErrorCode::checkpoint);
  const std::string weights = refusal(model(), target(), ErrorCode::checkpoint);
  if (user == 0) {
    ASSERT_EQ(::seteuid(user), 0);
  }
  for (const std::string& text : {file, closed, weights}) {
    EXPECT_TRUE(has(text, "Permission denied (EACCES); give this user the right to read it"));
  }
  EXPECT_TRUE(has(file, "cannot open '" + source.string()));
  EXPECT_TRUE(has(closed, "cannot list '" + folder.string()));
  EXPECT_TRUE(has(weights, "model.safetensors'"));
  fs::permissions(folder, fs::perms::owner_all);
}

}  // namespace
}  // namespace tessera::checkpoint
