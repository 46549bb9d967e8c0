// Several runs in one folder: which steps each run loads, keeps and deletes; and which errors fall
// back and which stop.
#include "checkpoint/steps/lineage.h"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>

#include "checkpoint/io/checksum.h"
#include "checkpoint/steps/manifest.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

// A run that saves into a folder and continues from what it saved.
class SavingRun {
 public:
  SavingRun(fs::path dir, Line line, int keep = 0)
      : dir_(std::move(dir)), line_(std::move(line)), keep_(keep) {}
  static SavingRun anew(const fs::path& dir, int keep = 0) {
    return {dir, Line{.run = new_run()}, keep};
  }

  Saved save_step(std::int64_t step, int version, std::optional<double> score = {},
                  int keep_best = 0) {
    Saved saved;
    comm::run_local(1, [&](const auto& communicator) {
      const RankState own = make_state(0, 1, version, whole_cut(), true);
      saved = save(*communicator, dir_.string(), step, own.state,
                   {.keep = keep_, .line = line_, .score = score, .keep_best = keep_best});
    });
    line_ = saved.line;
    return saved;
  }
  void save_steps(const std::vector<int>& steps) {
    for (const int step : steps) save_step(step, step);
  }
  [[nodiscard]] const Line& line() const { return line_; }

 private:
  fs::path dir_;
  Line line_;
  int keep_;
};

std::vector<std::string> steps_in(const fs::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;

void turn_a_bit(const fs::path& step) {
  std::string whole = read_all(step / "model.safetensors");
  whole[whole.size() - 1] ^= 1;
  write_all(step / "model.safetensors", whole);
}

// Loads the newest step on one rank and returns it; every element is that of `version`.
FoundCheckpoint load_newest(const fs::path& dir, int version, const CheckpointQuery& search = {}) {
  std::optional<FoundCheckpoint> found;
  comm::run_local(1, [&](const auto& communicator) {
    RankState own = make_state(0, 1, 0, whole_cut(), false);
    found = load_latest(*communicator, dir.string(), own.state, LoadParts::everything, search);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(wrong_elements(own.state, version), 0);
    EXPECT_EQ(own.state.scalars, scalars_of(version));
  });
  return *found;
}

RunStart start_in(const fs::path& dir, const std::string& from = {}) {
  RunStart start;
  comm::run_local(2, [&](const auto& communicator) {
    const RunStart mine = start_line(*communicator, dir.string(), from);
    if (communicator->rank() == 0) start = mine;
  });
  return start;
}

TEST(Lineage, ARunNeitherLoadsNorDeletesTheStepsOfAnother) {
  TemporaryFolder folder;
  const fs::path& dir = folder.path();
  SavingRun old = SavingRun::anew(dir);
  old.save_steps({80, 90, 100});
  SavingRun fresh = SavingRun::anew(dir, 1);
  fresh.save_steps({5, 10});
  EXPECT_EQ(steps_in(dir), (Names{"step-10", "step-100", "step-80", "step-90"}));
  const FoundCheckpoint found = load_newest(dir, 10);
  EXPECT_EQ(found.step, 10);
  EXPECT_EQ(found.line.run, fresh.line().run);
  ASSERT_EQ(found.others.size(), 1u);
  EXPECT_TRUE(has(found.others[0], "3 steps of another run (" + old.line().run + ")"));
  EXPECT_TRUE(has(found.others[0], "step-100"));
}

TEST(Lineage, AStepWhoseNameAnotherRunNeedsIsMovedAside) {
  TemporaryFolder folder;
  const fs::path& dir = folder.path();
  SavingRun old = SavingRun::anew(dir);
  old.save_step(7, 1);
  SavingRun fresh = SavingRun::anew(dir, 2);
  const Saved saved = fresh.save_step(7, 2);
  const std::string aside = "step-7.of-" + old.line().run;
  ASSERT_EQ(saved.warnings.size(), 1u);
  EXPECT_TRUE(has(saved.warnings[0], "its step is now '" + aside));
  expect_version(dir / "step-7", 2);
  expect_version(dir / aside, 1);
  // A third run, and then the second again.
  SavingRun third = SavingRun::anew(dir);
  third.save_step(7, 3);
  fresh.save_step(7, 4);
  EXPECT_EQ(steps_in(dir).size(), 4u);
  expect_version(dir / aside, 1);
  expect_version(dir / ("step-7.of-" + fresh.line().run), 2);
  expect_version(dir / ("step-7.of-" + third.line().run), 3);
  load_newest(dir, 4);
}

TEST(Lineage, TheLineSavedLastContinuesWhateverItsSteps) {
  TemporaryFolder folder;
  const fs::path& dir = folder.path();
  SavingRun high = SavingRun::anew(dir), low = SavingRun::anew(dir);
  high.save_steps({100});
  low.save_steps({3});
  EXPECT_EQ(load_newest(dir, 3).step, 3);
  high.save_steps({101});
  EXPECT_EQ(load_newest(dir, 101).step, 101);
  low.save_steps({4});
  EXPECT_EQ(load_newest(dir, 4).step, 4);
}

TEST(Lineage, WithoutALineAStepBelowTheNewestBeginsARun) {
  TemporaryFolder folder;
  const fs::path& dir = folder.path();
  for (const int step : {1, 2, 3}) save_version(dir, step, {.keep = 2});
  EXPECT_EQ(steps_in(dir), (Names{"step-2", "step-3"}));
  for (const int step : {1, 2}) save_version(dir, step, {.keep = 1});  // a new run
  EXPECT_EQ(steps_in(dir).size(), 3u);
  expect_version(dir / "step-2", 2);
  expect_version(dir / "step-3", 3);
  EXPECT_EQ(find_latest_alone(dir)->step, 2);
}

TEST(Lineage, DamagedStepsDoNotCountForRetention) {
  TemporaryFolder folder;
  const fs::path& dir = folder.path();
  SavingRun before = SavingRun::anew(dir, 2);
  before.save_steps({250, 300});
  turn_a_bit(dir / "step-300");
  const FoundCheckpoint found = load_newest(dir, 250);
  ASSERT_EQ(found.skipped.size(), 1u);
  EXPECT_TRUE(has(found.skipped[0], "step-300: rank 0"));
  SavingRun after(dir, found.line, 2);
  after.save_steps({275});
  EXPECT_EQ(steps_in(dir), (Names{"step-250", "step-275", "step-300"}));
  // This also holds after a restart.
  SavingRun again(dir, load_newest(dir, 275).line, 3);
  again.save_steps({280});
  EXPECT_EQ(steps_in(dir), (Names{"step-250", "step-275", "step-280", "step-300"}));
  SavingRun last(dir, again.line(), 2);
  last.save_steps({290});
  EXPECT_EQ(steps_in(dir), (Names{"step-280", "step-290"}));
}

TEST(Lineage, FallBackReachesTheRunsOriginAndNoFurther) {
  TemporaryFolder folder;
  const fs::path& dir = folder.path();
  SavingRun old = SavingRun::anew(dir);
  old.save_steps({1, 2, 3});
  const RunStart fork = start_in(dir, dir / "step-2");
  EXPECT_NE(fork.line.run, old.line().run);
  ASSERT_EQ(fork.others.size(), 1u);
  SavingRun fresh(dir, fork.line);
  fresh.save_steps({4});
  turn_a_bit(dir / "step-4");
  EXPECT_EQ(load_newest(dir, 2).step, 2);  // not 3
  EXPECT_EQ(find_latest_alone(dir)->step, 2);
  // A run without an origin has nothing to fall back to: it does not use another run's steps.
  SavingRun alone = SavingRun::anew(dir);
  alone.save_steps({9});
  turn_a_bit(dir / "step-9");
  const std::string text = error_of([&] { find_latest_alone(dir); });
  EXPECT_TRUE(has(text, "is intact: step-9"));
  EXPECT_TRUE(has(text, "of another run (" + old.line().run + ")"));
}

TEST(Lineage, TheLastStepOfARunContinuesIt) {
  TemporaryFolder folder;
  SavingRun old = SavingRun::anew(folder.path() / "a");
  old.save_steps({1, 2});
  const RunStart same = start_in(folder.path() / "a", folder.path() / "a/step-2");
  EXPECT_EQ(same.line.run, old.line().run);
  EXPECT_EQ(same.line.parent, old.line().parent);
  EXPECT_TRUE(same.others.empty());
  EXPECT_NE(start_in(folder.path() / "b", folder.path() / "a/step-2").line.run, old.line().run);
  EXPECT_EQ(start_in(folder.path() / "a").others.size(), 1u);
}

TEST(Lineage, ALaunchFindsItsOwnRun) {
  TemporaryFolder folder;
  const fs::path& dir = folder.path();
  SavingRun mine(dir, {.run = new_run(), .launch = "00000000000000aa"});
  SavingRun other(dir, {.run = new_run(), .launch = "00000000000000bb"});
  mine.save_steps({5});
  other.save_steps({9});
  EXPECT_EQ(load_newest(dir, 5, {.launch = "00000000000000aa"}).step, 5);
  EXPECT_EQ(load_newest(dir, 9).step, 9);
  comm::run_local(1, [&](const auto& communicator) {
    EXPECT_FALSE(find_latest(*communicator, dir, {.launch = "00000000000000cc"}).has_value());
  });
}

// A manifest in the form without lineage.
void make_old(const fs::path& step) {
  nlohmann::json whole = nlohmann::json::parse(read_all(step / manifest_name));
  nlohmann::json& body = whole.at("manifest");
  ASSERT_EQ(body.erase("lineage"), 1u);
  whole.at("xxh3") = to_hex(checksum(body.dump()));
  write_all(step / manifest_name, whole.dump(1) + "\n");
}

TEST(Lineage, ManifestsWithoutLineageAreOneOldRun) {
  TemporaryFolder folder;
  const fs::path& dir = folder.path();
  for (const int step : {8, 9, 10}) {
    save_version(dir, step);
    make_old(dir / fmt::format("step-{}", step));
  }
  const FoundCheckpoint found = load_newest(dir, 10);
  EXPECT_EQ(found.line.run, unnamed_run);
  SavingRun next(dir, found.line, 2);
  next.save_steps({11});
  EXPECT_EQ(steps_in(dir), (Names{"step-10", "step-11"}));
  EXPECT_EQ(load_newest(dir, 11).step, 11);
}

TEST(Lineage, TheBestStepsAreKept) {
  TemporaryFolder folder;
  const fs::path& dir = folder.path();
  SavingRun run = SavingRun::anew(dir, 1);
  const std::vector<std::optional<double>> losses = {3.0, 1.0, 2.0, 1.5, {}, 4.0};
  for (int step = 1; step <= 6; ++step) {
    run.save_step(step, step, losses[static_cast<std::size_t>(step - 1)], 2);
  }
  EXPECT_EQ(steps_in(dir), (Names{"step-2", "step-4", "step-6"}));
  EXPECT_EQ(read_all(dir / "best"), "step-2\n");
  EXPECT_EQ(read_manifest(dir / "step-2").score, 1.0);
  // The best step of another run does not count.
  SavingRun other = SavingRun::anew(dir, 1);
  other.save_step(7, 7, 9.0, 1);
  EXPECT_EQ(read_all(dir / "best"), "step-7\n");
  EXPECT_EQ(steps_in(dir).size(), 4u);
}

// Reads of one step fail.
class FailingReads final : public SystemCalls {
 public:
  FailingReads(std::string part, int number) : part_(std::move(part)), number_(number) {}
  int open(const char* path, int flags, mode_t mode) override {
    if (std::string(path).find(part_) == std::string::npos) {
      return SystemCalls::open(path, flags, mode);
    }
    errno = number_;
    return -1;
  }

 private:
  std::string part_;
  int number_;
};

TEST(FallBack, OnlyDamageFallsBackAndAnIoErrorStops) {
  TemporaryFolder folder;
  const fs::path& dir = folder.path();
  for (const int step : {1, 2}) save_version(dir, step);
  const std::pair<int, const char*> failures[] = {
      {EACCES, "EACCES"}, {EIO, "EIO"}, {EMFILE, "EMFILE"}, {ESTALE, "ESTALE"}};
  for (const char* part : {"step-2/model.safetensors", "step-2/manifest.json"}) {
    for (const auto& [number, name] : failures) {
      FailingReads calls(part, number);
      comm::run_local(2, [&, name = name](const auto& communicator) {
        const ScopedSystemCalls scope(calls);
        RankState own = make_state(communicator->rank(), 2, 0, even_cut(), false);
        const std::string loading =
            error_of([&] { load_latest(*communicator, dir.string(), own.state); });
        EXPECT_TRUE(has(loading, name));
        EXPECT_TRUE(has(error_of([&] { find_latest(*communicator, dir.string()); }), name));
      });
    }
    FailingReads gone(part, ENOENT);
    comm::run_local(1, [&](const auto& communicator) {
      const ScopedSystemCalls scope(gone);
      EXPECT_EQ(find_latest(*communicator, dir.string())->step, 1);
    });
  }
}

TEST(FallBack, AMismatchIsNotDamage) {
  TemporaryFolder folder;
  for (const int step : {1, 2}) save_version(folder.path(), step);
  comm::run_local(1, [&](const auto& communicator) {
    RankState own = make_state(0, 1, 0, whole_cut(), false);
    own.state.model[0].shape = {13, 37};
    const std::string text =
        error_of([&] { load_latest(*communicator, folder.path().string(), own.state); });
    EXPECT_TRUE(has(text, "does not fit this run"));
  });
}

class CountingReads final : public SystemCalls {
 public:
  ssize_t pread(int fd, void* data, std::size_t bytes, off_t offset) override {
    const ssize_t got = SystemCalls::pread(fd, data, bytes, offset);
    bytes_ += got;
    return got;
  }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  std::atomic<std::int64_t> bytes_{0};
};

TEST(FallBack, ResumingReadsEachByteOnce) {
  TemporaryFolder folder;
  constexpr std::int64_t elements = 16 << 20;  // 64 MiB, so that headers are negligible
  std::vector<float> values(elements, 1.5f);
  State state;
  const auto piece = [&](std::vector<float>& memory) {
    return std::vector<Piece>{{0, elements, reinterpret_cast<std::byte*>(memory.data())}};
  };
  state.model.push_back({"weight", DType::float32, {elements}, piece(values)});
  CountingReads calls;
  comm::run_local(1, [&](const auto& communicator) {
    save(*communicator, folder.path().string(), 1, state, {});
    const ScopedSystemCalls scope(calls);
    std::vector<float> back(elements);
    state.model[0].pieces = piece(back);
    ASSERT_TRUE(load_latest(*communicator, folder.path().string(), state).has_value());
    EXPECT_EQ(back, values);
  });
  EXPECT_LT(calls.bytes(), elements * 4 * 11 / 10);
}

TEST(Names, OfStepsMovedAside) {
  EXPECT_EQ(parse_committed_name("step-7"), 7);
  EXPECT_EQ(parse_committed_name(aside_name(7, unnamed_run, 0)), 7);
  EXPECT_EQ(parse_committed_name(aside_name(7, unnamed_run, 3)), 7);
  for (const char* name : {"step-7.of-", "step-7.of-friends", "step-07.of-0000000000000000",
                           "step-7.of-0000000000000000/x", "step-7.bak"}) {
    EXPECT_FALSE(parse_committed_name(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace tessera::checkpoint
