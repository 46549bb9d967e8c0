// The job's key: its sources, invalid keys, and proofs.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "comm/control/job_key.h"
#include "support/expect_parts.h"

namespace tessera::comm::control {
namespace {

using tessera::testing::expect_parts;

constexpr const char* good = "a-key-of-sixteen";

template <class Make>
std::string refusal(Make make) {
  try {
    (void)make();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    return error.what();
  }
  return "taken";
}

class KeyFile {
 public:
  KeyFile(const std::string& text, mode_t mode)
      : path_(std::filesystem::temp_directory_path() /
              ("tessera-key-" + std::to_string(getpid()))) {
    std::ofstream(path_) << text;
    EXPECT_EQ(chmod(path_.c_str(), mode), 0);
  }
  ~KeyFile() { std::filesystem::remove(path_); }
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(JobKey, InvalidKeysAreRefusedWithTheirSource) {
  const auto of = [](const std::string& text) {
    return refusal([&] { return JobKey::from_text(text, "the source"); });
  };
  EXPECT_EQ(of(good), "taken");
  EXPECT_EQ(of(std::string(1024, 'k')), "taken");
  for (const std::string& text :
       {std::string(), std::string("fifteen-charact"), std::string(1025, 'k'),
        std::string("sixteen with spaces"), std::string("sixteen-and-a-nul\0", 18),
        std::string("sixteen-and-\xc3\xa4-umlaut")}) {
    expect_parts(of(text), {"the source holds no job key", "16 to 1024", "openssl rand -hex 32"});
  }
}

TEST(JobKey, AFileMustBeReadableOnlyByItsOwner) {
  const KeyFile file(std::string(good) + "\n", 0600);
  const JobKey key = JobKey::from_file(file.path());
  EXPECT_EQ(key.for_environment(), good);
  for (const mode_t mode : {0640, 0604, 0660, 0602}) {
    ASSERT_EQ(chmod(file.path().c_str(), mode), 0);
    expect_parts(refusal([&] { return JobKey::from_file(file.path()); }),
                 {"is open to others than its owner", "chmod 600 " + file.path().string()});
  }
  expect_parts(refusal([] { return JobKey::from_file("/nowhere/key"); }),
               {"/nowhere/key", "ENOENT"});
  expect_parts(refusal([] { return JobKey::from_file("/tmp"); }), {"/tmp is not a regular file"});
}

TEST(JobKey, AFileOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const KeyFile file(good, 0600);
  constexpr uid_t another = 65534;
  ASSERT_EQ(chown(file.path().c_str(), another, another), 0);
  expect_parts(refusal([&] { return JobKey::from_file(file.path()); }),
               {"belongs to another user (uid 65534)"});
}

TEST(JobKey, ALongOrEmptyFileIsNotAKey) {
  for (const std::string& text : {std::string(), std::string("\n"), std::string(5000, 'k'),
                                  std::string(good) + "\nand more\n"}) {
    const KeyFile file(text, 0600);
    expect_parts(refusal([&] { return JobKey::from_file(file.path()); }), {"holds no job key"});
  }
}

TEST(JobKey, TheEnvironmentHasTheKeyOrItsFileOrSaysNone) {
  const KeyFile file(good, 0400);
  unsetenv(job_key_variable);
  unsetenv(job_key_file_variable);
  EXPECT_FALSE(JobKey::from_environment().given());
  EXPECT_FALSE(JobKey::from_environment().declined());
  setenv(job_key_file_variable, file.path().c_str(), 1);
  EXPECT_EQ(JobKey::from_environment().for_environment(), good);
  setenv(job_key_variable, "another-key-of-more", 1);
  EXPECT_EQ(JobKey::from_environment().for_environment(), "another-key-of-more");
  setenv(job_key_variable, "none", 1);
  EXPECT_FALSE(JobKey::from_environment().given());
  EXPECT_TRUE(JobKey::from_environment().declined());
  EXPECT_EQ(JobKey::from_environment().for_environment(), "none");
  setenv(job_key_variable, "short", 1);
  expect_parts(refusal([] { return JobKey::from_environment(); }), {job_key_variable});
  unsetenv(job_key_variable);
  unsetenv(job_key_file_variable);
}

TEST(JobKey, AProofDependsOnTheKeyAndOnEachPart) {
  const JobKey key = JobKey::from_text(good, "here");
  const Proof proof = key.prove({"ab", "c"});
  EXPECT_TRUE(key.holds(proof, {"ab", "c"}));
  EXPECT_TRUE(JobKey::from_text(good, "there").holds(proof, {"ab", "c"}));
  EXPECT_FALSE(key.holds(proof, {"a", "bc"}));
  EXPECT_FALSE(key.holds(proof, {"abc"}));
  EXPECT_FALSE(key.holds({}, {"ab", "c"}));
  EXPECT_FALSE(JobKey::from_text("a-key-of-sixteeN", "here").holds(proof, {"ab", "c"}));
  for (std::size_t bit = 0; bit < 8 * proof.size(); ++bit) {
    Proof changed = proof;
    changed[bit / 8] = static_cast<std::uint8_t>(changed[bit / 8] ^ (1U << (bit % 8)));
    EXPECT_FALSE(key.holds(changed, {"ab", "c"}));
  }
}

TEST(JobKey, MadeKeysAndNoncesDiffer) {
  EXPECT_NE(JobKey::made().for_environment(), JobKey::made().for_environment());
  EXPECT_EQ(JobKey::made().for_environment().size(), 64u);
  EXPECT_NE(make_nonce(), make_nonce());
}

}  // namespace
}  // namespace tessera::comm::control
