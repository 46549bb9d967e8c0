// `tessera tokenize` as a worker of other systems: reads standard input, writes a shard of a
// corpus, may be killed at any time and run again.
#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include "engine/data/corpus.h"
#include "engine/data/token_shards.h"
#include "tests/cli/disk_testing.h"
#include "tests/cli/training_testing.h"
#include "tests/support/expect_parts.h"
#include "tokenizers/load.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::run_program;
using testing::TemporaryFolder;

std::string fixture_tokenizer(const std::string& name) {
  return std::string(std::getenv("TESSERA_SOURCE_DIR")) + "/tests/tokenizers/fixtures/" + name;
}

// While it lives, programs that are started read what is written into it.
class InputPipe {
 public:
  InputPipe() : before_(::dup(STDIN_FILENO)) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    write_end_ = ends[1];
    ::dup2(ends[0], STDIN_FILENO);
    ::close(ends[0]);
  }
  ~InputPipe() {
    close();
    ::dup2(before_, STDIN_FILENO);
    ::close(before_);
  }
  InputPipe(const InputPipe&) = delete;
  InputPipe& operator=(const InputPipe&) = delete;

  void write(const std::string& bytes) const {
    ASSERT_LE(bytes.size(), 65'536U) << "a pipe holds no more";
    ASSERT_EQ(::write(write_end_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  void close() {
    if (write_end_ >= 0) ::close(write_end_);
    write_end_ = -1;
  }

 private:
  int before_;
  int write_end_ = -1;
};

using Options = std::vector<std::string>;

Options piped_arguments(const Options& options, const std::string& tokenizer) {
  Options arguments = {"tokenize", "-", "--tokenizer", tokenizer};
  arguments.insert(arguments.end(), options.begin(), options.end());
  return arguments;
}

Ended tokenize_piped(const std::string& input, const Options& options,
                     const std::string& tokenizer = "bytes") {
  InputPipe pipe;
  pipe.write(input);
  pipe.close();
  return run_program(piped_arguments(options, tokenizer));
}

std::vector<std::int32_t> ids_in(const Corpus& corpus) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(corpus.tokens()));
  corpus.read(0, ids);
  return ids;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(TokenizeShards, APipeIsReadAsAFile) {
  const TemporaryFolder folder;
  const std::string text = "The king sees the queen;\n\nit's the 3rd \u00e9t\u00e9.\n";
  const std::string gpt2 = fixture_tokenizer("gpt2.json");
  const std::string out = (folder / "a.tokens").string();
  const Ended ended = tokenize_piped(text, {"--out", out}, gpt2);
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ids_in(Corpus(out, ByteTokenizer())), tokenizers::load_tokenizer(gpt2)->encode(text));
  const std::string listing = (folder / "ids.json").string();
  EXPECT_EQ(tokenize_piped("ab\nc", {"--lines", "--json", listing}).code, 0);
  EXPECT_EQ(testing::read_text(listing), "[[97,98],\n[99]]\n");
}

TEST(TokenizeShards, ARunTrainsOnAFolderOfThem) {
  const testing::TrainingFolder folder;
  const std::string text = testing::sample_text(20'000);
  const std::string out = folder.path("corpus/tokens");
  const std::size_t ends[] = {7'000, 7'000, 20'000};
  for (std::size_t i = 0, begin = 0; i < 3; begin = ends[i++]) {
    const Ended ended = tokenize_piped(text.substr(begin, ends[i] - begin),
                                       {"--out", out, "--shard", std::to_string(i + 1) + "/3"});
    ASSERT_EQ(ended.code, 0) << ended.err;
    EXPECT_NE(ended.out.find("of-00003.tokens: "), std::string::npos) << ended.out;
  }
  EXPECT_EQ(names_in(out), (std::vector<std::string>{"tokens-00001-of-00003.tokens",
                                                     "tokens-00002-of-00003.tokens",
                                                     "tokens-00003-of-00003.tokens"}));
  std::vector<std::string> steps;
  for (const std::string& data : {folder.path("text.txt"), out, out + "/*.tokens"}) {
    const std::string log = folder.path("m.jsonl");
    fs::remove(log);
    testing::train(2, folder.small() + testing::Settings{{"data.train", data}, {"log.jsonl", log}});
    for (const auto& step : testing::metrics_in(log)) {
      steps.push_back(step.at("loss").dump() + step.at("grad_norm").dump());
    }
  }
  ASSERT_EQ(steps.size(), 9U);
  for (std::size_t i = 3; i < 9; ++i) EXPECT_EQ(steps[i], steps[i % 3]);
  fs::remove(out + "/tokens-00002-of-00003.tokens");
  const Ended ended = run_program(
      testing::train_arguments(folder.small() + testing::Settings{{"data.train", out}}));
  EXPECT_EQ(ended.code, 4);
  testing::expect_parts(ended.err, {"1 of the 3 shards are missing: 2", "--shard 2/3"});
}

TEST(TokenizeShards, AClosedInputIsRefused) {
  const TemporaryFolder folder;
  const int before = ::dup(STDIN_FILENO);
  ::close(STDIN_FILENO);
  const Ended ended =
      run_program(piped_arguments({"--out", (folder / "a.tokens").string()}, "bytes"));
  ::dup2(before, STDIN_FILENO);
  ::close(before);
  EXPECT_EQ(ended.code, 4);
  EXPECT_EQ(ended.err,
            "tessera: error: standard input is closed; pipe the text into this command\n");
}

TEST(TokenizeShards, TextsOfJsonLines) {
  const TemporaryFolder folder;
  const std::string out = folder.path().string();
  const std::string line = R"({"meta": {"text": "The king"}})"
                           "\n";
  for (const std::string number : {"1", "2"}) {
    ASSERT_EQ(
        tokenize_piped(line, {"--column", "meta.text", "--out", out, "--shard", number + "/2"},
                       fixture_tokenizer("gpt2.json"))
            .code,
        0);
  }
  const auto tokenizer = tokenizers::load_tokenizer(fixture_tokenizer("gpt2.json"));
  auto text = tokenizer->encode("The king");
  text.push_back(tokenizer->end_of_text().value());
  auto twice = text;
  twice.insert(twice.end(), text.begin(), text.end());
  EXPECT_EQ(ids_in(Corpus(find_token_shards({out}), *tokenizer)), twice);
}

TEST(TokenizeShards, BadInputIsOneLineAndLeavesNothing) {
  const TemporaryFolder folder;
  const std::string out = (folder / "out").string();
  const Options shard = {"--out", out, "--shard", "2/3"};
  const Options rows = {"--out", out, "--shard", "2/3", "--column", "text"};
  const std::string gpt2 = fixture_tokenizer("gpt2.json");
  folder.write("file", "x");
  fs::create_directory(folder / "other");
  folder.write("other/tokens-00002-of-00003.tokens", "something else");
  struct Case {
    std::string input;
    Options options;
    std::string tokenizer;
    int code;
    std::string part;
  };
  const std::vector<Case> cases = {
      {"caf\xc3", shard, gpt2, 4,
       "standard input ends in the middle of a character of UTF-8, at byte 4"},
      {"\xf0\x9f\x92", shard, gpt2, 4, "in the middle of a character"},
      {"{\"text\": \"caf\xc3", rows, gpt2, 4, "standard input, line 1': not valid JSON"},
      {std::string("{\"text\": \"\0\"}", 13), rows, gpt2, 4, "standard input, line 1'"},
      {"{\"txt\": 1}", rows, gpt2, 4, "no column text; it has txt"},
      {"text", rows, "bytes", 4, "line 1': not valid JSON"},
      {"text", {"--out", out, "--shard", "0/0"}, "bytes", 2, "--shard 0/0: give I/N"},
      {"text", {"--out", out, "--shard", "5/3"}, "bytes", 2, "--shard 5/3: give I/N"},
      {"text", {"--out", out, "--shard", "x"}, "bytes", 2, "--shard x: give I/N"},
      {"text", {"--shard", "1/3"}, "bytes", 2, "give --out"},
      {"text", {"--lines", "--json", out, "--shard", "1/3"}, "bytes", 2, "--lines"},
      {"text", {"--out", (folder / "file").string(), "--shard", "1/3"}, "bytes", 3, "is a folder"},
      {"text",
       {"--out", (folder / "other").string(), "--shard", "2/3"},
       "bytes",
       3,
       "exists and has another format"},
      {"", {"--out", out}, "bytes", 4, "standard input gives no tokens"},
  };
  for (const Case& one : cases) {
    const Ended ended = tokenize_piped(one.input, one.options, one.tokenizer);
    EXPECT_EQ(ended.code, one.code) << ended.err;
    EXPECT_NE(ended.err.find(one.part), std::string::npos) << ended.err << one.part;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_TRUE(!fs::is_directory(out) || names_in(out).empty()) << one.part;
  }
  EXPECT_EQ(testing::read_text(folder / "file"), "x");
  EXPECT_EQ(testing::read_text(folder / "other/tokens-00002-of-00003.tokens"), "something else");
  // Bytes that are no text are tokens of the tokenizer bytes; so is NUL of every tokenizer.
  EXPECT_EQ(tokenize_piped("caf\xc3", shard).code, 0);
  EXPECT_EQ(tokenize_piped(std::string("a\0b", 3), shard, gpt2).code, 0);
}

TEST(TokenizeShards, AnEarlierShardIsReplacedWhenTheNewOneIsWhole) {
  const TemporaryFolder folder;
  const Options rows = {"--out", folder.path().string(), "--shard", "1/1", "--column", "text"};
  const fs::path file = token_shard_path(folder.path(), {1, 1});
  for (const std::string text : {"one", "two", "two"}) {
    ASSERT_EQ(tokenize_piped("{\"text\": \"" + text + "\"}\n", rows).code, 0);
    EXPECT_TRUE(testing::read_text(file).ends_with(std::string({text[0], 0, text[1]})  // u16
                                                   + std::string({0, text[2], 0, '\n', 0})));
  }
  const std::string before = testing::read_text(file);
  EXPECT_EQ(tokenize_piped("{\"text\": \"three\"}\n{", rows).code, 4);
  EXPECT_EQ(testing::read_text(file), before);
  EXPECT_EQ(names_in(folder.path()).size(), 1U);
}

TEST(TokenizeShards, AFullDiskLeavesTheEarlierShard) {
  const testing::TrainingFolder folder;
  const testing::SmallDisk disk(folder.path("disk"), "16k");
  if (!disk.mounted()) GTEST_SKIP() << "no file system can be mounted";
  const Options shard = {"--out", folder.path("disk"), "--shard", "1/1"};
  ASSERT_EQ(tokenize_piped("small", shard).code, 0);
  const Ended ended = tokenize_piped(testing::sample_text(40'000), shard);
  EXPECT_EQ(ended.code, 5) << ended.err;
  testing::expect_parts(ended.err, {"tokens-00001-of-00001.tokens", "No space left on device"});
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  EXPECT_EQ(Corpus(find_token_shards({folder.path("disk")}), ByteTokenizer()).tokens(), 5);
  EXPECT_EQ(names_in(folder.path("disk")).size(), 1U);
}

TEST(TokenizeShards, ASignalEndsTheWaitForInput) {
  const TemporaryFolder folder;
  const InputPipe pipe;
  pipe.write("some text");
  testing::Program program(
      piped_arguments({"--out", folder.path().string(), "--shard", "1/1"}, "bytes"));
  // The stream is opened, so the program reads its input.
  ASSERT_TRUE(testing::eventually([&] { return names_in(folder.path()).size() == 1; }));
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  EXPECT_EQ(program.err(), "tessera: stopped by signal 15\n");
  EXPECT_TRUE(names_in(folder.path()).empty());
}

bool changes_files(const __ptrace_syscall_info& call) {
  const auto number = static_cast<long>(call.entry.nr);
  if (number == SYS_openat) return (call.entry.args[2] & O_CREAT) != 0;
#ifdef SYS_rename
  if (number == SYS_rename || number == SYS_unlink || number == SYS_mkdir) return true;
#endif
  return number == SYS_renameat || number == SYS_renameat2 || number == SYS_unlinkat ||
         number == SYS_mkdirat || number == SYS_pwrite64 || number == SYS_flock ||
         number == SYS_fsync || number == SYS_ftruncate;
}

// Runs the program and kills it before its k-th call that changes files. Returns false if it ended
// before; sets `traced` to false where no process can be traced.
bool killed_at(int k, const Options& arguments, bool& traced) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(126);
    const int silent = ::open("/dev/null", O_WRONLY);
    ::dup2(silent, STDOUT_FILENO);
    std::string program = testing::program_path();
    std::vector<char*> pointers = {program.data()};
    for (const std::string& argument : arguments)
      pointers.push_back(const_cast<char*>(argument.data()));
    pointers.push_back(nullptr);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  int status = 0;
  int calls = 0;
  traced =
      ::waitpid(child, &status, 0) == child && WIFSTOPPED(status) &&
      ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0;
  int signal = 0;
  while (traced && ::ptrace(PTRACE_SYSCALL, child, nullptr, signal) == 0) {
    if (::waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) break;
    signal = 0;
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
      signal = WSTOPSIG(status);
      continue;
    }
    __ptrace_syscall_info call{};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof(call), &call) <= 0) {
      traced = false;
    } else if (call.op == PTRACE_SYSCALL_INFO_ENTRY && changes_files(call) && ++calls == k) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return true;
    }
  }
  if (!traced) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  return false;
}

TEST(TokenizeShards, KilledAtAnyCallItLeavesAWholeShardOrNone) {
  const TemporaryFolder folder;
  const fs::path out = folder / "out";
  const Options shard = {"--out", out.string(), "--shard", "1/1"};
  const fs::path file = token_shard_path(out, {1, 1});
  const std::string text = testing::sample_text(3'000);
  ASSERT_EQ(tokenize_piped("earlier", shard).code, 0);
  const std::string earlier = testing::read_text(file);
  ASSERT_EQ(tokenize_piped(text, shard).code, 0);
  const std::string whole = testing::read_text(file);
  for (const bool again : {false, true}) {
    int k = 1;
    for (bool traced = true;; ++k) {
      SCOPED_TRACE(k);
      fs::remove_all(out);
      if (again) {
        ASSERT_EQ(tokenize_piped("earlier", shard).code, 0);
      }
      {
        InputPipe pipe;
        pipe.write(text);
        pipe.close();
        const bool killed = killed_at(k, piped_arguments(shard, "bytes"), traced);
        if (!traced) GTEST_SKIP() << "no process can be traced here";
        if (!killed) break;
      }
      const std::string found = fs::exists(file) ? testing::read_text(file) : "";
      EXPECT_TRUE(found == whole || found == (again ? earlier : "")) << found.size();
      ASSERT_EQ(tokenize_piped(text, shard).code, 0);
      EXPECT_EQ(testing::read_text(file), whole);
      EXPECT_EQ(names_in(out).size(), 1U);
    }
    // The folder, the file, its lock, its ids and header, fsync, rename, and the folder's fsync.
    EXPECT_GT(k, again ? 7 : 8);
  }
}

}  // namespace
}  // namespace tessera::cli
