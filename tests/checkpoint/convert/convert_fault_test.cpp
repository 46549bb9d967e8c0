// A conversion that fails, is killed or loses power at any of its system calls leaves the old
// target or the new one, complete; the next conversion removes the leftovers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/convert/convert.h"
#include "checkpoint/faulty_calls.h"
#include "checkpoint/formats/formats_testing.h"
#include "checkpoint/formats/gguf_testing.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

// The tests convert a save of this library, a Hugging Face folder of GPT-2, one with weights in
// fp8, and folders that other programs wrote.
enum class From : std::uint8_t { save, gpt2, fp8, verl, universal, megatron };

struct ConvertScenario {
  const char* name;
  const char* to;
  bool over_old = false;
  bool no_exchange = false;
  From from = From::save;
  const char* type = "";
};

void PrintTo(const ConvertScenario& scenario, std::ostream* out) {
  *out << scenario.name;
}

class ConvertFaults : public ::testing::TestWithParam<ConvertScenario> {
 protected:
  void SetUp() override {
    save_version(folder_.path() / "run", 1, {.files = {{"config.json", "{}"}}});
    save_version(folder_.path() / "old", 2);
    if (GetParam().from == From::gpt2) {
      write_small_model(source(), small_gpt2_tensors(width()), small_gpt2_config(width()));
    }
    if (GetParam().from == From::fp8) write_fp8(source());
    reset();
  }

  [[nodiscard]] fs::path source() const {
    switch (GetParam().from) {
      case From::save:
        return folder_.path() / "run" / "step-1";
      case From::gpt2:
      case From::fp8:
        break;
      case From::verl:
        return fixture("verl");
      case From::universal:
        return fixture("universal2");
      case From::megatron:
        return fixture("megatron/gpt2");
    }
    return folder_.path() / "model";
  }
  [[nodiscard]] static std::size_t weights() {
    switch (GetParam().from) {
      case From::save:
        return model_plans().size();
      case From::gpt2:
        return small_gpt2_tensors().size();
      case From::fp8:
        return 2;
      case From::verl:
        return 4;
      case From::universal:
        return 5;
      case From::megatron:
        break;
    }
    return 28;
  }
  // Blocks of q8_0 have 32 elements.
  [[nodiscard]] static std::int64_t width() { return GetParam().type[0] != '\0' ? 32 : 4; }

  // DeepSeek's form: a matrix in fp8 with the scale of its block, and a norm.
  static void write_fp8(const fs::path& folder) {
    fs::create_directories(folder);
    std::string header =
        R"({"a.weight":{"dtype":"F8_E4M3","shape":[4,8],"data_offsets":[0,32]},)"
        R"("a.weight_scale_inv":{"dtype":"F32","shape":[1,1],"data_offsets":[32,36]},)"
        R"("n.weight":{"dtype":"BF16","shape":[2],"data_offsets":[36,40]}})";
    header.append((8 - header.size() % 8) % 8, ' ');
    std::string length(8, '\0');
    length[0] = static_cast<char>(header.size() & 255);
    length[1] = static_cast<char>(header.size() >> 8);
    write_all(folder / "model.safetensors", length + header + std::string(32, '\x38') +
                                                std::string("\0\0\x80\x3f", 4) +
                                                std::string("\x80\x3f\x80\x3f", 4));
    write_all(folder / "config.json",
              R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}})");
  }

  void reset() {
    fs::remove_all(place());
    fs::create_directory(place());
    if (!GetParam().over_old) return;
    fs::copy(folder_.path() / "old" / "step-2", target(), fs::copy_options::recursive);
  }

  void run(FaultyCalls& calls) {
    calls.no_exchange = GetParam().no_exchange;
    const ScopedSystemCalls scope(calls);
    ConvertOptions options{.to = GetParam().to, .world_size = 2, .force = GetParam().over_old};
    options.type = GetParam().type;
    convert(source(), target(), options);
  }

  int count_calls() {
    reset();
    FaultyCalls calls(Fault::none, 0);
    run(calls);
    return calls.calls();
  }

  void expect_new() {
    const auto report = convert(target(), folder_.path() / "read", {.to = "hf", .force = true});
    EXPECT_EQ(report.source_format, GetParam().to);
    EXPECT_EQ(report.tensors.size(), weights());
    const std::string to = GetParam().to;
    const bool is_step = to == "full" || to == "sharded";
    if (GetParam().from == From::save && is_step) expect_version(target(), 1);
    if (GetParam().from == From::gpt2 && to == "hf") {
      EXPECT_TRUE(fs::exists(target() / "README.md"));
      EXPECT_TRUE(fs::exists(target() / "generation_config.json"));
    }
  }

  // The target is complete; returns true if it is the new one.
  bool expect_old_or_new() {
    if (fs::exists(target() / "manifest.json") &&
        read_scalars(target()).get<std::int64_t>("step") == 2) {
      EXPECT_TRUE(GetParam().over_old);
      expect_version(target(), 2);
      return false;
    }
    if (!fs::exists(target())) {
      EXPECT_TRUE(!GetParam().over_old || GetParam().no_exchange);
      return false;
    }
    expect_new();
    return true;
  }

  // At most twice: the first conversion may only restore the old target.
  void convert_again() {
    FaultyCalls none(Fault::none, 0);
    if (fs::exists(target()) && !GetParam().over_old) {
      fs::remove_all(target());
    }
    try {
      run(none);
    } catch (const Error& error) {
      EXPECT_TRUE(GetParam().no_exchange) << error.what();
      EXPECT_TRUE(has(error.what(), "the old one is back in its place"));
      expect_version(target(), 2);
      run(none);
    }
    expect_new();
    for (const auto& entry : fs::directory_iterator(place())) {
      EXPECT_EQ(entry.path(), target());
    }
  }

  [[nodiscard]] fs::path place() const { return folder_.path() / "place"; }
  [[nodiscard]] fs::path target() const { return place() / "out"; }

  TemporaryFolder folder_;
};

TEST_P(ConvertFaults, DiesAtEveryCall) {
  const int total = count_calls();
  EXPECT_GT(total, 12);
  for (const Fault fault : {Fault::kill, Fault::power_loss}) {
    die_at_every_call(
        fault, total, [&] { reset(); }, [&](FaultyCalls& calls) { run(calls); },
        [&] {
          expect_old_or_new();
          convert_again();
        });
    if (HasFailure()) return;
  }
}

TEST_P(ConvertFaults, FailsAtEveryCall) {
  const int total = count_calls();
  for (const int error_number : {EIO, ENOSPC}) {
    for (int k = 1; k <= total; ++k) {
      SCOPED_TRACE(fmt::format("call {} of {}, errno {}", k, total, error_number));
      reset();
      FaultyCalls calls(Fault::error, k, error_number);
      bool failed = false;
      try {
        run(calls);
      } catch (const Error& error) {
        failed = true;
        EXPECT_EQ(error.code(), ErrorCode::checkpoint);
        EXPECT_TRUE(has(error.what(), error_number == EIO ? "EIO" : "ENOSPC"));
      }
      const bool is_new = expect_old_or_new();
      EXPECT_TRUE(failed || is_new);
      if (HasFailure()) return;
      convert_again();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Scenarios, ConvertFaults,
    ::testing::Values(
        ConvertScenario{"ToSharded", "sharded"}, ConvertScenario{"ToHuggingFace", "hf"},
        ConvertScenario{"ToDcp", "dcp"}, ConvertScenario{"ToTorch", "torch"},
        ConvertScenario{"ToUniversal", "universal"},
        ConvertScenario{.name = "ToGguf", .to = "gguf", .from = From::gpt2},
        ConvertScenario{
            .name = "ToQuantisedGguf", .to = "gguf", .from = From::gpt2, .type = "q8_0"},
        ConvertScenario{.name = "ToTheHub", .to = "hf", .from = From::gpt2},
        ConvertScenario{.name = "FromFp8", .to = "hf", .from = From::fp8},
        ConvertScenario{.name = "FromVerl", .to = "full", .from = From::verl},
        ConvertScenario{.name = "FromUniversal", .to = "full", .from = From::universal},
        ConvertScenario{.name = "FromMegatron", .to = "hf", .from = From::megatron},
        ConvertScenario{"FullOverOld", "full", true, false},
        ConvertScenario{"FullOverOldWithoutExchange", "full", true, true}),
    [](const auto& scenario) { return std::string(scenario.param.name); });

// Reads and writes at most 1000 bytes per call; a signal interrupts every second call.
class ShortCalls final : public SystemCalls {
 public:
  ssize_t pread(int fd, void* data, std::size_t bytes, off_t offset) override {
    return interrupted() ? -1
                         : SystemCalls::pread(fd, data, std::min<std::size_t>(bytes, 1000), offset);
  }
  ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) override {
    return interrupted()
               ? -1
               : SystemCalls::pwrite(fd, data, std::min<std::size_t>(bytes, 1000), offset);
  }
  int fsync(int fd) override { return interrupted() ? -1 : SystemCalls::fsync(fd); }
  int flock(int fd, int operation) override {
    return interrupted() ? -1 : SystemCalls::flock(fd, operation);
  }

 private:
  bool interrupted() {
    errno = EINTR;
    return (calls_++ & 1u) == 0;
  }
  std::atomic<unsigned> calls_{0};
};

TEST(ConvertShort, CallsChangeNothing) {
  TemporaryFolder folder;
  save_version(folder.path(), 1);
  ShortCalls calls;
  const ScopedSystemCalls scope(calls);
  convert(folder.path() / "step-1", folder.path() / "out",
          {.to = "sharded", .world_size = 3, .verify = true});
  expect_version(folder.path() / "out", 1);
}

TEST(ConvertSpace, AFullDiskIsDetectedBeforeTheFirstByte) {
  class FullDisk final : public SystemCalls {
    int statvfs(const char* path, struct statvfs* result) override {
      const int status = SystemCalls::statvfs(path, result);
      result->f_bavail = 1;
      result->f_frsize = 512;
      return status;
    }
  } calls;
  TemporaryFolder folder;
  save_version(folder.path(), 1);
  const ScopedSystemCalls scope(calls);
  const std::string text =
      error_of([&] { convert(folder.path() / "step-1", folder.path() / "out", {.to = "full"}); });
  EXPECT_TRUE(has(text, "has 512 free"));
  EXPECT_FALSE(fs::exists(folder.path() / "out"));
}

TEST(ConvertStop, LeavesNothing) {
  TemporaryFolder folder;
  save_version(folder.path() / "run", 1);
  int asked = 0;
  ConvertOptions options{.to = "full"};
  options.stop = [&] { return ++asked > 3; };
  const std::string text =
      error_of([&] { convert(folder.path() / "run", folder.path() / "place" / "out", options); },
               ErrorCode::runtime);
  EXPECT_TRUE(has(text, "stopped"));
  EXPECT_TRUE(fs::is_empty(folder.path() / "place"));
}

TEST(ConvertChange, OfTheSourceIsDetected) {
  TemporaryFolder folder;
  const std::vector<float> values(64, 1);
  fs::create_directory(folder.path() / "hf");
  const fs::path file = folder.path() / "hf" / "model.safetensors";
  write_safetensors(file, {{{"a", DType::float32, {64}}, values.data()}});
  ConvertOptions options{.to = "hf"};
  options.progress = [&](const ConvertProgress&) {
    write_all(folder.path() / "hf" / "extra.json", "{}");
  };
  EXPECT_TRUE(has(error_of([&] { convert(folder.path() / "hf", folder.path() / "out", options); }),
                  "was changed while it was read"));
  EXPECT_FALSE(fs::exists(folder.path() / "out"));
}

}  // namespace
}  // namespace tessera::checkpoint
