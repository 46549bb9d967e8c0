// `tessera train --metrics`: a second place for the lines of log.jsonl, and pipes.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "checkpoint/steps/lineage.h"
#include "tests/cli/training_testing.h"

namespace tessera::logs {
namespace {

using testing::Settings;
using testing::TrainingFolder;

std::vector<std::string> with_metrics(const Settings& settings, const std::string& place) {
  std::vector<std::string> arguments = testing::train_arguments(settings);
  arguments.insert(arguments.end(), {"--metrics", place});
  return arguments;
}

// A pipe and its reader.
class Pipe {
 public:
  explicit Pipe(std::string path) : path_(std::move(path)) {
    EXPECT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    reader_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    EXPECT_GE(reader_, 0);
    EXPECT_GT(::fcntl(reader_, F_SETPIPE_SZ, 4096), 0);  // full after some 15 steps
  }
  ~Pipe() { close(); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  void close() {
    if (reader_ >= 0) ::close(std::exchange(reader_, -1));
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  // Reads the bytes that the pipe holds now. It does not wait for more.
  [[nodiscard]] std::string read() const {
    std::string text(1 << 16, '\0');
    const ssize_t got = ::read(reader_, text.data(), text.size());
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }

 private:
  std::string path_;
  int reader_ = -1;
};

TEST(MetricsOption, CopiesTheLinesOfTheLog) {
  const TrainingFolder folder;
  const Settings settings = folder.small() + Settings{{"log.jsonl", folder.path("m.jsonl")},
                                                      {"data.valid", folder.path("text.txt")},
                                                      {"train.eval_every", "2"}};
  const auto ended =
      testing::run_program(testing::launched(2, with_metrics(settings, folder.path("copy.jsonl"))));
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_GT(testing::lines_of(folder.path("m.jsonl")), 3);  // steps and evaluations
  EXPECT_EQ(testing::read_text(folder.path("copy.jsonl")),
            testing::read_text(folder.path("m.jsonl")));
}

TEST(MetricsOption, NeedsAFileOfItsOwn) {
  const TrainingFolder folder;
  const auto ended = testing::run_program(with_metrics(
      folder.small() + Settings{{"log.jsonl", folder.path("m.jsonl")}}, folder.path("m.jsonl")));
  EXPECT_EQ(ended.code, 3) << ended.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path("m.jsonl")));
}

TEST(MetricsOption, ARunSavesAndEndsWithTheReaderOfItsPipe) {
  const TrainingFolder folder;
  Pipe pipe(folder.path("pipe"));
  testing::Program program(
      testing::launched(
          2, with_metrics(folder.small() + Settings{{"train.steps", "1000000"},
                                                    {"checkpoint.dir", folder.path("run")},
                                                    {"checkpoint.every", "1000000"}},
                          pipe.path())),
      {{"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(testing::eventually([&] { return !pipe.read().empty(); })) << program.err();
  pipe.close();
  EXPECT_EQ(program.wait(), 1);
  EXPECT_NE(program.err().find("stopped by the end of a log's reader after saving step "),
            std::string::npos)
      << program.err();
  EXPECT_EQ(checkpoint::list_committed(folder.path("run")).steps.size(), 1u);
  EXPECT_NE(program.err().find("--metrics: " + pipe.path()), std::string::npos) << program.err();
  EXPECT_NE(program.err().find("EPIPE"), std::string::npos) << program.err();
}

// The run must not end the file of a reader that waits for a writer.
TEST(MetricsOption, AReaderThatWaitsForTheRunGetsAllLines) {
  const TrainingFolder folder;
  const std::string path = folder.path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::string lines;
  std::thread reader([&] {
    std::ifstream pipe(path);  // waits
    lines.assign(std::istreambuf_iterator<char>(pipe), {});
  });
  const testing::Ended ended = testing::run_program(with_metrics(folder.small(), path));
  EXPECT_EQ(ended.code, 0) << ended.err;
  reader.join();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3) << lines;
}

// Before it no reader could have ended.
TEST(MetricsOption, ARunGoesOnBeforeItsPipeHasAReader) {
  const TrainingFolder folder;
  const std::string path = folder.path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  testing::Program program(
      with_metrics(folder.small() +
                       Settings{{"train.steps", "1000000"}, {"log.jsonl", folder.path("m.jsonl")}},
                   path),
      {{"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(testing::eventually([&] { return testing::lines_of(folder.path("m.jsonl")) > 1; }))
      << program.err();
  std::ifstream reader(path);
  std::string line;
  ASSERT_TRUE(std::getline(reader, line)) << program.err();
  EXPECT_TRUE(line.starts_with(R"({"step": 1,)")) << line;
  reader.close();
  EXPECT_EQ(program.wait(), 1);
  EXPECT_NE(program.err().find("EPIPE"), std::string::npos) << program.err();
}

// Peers wait for the rank that waits for the reader, and none of them takes it for one that hangs.
void check_slow_reader(const Settings& logs, const std::vector<std::string>& options,
                       const Pipe& pipe, const TrainingFolder& folder) {
  const Settings settings = folder.small() + logs +
                            Settings{{"model.n_layer", "1"},
                                     {"model.n_embd", "16"},
                                     {"model.seq_len", "8"},
                                     {"data.batch_size", "1"},
                                     {"train.steps", "200"}};
  std::vector<std::string> arguments = testing::train_arguments(settings);
  arguments.insert(arguments.end(), options.begin(), options.end());
  testing::Program program(testing::launched(2, arguments),
                           {{"OMP_NUM_THREADS", "1"}, {"TESSERA_STANDSTILL_TIMEOUT", "1"}});
  std::string lines;
  ASSERT_TRUE(testing::eventually([&] { return !(lines += pipe.read()).empty(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));  // the pipe is full
  const auto all = [&] {
    lines += pipe.read();
    return lines.find("\n200,") != std::string::npos ||
           lines.find(R"({"step": 200,)") != std::string::npos;
  };
  EXPECT_TRUE(testing::eventually(all)) << program.err();
  EXPECT_EQ(program.wait(), 0) << program.err();
}

TEST(MetricsOption, ASlowReaderDelaysTheRun) {
  const TrainingFolder folder;
  const Pipe pipe(folder.path("pipe"));
  check_slow_reader({}, {"--metrics", pipe.path()}, pipe, folder);
}

TEST(MetricsOption, ASlowReaderOfTheTableDelaysTheRun) {
  const TrainingFolder folder;
  const Pipe pipe(folder.path("pipe"));
  check_slow_reader({{"log.csv", pipe.path()}}, {}, pipe, folder);
}

}  // namespace
}  // namespace tessera::logs
