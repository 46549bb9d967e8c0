// The exit code of main() by ts::run, and its messages.
#include "sharding/context/run.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "base/error.h"
#include "comm/history.h"
#include "sharding/context/failure.h"

namespace tessera {
namespace {

struct Said {
  int code;
  std::string err;
};

template <class Program>
Said said_by(Program&& program) {
  ::testing::internal::CaptureStderr();
  const int code = run(program);
  return {code, ::testing::internal::GetCapturedStderr()};
}

TEST(Run, ReturnsTheProgramsOwnCode) {
  EXPECT_EQ(said_by([] {}).code, 0);
  const Said seven = said_by([] { return 7; });
  EXPECT_EQ(seven.code, 7);
  EXPECT_EQ(seven.err, "");
}

TEST(Run, AnErrorIsOneLineAndItsCode) {
  const Said data = said_by([] { fail(ErrorCode::data, "corpus.txt: {} tokens are too few", 3); });
  EXPECT_EQ(data.code, 4);
  EXPECT_EQ(data.err, "tessera: error: corpus.txt: 3 tokens are too few\n");
  const Said misused = said_by([] { misuse("linear: x has {} features", 7); });
  EXPECT_EQ(misused.code, 1);
  EXPECT_EQ(misused.err, "tessera: error: linear: x has 7 features\n");
  EXPECT_EQ(said_by([] { throw std::bad_alloc(); }).code, 6);
  const Said other = said_by([] { throw std::runtime_error("my own"); });
  EXPECT_EQ(other.code, 1);
  EXPECT_EQ(other.err, "tessera: error: my own\n");
  EXPECT_EQ(said_by([] { throw 5; }).err,
            "tessera: error: an exception other than std::exception\n");
}

// Numbers that a process cannot end with, or that say that all went well.
TEST(Run, AnErrorNeverEndsWithZero) {
  for (const int number : {0, 256, 512, -256, -1}) {
    const Said said = said_by([&] { throw Error(static_cast<ErrorCode>(number), "my own"); });
    EXPECT_EQ(said.code, 1) << number;
    EXPECT_EQ(said.err, "tessera: error: my own\n");
  }
  EXPECT_EQ(said_by([] { throw Error(static_cast<ErrorCode>(77), "my own"); }).code, 77);
  EXPECT_EQ(said_by([] { return -1; }).code, -1);
}

TEST(Run, NamesFromOthersCannotMoveTheCursor) {
  const Said said =
      said_by([] { throw std::runtime_error("a\x1b[2Jb\ntessera: error: forged\x07"); });
  EXPECT_EQ(said.err, "tessera: error: a\\x1b[2Jb tessera: error: forged\\x07\n");
}

TEST(Run, AReaderThatHasLeftIsNotAnError) {
  const Said said =
      said_by([] { throw std::system_error(std::make_error_code(std::errc::broken_pipe)); });
  EXPECT_EQ(said.code, 0);
  EXPECT_EQ(said.err, "");
}

TEST(Run, ARankOfSeveralNamesItself) {
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "4", 1);
  const Said said = said_by([] { fail(ErrorCode::numeric, "the loss is nan"); });
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  EXPECT_EQ(said.code, 8);
  EXPECT_EQ(said.err, "tessera: rank 3: error: the loss is nan\n");
}

TEST(Run, UnderALauncherTheLineIsTheLaunchers) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  struct stat status {};
  ASSERT_EQ(fstat(ends[1], &status), 0);
  const std::string value = std::to_string(ends[1]) + ":" + std::to_string(status.st_ino);
  setenv(failure_pipe_variable, value.c_str(), 1);
  const Said said = said_by([] { fail(ErrorCode::checkpoint, "no room"); });
  unsetenv(failure_pipe_variable);
  char text[256] = {};
  ASSERT_GT(read(ends[0], text, sizeof text - 1), 0);
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(said.code, 5);
  EXPECT_EQ(said.err, "");
  EXPECT_NE(std::string(text).find("no room"), std::string::npos) << text;
}

TEST(Run, TheReportOfCollectivesHasItsOwnLines) {
  std::vector<comm::RankHistory> ranks(1);
  for (const char* name : {"gather", "world"}) {
    comm::Call call(comm::Op::barrier, {.step = 7});
    ranks[0].entries.emplace_back(name[0], 1, name, call);
  }
  const std::string report = comm::describe_histories(ranks);
  const std::string lines = in_lines("rank 1 died; look there; " + report);
  EXPECT_EQ(
      lines.find("rank 1 died; look there\n  the last 32 collectives of each rank: on 'gather'"),
      0u)
      << lines;
  EXPECT_NE(lines.find("\n    on 'world'"), std::string::npos) << lines;
  EXPECT_EQ(in_lines("one; line; on 'it'"), "one; line; on 'it'");
}

// A destructor cannot throw: its failure is the program's all the same.
TEST(Run, AFailureInADestructorIsTheProgramsCode) {
  struct Saver {
    bool prints = true;
    ~Saver() {
      try {
        fail(ErrorCode::checkpoint, "the disk is full");
      } catch (...) {
        report_from_destructor("the save failed", prints);
      }
    }
  };
  const Said said = said_by([] { const Saver saver; });
  EXPECT_EQ(said.code, 5);
  EXPECT_EQ(said.err, "tessera: error: the save failed: the disk is full\n");
  const Said silent = said_by([] { const Saver saver{.prints = false}; });
  EXPECT_EQ(silent.code, 5);
  EXPECT_EQ(silent.err, "");
  EXPECT_EQ(said_by([]() -> int {
              const Saver saver;
              return 7;
            }).code,
            7);
  EXPECT_EQ(said_by([] {}).code, 0);
}

}  // namespace
}  // namespace tessera
