// Files that are kept beside the data: damage is mended with a word, a changed data file is
// noticed, and threads that want one at the same time make it once.
#include "tasks/columnar/derived_file.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/tasks/columnar/columnar_testing.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

class DerivedFileTest : public ::testing::Test {
 protected:
  DerivedFileTest() { (void)folder_.write("rows.jsonl", "{}\n"); }

  // Opens the file that is made from rows.jsonl: its bytes.
  std::string open() {
    const DerivedFile file({{folder_.path("rows.jsonl"), TableFileKind::json_lines, {}}}, 7,
                           ".conversations", [this](const fs::path& path) {
                             ++made_;
                             std::ofstream(path, std::ios::binary) << "derived bytes";
                           });
    path_ = file.path();
    return bytes_of(path_.string());
  }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_.path("")), fs::directory_iterator()));
  }

  DataFolder folder_;
  fs::path path_;
  std::atomic<int> made_ = 0;
};

TEST_F(DerivedFileTest, IsMadeOnce) {
  EXPECT_EQ(open(), "derived bytes");
  const fs::path first = path_;
  EXPECT_EQ(open(), "derived bytes");
  EXPECT_EQ(path_, first);
  EXPECT_EQ(made_, 1);
  EXPECT_EQ(files(), 2U);
}

TEST_F(DerivedFileTest, DamageIsMendedWithAWord) {
  (void)open();
  for (const char* const other : {"derived bytez", "derived byte", "derived bytes.", ""}) {
    std::ofstream(path_, std::ios::binary) << other;
    const std::string name = path_.string();
    const int before = made_;
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(open(), "derived bytes");
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(said, "tessera: " + name + " is damaged, and is made again\n");
    EXPECT_EQ(made_, before + 1);
    EXPECT_EQ(files(), 2U);
  }
}

TEST_F(DerivedFileTest, OtherContentOfTheSameSizeAndTimeIsNoticed) {
  const std::string rows = folder_.path("rows.jsonl");
  (void)open();
  const auto time = fs::last_write_time(rows);
  (void)folder_.write("rows.jsonl", "[]\n");
  fs::last_write_time(rows, time);
  (void)open();
  EXPECT_EQ(made_, 2);
  (void)folder_.write("other.jsonl", "()\n");
  fs::last_write_time(folder_.path("other.jsonl"), time);
  fs::rename(folder_.path("other.jsonl"), rows);
  (void)open();
  EXPECT_EQ(made_, 3);
  EXPECT_EQ(files(), 2U);
}

TEST_F(DerivedFileTest, TwoAtOnceMakeOne) {
  for (const bool damaged : {false, true}) {
    if (damaged) std::ofstream(path_, std::ios::binary) << "derived bytez";
    made_ = 0;
    const auto make = [this](const fs::path& path) {
      ++made_;
      std::ofstream(path, std::ios::binary) << "derived bytes";
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    std::vector<std::string> read(4);
    std::vector<std::thread> threads;
    ::testing::internal::CaptureStderr();
    for (std::string& mine : read) {
      threads.emplace_back([&] {
        const DerivedFile file({{folder_.path("rows.jsonl"), TableFileKind::json_lines, {}}}, 7,
                               ".conversations", make);
        mine = bytes_of(file.path().string());
      });
    }
    for (std::thread& thread : threads) thread.join();
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(made_, 1);
    EXPECT_EQ(files(), 2U);
    for (const std::string& mine : read) EXPECT_EQ(mine, "derived bytes");
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), damaged ? 1 : 0) << said;
    (void)open();
  }
}

TEST_F(DerivedFileTest, WhatCannotBeMadeLeavesNothing) {
  EXPECT_THROW(DerivedFile({{folder_.path("rows.jsonl"), TableFileKind::json_lines, {}}}, 7,
                           ".conversations",
                           [](const fs::path& path) {
                             std::ofstream(path) << "half";
                             throw Error(ErrorCode::data, "no");
                           }),
               Error);
  EXPECT_EQ(files(), 1U);
}

}  // namespace
}  // namespace tessera::tasks
