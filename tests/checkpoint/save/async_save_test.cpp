// Saving during training: the bytes equal those of a synchronous save, whatever changes meanwhile
// and whatever fails.
#include "checkpoint/save/async_save.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "checkpoint/faulty_calls.h"
#include "checkpoint/steps/manifest.h"
#include "checkpoint/support.h"
#include "sharding/units/mixed_module.h"
#include "tests/support/processes.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using std::chrono::milliseconds;

ShardingOptions toy(bool in_files) {
  ShardingOptions options = tessera::testing::toy_options(Strategy::full_shard);
  if (in_files) {
    options.offload.parameters = Placement::file;
    options.offload.gradients = Placement::file;
    options.offload.optimizer = Placement::file;
    options.offload.folder = ::testing::TempDir();
    options.offload.piece_bytes = 8192;
  }
  return options;
}

// One rank's training of the toy.
class Toy {
 public:
  Toy(Context& context, bool in_files)
      : rank_(context.rank()),
        seeded_((manual_seed(5), true)),
        model_(fully_shard(net_, context, toy(in_files))),
        optimizer_(model_.parameters(), {.lr = 0.1}) {}

  void step() {
    const auto batch = tessera::testing::toy_batch(rank_ + 10 * ++steps_, 2);
    net_.loss(batch.ids, batch.targets).backward();
    optimizer_.step();
    optimizer_.zero_grad();
  }
  ShardedModel& model() { return model_; }
  optim::Optimizer& optimizer() { return optimizer_; }

 private:
  tessera::testing::OneThread one_thread_;
  int rank_;
  bool seeded_;
  tessera::testing::ToyTransformer net_;
  ShardedModel model_;
  optim::AdamW optimizer_;
  int steps_ = 0;
};

// Slow writes, so that training changes the state before it is on the disk.
class SlowWrites final : public SystemCalls {
 public:
  ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) override {
    std::this_thread::sleep_for(milliseconds(20));
    return SystemCalls::pwrite(fd, data, bytes, offset);
  }
};

void expect_equal_files(const fs::path& one, const fs::path& other) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(one)) {
    const std::string name = entry.path().filename();
    if (name == manifest_name) continue;
    EXPECT_EQ(read_all(one / name), read_all(other / name)) << name;
    ++files;
  }
  EXPECT_GE(files, 2);
  const Manifest a = read_manifest(one), b = read_manifest(other);
  EXPECT_EQ(a.scalars, b.scalars);
  for (const FileRecord& file : a.files) {
    EXPECT_EQ(file.chunks, b.file(file.name).chunks);
    EXPECT_EQ(file.cuts, b.file(file.name).cuts);
  }
}

TEST(AsyncSave, WritesTheBytesOfTheSynchronousSave) {
  for (const bool in_files : {false, true}) {
    for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
      for (const int world : {1, 2, 3}) {
        SCOPED_TRACE(
            fmt::format("files {}, type {}, {} ranks", in_files, static_cast<int>(type), world));
        const TemporaryFolder folder;
        SlowWrites slow;
        launch(world, [&](Context& context) {
          Toy toy(context, in_files);
          AsyncSaver saver(context, toy.model(), toy.optimizer());
          for (int step = 1; step <= 2; ++step) {
            toy.step();
            tessera::SaveOptions what{.step = step, .type = type, .model_dtype = bfloat16};
            what.scalars.set("step", step);
            tessera::save(context, folder.path() / "now", toy.model(), toy.optimizer(), what);
            const ScopedSystemCalls scope(slow);
            (void)saver.save(folder.path() / "meanwhile", what);
            EXPECT_TRUE(saver.in_flight());
            toy.step();
            toy.step();
          }
          EXPECT_EQ(saver.wait()->saved.path, folder.path() / "meanwhile/step-2");
          EXPECT_FALSE(saver.wait().has_value());
        });
        for (const char* step : {"step-1", "step-2"}) {
          expect_equal_files(folder.path() / "now" / step, folder.path() / "meanwhile" / step);
        }
      }
    }
  }
}

TEST(AsyncSave, IsOneAtATime) {
  const TemporaryFolder folder;
  SlowWrites slow;
  launch(2, [&](Context& context) {
    Toy toy(context, false);
    AsyncSaver saver(context, toy.model(), toy.optimizer());
    toy.step();
    const ScopedSystemCalls scope(slow);
    EXPECT_EQ(saver.save(folder.path(), {.step = 1}).waited_seconds > 0.02, false);
    EXPECT_GT(saver.save(folder.path(), {.step = 2}).waited_seconds, 0.02);
  });
  EXPECT_EQ(find_latest_alone(folder.path())->step, 2);
  verify(folder.path() / "step-1");
}

TEST(AsyncSave, ThatFailsIsReportedAtTheNextAndKeepsTheLast) {
  const TemporaryFolder folder;
  std::vector<std::string> errors(2);
  FaultyCalls broken(Fault::errors_on, 12, ENOSPC);
  launch(2, [&](Context& context) {
    Toy toy(context, false);
    AsyncSaver saver(context, toy.model(), toy.optimizer());
    toy.step();
    (void)saver.save(folder.path(), {.step = 1});
    (void)saver.wait();
    {
      const ScopedSystemCalls scope(broken);
      (void)saver.save(folder.path(), {.step = 2});
      while (!saver.ended()) std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_TRUE(saver.failed());
    errors[static_cast<std::size_t>(context.rank())] =
        error_of([&] { (void)saver.save(folder.path(), {.step = 3}); });
    EXPECT_FALSE(saver.in_flight());
    (void)saver.save(folder.path(), {.step = 3});  // and training continues
  });
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_TRUE(has(errors[0], "step-2"));
  EXPECT_TRUE(has(errors[0], "ENOSPC"));
  verify(folder.path() / "step-1");
  EXPECT_EQ(find_latest_alone(folder.path())->step, 3);
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    EXPECT_EQ(entry.path().string().find(".partial-"), std::string::npos) << entry.path();
  }
}

TEST(AsyncSave, IsFinishedWhenAnExceptionIsThrown) {
  const TemporaryFolder folder;
  SlowWrites slow;
  EXPECT_THROW(launch(2,
                      [&](Context& context) {
                        Toy toy(context, false);
                        AsyncSaver saver(context, toy.model(), toy.optimizer());
                        toy.step();
                        const ScopedSystemCalls scope(slow);
                        (void)saver.save(folder.path(), {.step = 1});
                        throw std::runtime_error("the loss is not finite");
                      }),
               std::runtime_error);
  verify(folder.path() / "step-1");
}

TEST(AsyncSave, BelongsToTheParentAfterAFork) {
  const TemporaryFolder folder;
  SlowWrites slow;
  launch(1, [&](Context& context) {
    Toy toy(context, false);
    auto saver = std::make_unique<AsyncSaver>(context, toy.model(), toy.optimizer());
    toy.step();
    const ScopedSystemCalls scope(slow);
    (void)saver->save(folder.path(), {.step = 1});
    tessera::testing::Processes child(1, [&](int, std::atomic<int>&) {
      EXPECT_THROW((void)saver->wait(), std::logic_error);
      saver.reset();  // would wait for the thread that saves
    });
    const auto outcome = child.wait(std::chrono::seconds(20)).front();
    EXPECT_FALSE(outcome.timed_out);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
    EXPECT_TRUE(saver->wait().has_value());
  });
  EXPECT_TRUE(fs::exists(folder.path() / "step-1" / manifest_name));
}

TEST(AsyncSave, IsAbandonedWhenARankIsGone) {
  const TemporaryFolder folder;
  SlowWrites slow;
  EXPECT_THROW(launch(2,
                      [&](Context& context) {
                        Toy toy(context, false);
                        AsyncSaver saver(context, toy.model(), toy.optimizer());
                        toy.step();
                        const ScopedSystemCalls scope(slow);
                        (void)saver.save(folder.path(), {.step = 1});
                        context.communicator().abort("it had enough");
                        toy.step();
                      }),
               Error);
  // Each step is complete or absent, and there is nothing else.
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    EXPECT_EQ(entry.path().string().find(".partial-"), std::string::npos) << entry.path();
  }
  EXPECT_TRUE(!fs::exists(folder.path() / "step-1") || find_latest_alone(folder.path()));
}

// Trains, saves step 2 asynchronously with these calls, and continues to train.
void save_second(const fs::path& dir, FaultyCalls& calls, int world,
                 std::vector<std::string>* errors = nullptr) {
  launch(world, [&](Context& context) {
    Toy toy(context, false);
    AsyncSaver saver(context, toy.model(), toy.optimizer());
    toy.step();
    {
      const ScopedSystemCalls scope(calls);
      (void)saver.save(dir, {.step = 2, .keep = 1, .files = {{"config.json", "{}"}}});
    }
    toy.step();
    try {
      (void)saver.wait();
    } catch (const Error& error) {
      if (errors == nullptr) throw;
      (*errors)[static_cast<std::size_t>(context.rank())] = error.what();
    }
  });
}

void save_first(const fs::path& dir) {
  launch(1, [&](Context& context) {
    Toy toy(context, false);
    tessera::save(context, dir, toy.model(), toy.optimizer(), {.step = 1});
  });
}

void expect_first_or_second(const fs::path& dir) {
  const auto found = find_latest_alone(dir);  // which verifies
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->step == 1 || found->step == 2);
}

TEST(AsyncSaveFaults, DiesAtEveryCall) {
  const TemporaryFolder folder;
  save_first(folder.path() / "base");
  const fs::path dir = folder.path() / "checkpoints";
  const auto reset = [&] {
    fs::remove_all(dir);
    fs::copy(folder.path() / "base", dir, fs::copy_options::recursive);
  };
  reset();
  FaultyCalls counting(Fault::none, 0);
  save_second(dir, counting, 1);
  const int total = counting.calls();
  EXPECT_GT(total, 20);
  for (const Fault fault : {Fault::kill, Fault::power_loss}) {
    die_at_every_call(
        fault, total, reset, [&](FaultyCalls& calls) { save_second(dir, calls, 1); },
        [&] {
          expect_first_or_second(dir);
          FaultyCalls none(Fault::none, 0);
          save_second(dir, none, 1);
          EXPECT_EQ(find_latest_alone(dir)->step, 2);
          EXPECT_EQ(std::distance(fs::directory_iterator(dir), fs::directory_iterator()), 3)
              << "besides .lock and latest, the step alone";
        });
    if (HasFailure()) return;
  }
}

TEST(AsyncSaveFaults, FailsAtEveryCall) {
  const TemporaryFolder folder;
  save_first(folder.path() / "base");
  const fs::path dir = folder.path() / "checkpoints";
  const auto reset = [&] {
    fs::remove_all(dir);
    fs::copy(folder.path() / "base", dir, fs::copy_options::recursive);
  };
  reset();
  FaultyCalls counting(Fault::none, 0);
  save_second(dir, counting, 2);
  for (const int error_number : {EIO, ENOSPC}) {
    for (int k = 1; k <= counting.calls(); ++k) {
      SCOPED_TRACE(fmt::format("call {} of {}, errno {}", k, counting.calls(), error_number));
      reset();
      FaultyCalls calls(Fault::error, k, error_number);
      std::vector<std::string> errors(2);
      save_second(dir, calls, 2, &errors);
      EXPECT_EQ(errors[0], errors[1]);
      // A failure after the commit is not an error.
      if (errors[0].empty()) {
        EXPECT_EQ(find_latest_alone(dir)->step, 2);
      } else {
        EXPECT_TRUE(has(errors[0], error_number == EIO ? "EIO" : "ENOSPC"));
      }
      expect_first_or_second(dir);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace tessera::checkpoint
