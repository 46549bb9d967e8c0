// `tessera convert`, `inspect` and `verify` as a user runs them: output, exit codes, memory use and
// files on the disk.
#include <sys/resource.h>

#include <algorithm>

#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/state/scalars_json.h"
#include "checkpoint/steps/manifest.h"
#include "tests/cli/training_testing.h"
#include "tests/support/sanitizers.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::eventually;
using testing::losses_in;
using testing::Program;
using testing::program_path;
using testing::read_text;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::TrainingFolder;

// A Hugging Face folder with sparse weights: `tensors` of [rows, 1024] fp32 zeros.
void write_holes(const fs::path& folder, int tensors, std::int64_t rows) {
  fs::create_directories(folder);
  std::vector<checkpoint::TensorSpec> specs;
  for (int i = 0; i < tensors; ++i) {
    specs.push_back({"layer." + std::to_string(i), float32, {rows, 1024}});
  }
  const auto header = checkpoint::compose_safetensors_header(specs);
  std::ofstream(folder / "model.safetensors", std::ios::binary) << header.bytes;
  fs::resize_file(folder / "model.safetensors", header.file_bytes);
}

// GPT-2 of one layer with sparse weights, 180 MiB of fp32 zeros.
void write_gpt2_holes(const fs::path& folder) {
  fs::create_directories(folder);
  constexpr std::int64_t w = 1024;
  std::vector<checkpoint::TensorSpec> specs{{"transformer.wte.weight", float32, {32768, w}},
                                            {"transformer.wpe.weight", float32, {1024, w}},
                                            {"transformer.ln_f.weight", float32, {w}},
                                            {"transformer.ln_f.bias", float32, {w}}};
  for (const auto& [name, shape] :
       std::vector<std::pair<std::string, std::vector<std::int64_t>>>{{"ln_1", {w}},
                                                                      {"attn.c_attn", {w, 3 * w}},
                                                                      {"attn.c_proj", {w, w}},
                                                                      {"ln_2", {w}},
                                                                      {"mlp.c_fc", {w, 4 * w}},
                                                                      {"mlp.c_proj", {4 * w, w}}}) {
    specs.push_back({"transformer.h.0." + name + ".weight", float32, shape});
    specs.push_back({"transformer.h.0." + name + ".bias", float32, {shape.back()}});
  }
  const auto header = checkpoint::compose_safetensors_header(specs);
  std::ofstream(folder / "model.safetensors", std::ios::binary) << header.bytes;
  fs::resize_file(folder / "model.safetensors", header.file_bytes);
  std::ofstream(folder / "config.json")
      << R"({"model_type":"gpt2","architectures":["GPT2LMHeadModel"],"vocab_size":32768,)"
      << R"("n_positions":1024,"n_embd":1024,"n_layer":1,"n_head":16})";
}

// A matrix of 128 MiB in fp8 with the scales of its blocks, all zero.
void write_fp8_holes(const fs::path& folder) {
  fs::create_directories(folder);
  std::string header =
      R"({"a.weight":{"dtype":"F8_E4M3","shape":[131072,1024],"data_offsets":[0,134217728]},)"
      R"("a.weight_scale_inv":{"dtype":"F32","shape":[1024,8],)"
      R"("data_offsets":[134217728,134250496]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size() & 255);
  length[1] = static_cast<char>(header.size() >> 8);
  std::ofstream(folder / "model.safetensors", std::ios::binary) << length << header;
  fs::resize_file(folder / "model.safetensors", 8 + header.size() + 134250496);
  std::ofstream(folder / "config.json")
      << R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}})";
}

std::vector<std::string> names_beside(const fs::path& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path.parent_path())) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Settings saved_in(const TrainingFolder& folder, const std::string& name, int steps) {
  return folder.small() + Settings{{"checkpoint.dir", folder.path(name)},
                                   {"checkpoint.every", "3"},
                                   {"checkpoint.state_dict_type", "SHARDED_STATE_DICT"},
                                   {"log.jsonl", folder.path(name + ".jsonl")},
                                   {"train.steps", std::to_string(steps)}};
}

TEST(ConvertCommand, ConvertedTrainingContinuesBitForBit) {
  const TrainingFolder folder;
  train(2, saved_in(folder, "whole", 6));
  const Ended done = run_program(
      {"convert", folder.path("whole/step-3"), folder.path("full"), "--to", "full", "--verify"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("read again and compared"), std::string::npos) << done.out;
  const Ended resumed =
      train(2, saved_in(folder, "rest", 6) + Settings{{"checkpoint.resume", folder.path("full")}});
  EXPECT_NE(resumed.err.find("resumed from " + folder.path("full")), std::string::npos);
  const auto all = losses_in(folder.path("whole.jsonl"));
  EXPECT_EQ(losses_in(folder.path("rest.jsonl")),
            std::vector<std::string>(all.begin() + 3, all.end()));
}

TEST(ConvertCommand, TheMeanOfARunsSteps) {
  const TrainingFolder folder;
  train(2, saved_in(folder, "run", 6));
  const std::string first = folder.path("run/step-3");
  const std::string last = folder.path("run/step-6");
  const Ended done = run_program(
      {"convert", first, folder.path("mean"), "--to", "full", "--average", last, "--verify"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("the mean of 2 checkpoints: " + first + ", " + last), std::string::npos)
      << done.out;
  EXPECT_NE(done.out.find("training state is left behind"), std::string::npos) << done.out;
  EXPECT_EQ(run_program({"verify", folder.path("mean")}).code, 0);
  const Ended compared = run_program({"diff", first, folder.path("mean"), "--weights-only"});
  EXPECT_EQ(compared.code, 1) << compared.out;
  const Ended alone = run_program({"convert", first, folder.path("same"), "--to", "full",
                                   "--weights-only", "--average", first});
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(run_program({"diff", first, folder.path("same"), "--weights-only"}).code, 0);
}

// As after the conversion of another program's checkpoint: moments and step, but no data position.
TEST(ConvertCommand, WithoutADataPositionTheOrderStartsOver) {
  const TrainingFolder folder;
  train(1, saved_in(folder, "run", 3));
  const fs::path step = folder.path("run/step-3");
  checkpoint::Manifest manifest = checkpoint::read_manifest(step);
  const auto counts = checkpoint::json_of(manifest.scalars).at("optimizer_step_counts");
  manifest.scalars = checkpoint::to_scalars({{"step", 3}, {"optimizer_step_counts", counts}});
  std::ofstream(step / "manifest.json", std::ios::binary) << checkpoint::to_text(manifest);
  const Ended resumed =
      train(1, saved_in(folder, "rest", 5) + Settings{{"checkpoint.resume", step.string()}});
  EXPECT_NE(
      resumed.err.find("step 3; it has no position in the data, so the data order starts again"),
      std::string::npos)
      << resumed.err;
  const auto metrics = testing::metrics_in(folder.path("rest.jsonl"));
  ASSERT_EQ(metrics.size(), 2u);
  EXPECT_EQ(metrics[0].at("step"), 4);
}

// Runs a conversion within 64 MB of memory that is written: allocations, stacks, data of the
// libraries. Returns its report.
nlohmann::json convert_in_little_memory(const TrainingFolder& folder, const std::string& source,
                                        const std::string& target,
                                        const std::vector<std::string>& options) {
  const std::string report = folder.path(target + ".json");
  std::vector<std::string> words{program_path(),      "convert",      folder.path(source),
                                 folder.path(target), "--max-memory", "64MB",
                                 "--verify",          "--json",       report};
  words.insert(words.end(), options.begin(), options.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{64'000'000, 64'000'000};
    ::setrlimit(RLIMIT_DATA, &limit);
    ::close(STDOUT_FILENO);
    ::open("/dev/null", O_WRONLY);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  int status = 0;
  rusage usage{};
  EXPECT_EQ(::wait4(child, &status, 0, &usage), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << target << " " << status;
  EXPECT_LT(usage.ru_maxrss * 1024, 64'000'000) << target;
  if (!fs::exists(report)) return {};
  nlohmann::json values = nlohmann::json::parse(read_text(report));
  EXPECT_LT(values.at("peak_memory").get<std::int64_t>(), 64'000'000) << target;
  return values;
}

TEST(ConvertCommand, StaysWithinItsMemory) {
  if (testing::address_sanitizer || testing::thread_sanitizer) {
    GTEST_SKIP() << "a sanitizer's own memory is larger";
  }
  const TrainingFolder folder;
  write_holes(folder.path("weights"), 4, 16384);  // 256 MiB in tensors of 64 MiB
  for (const std::string format : {"full", "sharded", "hf", "dcp", "torch", "universal"}) {
    const auto report = convert_in_little_memory(
        folder, "weights", format, {"--to", format, "--world-size", "3", "--dtype", "bf16"});
    EXPECT_EQ(report.value("bytes_read", 0u), 256u << 20) << format;
  }
  for (const std::string format : {"dcp", "torch", "universal"}) {
    convert_in_little_memory(folder, format, "from-" + format, {"--to", "hf"});
  }
}

// Elements are decoded and encoded on the way.
TEST(ConvertCommand, StaysWithinItsMemoryWithOtherElements) {
  if (testing::address_sanitizer || testing::thread_sanitizer) {
    GTEST_SKIP() << "a sanitizer's own memory is larger";
  }
  const TrainingFolder folder;
  write_gpt2_holes(folder.path("gpt2"));
  for (const std::string type : {"bf16", "q8_0", "q4_k"}) {
    convert_in_little_memory(folder, "gpt2", type + ".gguf", {"--to", "gguf", "--type", type});
    convert_in_little_memory(folder, type + ".gguf", "from-" + type, {"--to", "hf"});
  }
  write_fp8_holes(folder.path("fp8"));
  convert_in_little_memory(folder, "fp8", "from-fp8", {"--to", "hf"});
}

TEST(ConvertCommand, AStoppedConversionLeavesNothing) {
  const TrainingFolder folder;
  write_holes(folder.path("hf"), 8, 32768);  // 1 GiB
  for (const int signal : {SIGTERM, SIGINT, SIGKILL}) {
    const fs::path target = folder.path("place") + "/out";
    fs::create_directories(target.parent_path());
    Program program({"convert", folder.path("hf"), target.string(), "--to", "full"});
    ASSERT_TRUE(eventually([&] { return !names_beside(target).empty(); }));
    program.signal(signal);
    EXPECT_EQ(program.wait(), 128 + signal) << program.err();
    const auto left = names_beside(target);
    EXPECT_EQ(left.size(), signal == SIGKILL ? 1u : 0u);
    EXPECT_FALSE(fs::exists(target));
    if (signal != SIGKILL) {
      EXPECT_NE(program.err().find("stopped by signal"), std::string::npos) << program.err();
    }
  }
  write_holes(folder.path("small"), 1, 1);
  const Ended done =
      run_program({"convert", folder.path("small"), folder.path("place") + "/out", "--to", "full"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("left by a conversion or an export that died"), std::string::npos)
      << done.out;
  EXPECT_EQ(names_beside(folder.path("place") + "/out"), std::vector<std::string>{"out"});
}

TEST(ConvertCommand, RefusesBadArgumentsInOneLine) {
  const TrainingFolder folder;
  write_holes(folder.path("hf"), 1, 1);
  const std::string source = folder.path("hf");
  const std::string target = folder.path("out");
  struct Case {
    std::vector<std::string> arguments;
    int code;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{"convert"}, 2, "source"},
      {{"convert", source}, 2, "target"},
      {{"convert", source, target}, 2, "--to is missing: one of "},
      {{"convert", source, target, "--to", "shardd"}, 2, "did you mean sharded?"},
      {{"convert", source, target, "--to", "full", "--world-size", "0"}, 2, "--world-size"},
      {{"convert", source, target, "--to", "full", "--world-size", "65537"}, 2, "--world-size"},
      {{"convert", source, target, "--to", "full", "--max-shard-size", "big"},
       2,
       "--max-shard-size big: must be a number of bytes"},
      {{"convert", source, target, "--to", "full", "--max-memory", "0"}, 2, "--max-memory 0"},
      {{"convert", source, target, "--to", "full", "--max-memory", "1MB"},
       6,
       "--max-memory: 1000000 bytes are too few"},
      {{"convert", source, target, "--to", "full", "--dtype", "int8"}, 2, "--dtype int8"},
      {{"convert", source, target, "--to", "full", "--json", folder.path("no/where")},
       3,
       "cannot be written"},
      {{"convert", source, target, "--to", "full", "--forse"}, 2, "did you mean --force?"},
      {{"convert", folder.path("gone"), target, "--to", "full"}, 5, "does not exist"},
      {{"convert", folder.path("text.txt"), target, "--to", "full"}, 5, "of a known format"},
      {{"convert", source, source, "--to", "full", "--force"}, 2, "are the same"},
      {{"convert", source, folder.path("text.txt"), "--to", "full"}, 5, "exists; choose another"},
      {{"convert", source, folder.path("text.txt") + "/x", "--to", "full"}, 5, "text.txt"},
      {{"convert", source, target, "--to", "full", "--average", folder.path("gone")},
       5,
       "does not exist"},
      {{"convert", source, target, "--to", "full", "--average", folder.path("text.txt")},
       5,
       "of a known format"},
      {{"convert", source, "", "--to", "full"}, 2, "target: must not be empty"},
      {{"convert", "", target, "--to", "full"}, 2, "source: must not be empty"},
      {{"convert", source, "/", "--to", "full"}, 2, "'/' does not name a checkpoint"},
      {{"convert", source, "/dev/null", "--to", "full"}, 5, "'/dev/null' is a device or a pipe"},
      {{"diff", source, ""}, 2, "second: must not be empty"},
      {{"inspect", folder.path("gone")}, 5, "does not exist"},
      {{"inspect", folder.path("text.txt")}, 5, "of a known format"},
      {{"verify", folder.path("gone")}, 5, "does not exist"},
  };
  for (const Case& one : cases) {
    const Ended ended = run_program(one.arguments);
    EXPECT_EQ(ended.code, one.code) << ended.err << one.message;
    EXPECT_NE(ended.err.find(one.message), std::string::npos) << ended.err << one.message;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_FALSE(fs::exists(target)) << one.message;
  }
}

// Names in files of other users must not move the cursor.
TEST(ConvertCommand, NamesReachATerminalEscaped) {
  const TrainingFolder folder;
  fs::create_directory(folder.path("hf"));
  const std::vector<float> values(4, 1);
  const std::string evil =
      "a\x1b]0;owned\x07\r\n\x7f\xc2\x9b"
      "31m";
  checkpoint::write_safetensors(folder.path("hf") + "/model.safetensors",
                                {{{evil, float32, {4}}, values.data()},
                                 {{"_orig_mod." + evil, float32, {4}}, values.data()}});
  const auto clean = [](const std::string& text) {
    return std::none_of(text.begin(), text.end(), [](char c) {
      return (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f || c == '\x9b';
    });
  };
  const Ended shown = run_program({"inspect", folder.path("hf")});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_TRUE(clean(shown.out)) << shown.out;
  EXPECT_NE(shown.out.find("a\\x1b]0;owned\\x07\\x0d\\x0a\\x7f\\xc2\\x9b31m"), std::string::npos);
  const Ended refused =
      run_program({"convert", folder.path("hf"), folder.path("o"), "--to", "full"});
  EXPECT_EQ(refused.code, 5);
  EXPECT_TRUE(clean(refused.err)) << refused.err;
  EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
}

TEST(VerifyCommand, ReportsTheDamageAndItsCost) {
  const TrainingFolder folder;
  train(1, saved_in(folder, "run", 6));
  const std::string json = folder.path("v.json");
  EXPECT_EQ(run_program({"verify", folder.path("run"), "--json", json}).code, 0);
  auto report = nlohmann::json::parse(read_text(json));
  EXPECT_EQ(report.at("checkpoints").size(), 2u);
  EXPECT_EQ(report.at("sound"), true);

  const fs::path file = folder.path("run/step-3/config.json");
  fs::path tensors;
  for (const auto& entry : fs::directory_iterator(folder.path("run/step-6"))) {
    if (entry.path().filename().string().starts_with("optimizer")) tensors = entry.path();
  }
  fs::resize_file(tensors, fs::file_size(tensors) - 1);
  std::ofstream(file, std::ios::app) << " ";
  const Ended damaged = run_program({"verify", folder.path("run"), "--json", json});
  EXPECT_EQ(damaged.code, 5);
  report = nlohmann::json::parse(read_text(json));
  EXPECT_EQ(report.at("sound"), false);
  for (const auto& one : report.at("checkpoints")) EXPECT_EQ(one.at("sound"), false);
  EXPECT_NE(damaged.out.find("config.json"), std::string::npos) << damaged.out;
}

TEST(VerifyCommand, AFlippedBitCostsItsChunk) {
  const TrainingFolder folder;
  write_holes(folder.path("hf"), 8, 256);  // 8 tensors of 1 MiB
  ASSERT_EQ(run_program({"convert", folder.path("hf"), folder.path("full"), "--to", "full"}).code,
            0);
  std::fstream file(folder.path("full") + "/model.safetensors",
                    std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(5'000'000);
  file.put('x');
  file.close();
  const Ended damaged =
      run_program({"verify", folder.path("full"), "--json", folder.path("v.json")});
  EXPECT_EQ(damaged.code, 5);
  EXPECT_NE(damaged.out.find("1.00 MiB in 2 of 8 tensors cannot be trusted"), std::string::npos)
      << damaged.out;
  const auto report = nlohmann::json::parse(read_text(folder.path("v.json")));
  EXPECT_EQ(report.at("checkpoints").at(0).at("damaged_bytes"), 1 << 20);
  EXPECT_EQ(report.at("checkpoints").at(0).at("damaged_tensors").size(), 2u);
}

TEST(InspectCommand, ListsTensorsAndTrainingState) {
  const TrainingFolder folder;
  train(2, saved_in(folder, "run", 3));
  const std::string json = folder.path("i.json");
  const Ended shown = run_program({"inspect", folder.path("run"), "--json", json});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_NE(shown.out.find("the newest of 1 step: step-3"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("position/steps = 3"), std::string::npos) << shown.out;
  const auto report = nlohmann::json::parse(read_text(json));
  EXPECT_EQ(report.at("format"), "sharded");
  EXPECT_EQ(report.at("scalars").at("position").at("steps"), 3);
  EXPECT_EQ(report.at("tensors").size(),
            report.at("model").at("tensors").get<std::size_t>() +
                report.at("optimizer").at("tensors").get<std::size_t>());
}

}  // namespace
}  // namespace tessera::cli
