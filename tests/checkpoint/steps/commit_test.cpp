// The folder of checkpoints: search, fallback, retention, replacement, locks.
#include "checkpoint/steps/commit.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

std::vector<std::string> names_in(const fs::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

void spoil(const fs::path& step) {
  std::string whole = read_all(step / "model.safetensors");
  whole[whole.size() - 1] ^= 1;
  write_all(step / "model.safetensors", whole);
}

TEST(FindLatest, NothingThere) {
  TemporaryFolder folder;
  EXPECT_FALSE(find_latest_alone(folder.path()).has_value());
  EXPECT_FALSE(find_latest_alone(folder.path() / "none").has_value());
  fs::create_directory(folder.path() / "step-7.partial-0123456789abcdef");
  EXPECT_FALSE(find_latest_alone(folder.path()).has_value());
}

TEST(FindLatest, GoesByCommitNotByTimeOrText) {
  TemporaryFolder folder;
  save_version(folder.path(), 2);
  save_version(folder.path(), 9);
  save_version(folder.path(), 10);
  fs::last_write_time(folder.path() / "step-9",
                      fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(find_latest_alone(folder.path())->step, 10);
  EXPECT_TRUE(find_latest_alone(folder.path())->skipped.empty());
}

TEST(FindLatest, FallsBackAndReportsWhy) {
  TemporaryFolder folder;
  for (const int step : {1, 2, 3}) save_version(folder.path(), step);
  spoil(folder.path() / "step-3");
  fs::remove(folder.path() / "step-2/optimizer.safetensors");
  fs::create_directory(folder.path() / "step-4.partial-0123456789abcdef");
  comm::run_local(3, [&](const auto& communicator) {
    const auto found = find_latest(*communicator, folder.path());
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->path, folder.path() / "step-1");
    ASSERT_EQ(found->skipped.size(), 3u);
    EXPECT_TRUE(has(found->skipped[0], "step-3: rank "));
    EXPECT_TRUE(has(found->skipped[0], "model.safetensors' is damaged"));
    EXPECT_TRUE(has(found->skipped[1], "optimizer.safetensors"));
    EXPECT_TRUE(has(found->skipped[2], "did not finish"));
  });
  spoil(folder.path() / "step-1");
  EXPECT_TRUE(has(error_of([&] { find_latest_alone(folder.path()); }), "is intact: step-3"));
}

TEST(FindLatest, OfTheModelAloneTheOptimizerMayBeDamaged) {
  TemporaryFolder folder;
  for (const int step : {1, 2}) save_version(folder.path(), step);
  const auto found_by = [&](LoadParts parts) {
    std::int64_t step = 0;
    comm::run_local(2, [&](const auto& communicator) {
      const auto found = find_latest(*communicator, folder.path(), {}, parts);
      if (communicator->rank() == 0) step = found->step;
    });
    return step;
  };
  std::string whole = read_all(folder.path() / "step-2/optimizer.safetensors");
  whole.back() ^= 1;
  write_all(folder.path() / "step-2/optimizer.safetensors", whole);
  EXPECT_EQ(found_by(LoadParts::everything), 1);
  EXPECT_EQ(found_by(LoadParts::model_only), 2);
  fs::remove(folder.path() / "step-2/optimizer.safetensors");
  EXPECT_EQ(found_by(LoadParts::model_only), 2);
  spoil(folder.path() / "step-2");
  EXPECT_EQ(found_by(LoadParts::model_only), 1);
}

TEST(FindLatest, LatestIsOnlyAHint) {
  TemporaryFolder folder;
  save_version(folder.path(), 1);
  save_version(folder.path(), 2);
  EXPECT_EQ(read_all(folder.path() / "latest"), "step-2\n");
  for (const char* text : {"step-1\n", "step-99\n", "", "garbage"}) {
    write_all(folder.path() / "latest", text);
    EXPECT_EQ(find_latest_alone(folder.path())->step, 2);
  }
  fs::remove(folder.path() / "latest");
  EXPECT_EQ(find_latest_alone(folder.path())->step, 2);
}

TEST(StepNames, OnlyOurOwn) {
  EXPECT_EQ(parse_step_name("step-0"), 0);
  EXPECT_EQ(parse_step_name("step-120"), 120);
  for (const char* name : {"step-", "step-01", "step--1", "step-1x", "step- 1", "step-+1", "Step-1",
                           "step-99999999999999999999", "step-1.bak", ""}) {
    EXPECT_FALSE(parse_step_name(name).has_value()) << name;
  }
  EXPECT_TRUE(is_leftover_name("step-1.partial-0123456789abcdef"));
  EXPECT_TRUE(is_leftover_name("step-1.removed-0123456789abcdef"));
  for (const char* name : {"step-1", "step-1.partial-", "step-1.partial-0123456789abcdeF",
                           "step-1.backup-0123456789abcdef", "x.partial-0123456789abcdef"}) {
    EXPECT_FALSE(is_leftover_name(name)) << name;
  }
}

TEST(Retention, KeepsTheNewestAndForeignFiles) {
  TemporaryFolder folder;
  fs::create_directories(folder.path() / "step-0");  // no manifest: not ours to delete
  write_all(folder.path() / "step-0/thesis.txt", "precious");
  write_all(folder.path() / "step-1.txt", "a file");
  fs::create_directories(folder.path() / "step-3.backup");
  for (const int step : {1, 2, 3, 4}) save_version(folder.path(), step, {.keep = 2});
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{".lock", "latest", "step-0", "step-1.txt", "step-3",
                                      "step-3.backup", "step-4"}));
  EXPECT_EQ(read_all(folder.path() / "step-0/thesis.txt"), "precious");
  // A save below the newest step belongs to another run: it keeps itself, and deletes none of the
  // other run's.
  save_version(folder.path(), 2, {.keep = 1});
  expect_version(folder.path() / "step-2", 2);
  EXPECT_TRUE(fs::exists(folder.path() / "step-3"));
  EXPECT_TRUE(fs::exists(folder.path() / "step-4"));
}

TEST(Replace, TheSameStepAgain) {
  TemporaryFolder folder;
  const auto save_as_step = [&](int step, int version, int world) {
    comm::run_local(world, [&](const auto& communicator) {
      const RankState own = make_state(communicator->rank(), world, version, even_cut(), true);
      save(*communicator, folder.path(), step, own.state, {});
    });
  };
  save_as_step(5, 1, 1);
  save_as_step(5, 2, 2);
  expect_version(folder.path() / "step-5", 2);
  spoil(folder.path() / "step-5");
  save_as_step(5, 3, 1);
  expect_version(folder.path() / "step-5", 3);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{".lock", "latest", "step-5"}));
}

TEST(Replace, NotForeignFiles) {
  TemporaryFolder folder;
  fs::create_directories(folder.path() / "step-1");
  write_all(folder.path() / "step-1/notes", "mine");
  write_all(folder.path() / "step-2", "a file");
  for (const int step : {1, 2}) {
    EXPECT_TRUE(has(error_of([&] { save_version(folder.path(), step); }),
                    "is not a checkpoint of Tessera's"));
  }
  EXPECT_EQ(read_all(folder.path() / "step-1/notes"), "mine");
  EXPECT_TRUE(has(error_of([&] { save_version(folder.path() / "step-2", 1); }), "not a folder"));
}

TEST(Leftovers, OfDeadSavesAreCleared) {
  TemporaryFolder folder;
  for (const char* name : {"step-7.partial-0123456789abcdef", "step-8.removed-0123456789abcdef"}) {
    fs::create_directories(folder.path() / name);
    write_all(folder.path() / name / "model.safetensors", "half");
  }
  fs::create_directories(folder.path() / "step-7.partial-mine");
  save_version(folder.path(), 1);
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{".lock", "latest", "step-1", "step-7.partial-mine"}));
}

TEST(Lock, ASecondSaveWaitsForTheFirst) {
  TemporaryFolder folder;
  save_version(folder.path(), 1);
  std::optional<PendingStep> pending;
  pending.emplace(folder.path(), 2, "0123456789abcdef", 1);
  std::thread first([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_FALSE(fs::exists(folder.path() / "step-3"));
    pending.reset();
  });
  save_version(folder.path(), 3, {}, 2);
  first.join();
  EXPECT_EQ(find_latest_alone(folder.path())->step, 3);
}

TEST(Lock, ASecondSaveIsRefusedAfterTheTimeout) {
  TemporaryFolder folder;
  save_version(folder.path(), 1);
  {
    PendingStep pending(folder.path(), 2, "0123456789abcdef", 1);
    for (const int world : {1, 2}) {
      const SaveOptions options{.stall_timeout = std::chrono::milliseconds(150)};
      const std::string text = error_of([&] { save_version(folder.path(), 3, options, world); });
      EXPECT_TRUE(has(text, "another run is saving into"));
    }
    // The refused save has not touched the other's files.
    EXPECT_TRUE(fs::exists(folder.path() / "step-2.partial-0123456789abcdef"));
  }
  EXPECT_FALSE(fs::exists(folder.path() / "step-2.partial-0123456789abcdef"));
  save_version(folder.path(), 3);
  EXPECT_EQ(find_latest_alone(folder.path())->step, 3);
}

}  // namespace
}  // namespace tessera::checkpoint
