// Converts a big checkpoint and copies it with cp, in one run, and measures time and peak memory.
//   convert_bench [MiB of weights = 4096] [folder = the current one] [repeats = 5]
// Each row is a separate process. A conversion ends with its files durable, so the copy is shown
// with and without an fsync of its output. Each time the rows run in another order, because the
// memory that was freed before decides how much of the page cache a virtual machine has at hand.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/host_memory.h"
#include "bench/harness/median.h"
#include "bench/programs/options.h"
#include "checkpoint/convert/convert.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/removal.h"
#include "checkpoint/safetensors/safetensors.h"

namespace {

namespace fs = std::filesystem;
using namespace tessera;
using checkpoint::File;

constexpr std::int64_t tensor_rows = 4096;  // of 1024 fp32: 16 MiB a tensor

// Weights that no file system and no processor can compress or predict.
void write_weights(const fs::path& folder, std::int64_t mebibytes) {
  fs::create_directories(folder);
  std::vector<checkpoint::TensorSpec> specs;
  for (std::int64_t i = 0; i < std::max<std::int64_t>(1, mebibytes / 16); ++i) {
    specs.push_back({fmt::format("layers.{}.weight", i), float32, {tensor_rows, 1024}});
  }
  const auto header = checkpoint::compose_safetensors_header(specs);
  File file = File::create_or_truncate(folder / "model.safetensors");
  file.write_at(0, header.bytes.data(), header.bytes.size());
  std::vector<std::uint64_t> block(1 << 17);
  std::uint64_t state = 1;
  for (std::uint64_t at = header.bytes.size(); at < header.file_bytes; at += block.size() * 8) {
    for (std::uint64_t& word : block) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      word = (state & 0x3fffffff3fffffffULL) ^ (state >> 33);
    }
    file.write_at(at, block.data(),
                  static_cast<std::size_t>(
                      std::min<std::uint64_t>(block.size() * 8, header.file_bytes - at)));
  }
  file.sync();
  file.close();
}

struct Measured {
  double seconds = 0;
  std::int64_t peak_bytes = 0;
};

// Runs in its own process, so that its peak memory is its own. The child sends it through a pipe.
Measured in_process(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) std::exit(1);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work();
      const std::int64_t peak = peak_resident_bytes();
      if (::write(ends[1], &peak, sizeof(peak)) != sizeof(peak)) ::_exit(1);
    } catch (const std::exception& error) {
      fmt::print(stderr, "convert_bench: {}\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  Measured measured;
  const bool sent = ::read(ends[0], &measured.peak_bytes, sizeof(measured.peak_bytes)) ==
                    sizeof(measured.peak_bytes);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0 || !sent) std::exit(1);
  measured.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return measured;
}

void copy_folder(const fs::path& from, const fs::path& to, bool durable) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execlp("cp", "cp", "-r", from.c_str(), to.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) ::_exit(1);
  if (!durable) return;
  for (const auto& entry : fs::directory_iterator(to)) {
    File::open_for_writing(entry.path()).sync();
  }
}

double fastest(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

struct Row {
  std::string name;
  std::function<void(const fs::path&)> work;
  std::vector<double> seconds = {};
  std::int64_t peak_bytes = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::int64_t mebibytes = 4096;
  std::string place = ".";
  int repeats = 5;
  bench::read_options(
      argc, argv, "Conversions of a large checkpoint, compared with copies of it by cp.",
      {bench::number<std::int64_t>("MIB", mebibytes, 1, "MiB of weights"),
       bench::text("FOLDER", place, "where the files are written, and deleted at the end"),
       bench::number("REPEATS", repeats, 1, "rounds, of which the median counts")});
  const fs::path folder = fs::path(place) / "tessera-convert-bench";
  checkpoint::remove_tree(folder);
  fs::create_directories(folder);
  const fs::path weights = folder / "weights";
  const fs::path full = folder / "full";
  write_weights(weights, mebibytes);
  in_process([&] { checkpoint::convert(weights, full, {.to = "full"}); });
  checkpoint::remove_tree(weights);
  const auto bytes = fs::file_size(full / "model.safetensors");

  const auto converting = [&](const std::string& to, std::optional<DType> dtype) {
    return [&full, to, dtype](const fs::path& target) {
      checkpoint::convert(full, target, {.to = to, .world_size = 4, .dtype = dtype});
    };
  };
  std::vector<Row> rows{
      {"cp -r, then fsync", [&](const fs::path& to) { copy_folder(full, to, true); }},
      {"cp -r alone", [&](const fs::path& to) { copy_folder(full, to, false); }},
      {"convert FULL to SHARDED of 4", converting("sharded", std::nullopt)},
      {"convert FULL to Hugging Face", converting("hf", std::nullopt)},
      {"convert FULL to bf16", converting("full", DType::bfloat16)}};
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (std::size_t turn = 0; turn < rows.size(); ++turn) {
      const auto round = static_cast<std::size_t>(repeat);
      Row& row = rows[(round + turn * (1 + round % (rows.size() - 1))) % rows.size()];
      const fs::path result = folder / "result";
      const Measured measured = in_process([&] { row.work(result); });
      row.seconds.push_back(measured.seconds);
      row.peak_bytes = std::max(row.peak_bytes, measured.peak_bytes);
      checkpoint::remove_tree(result);
      ::sync();  // so that no row waits for another row's dirty pages
    }
  }
  fmt::print("{} MB of weights, {} repeats, read from the page cache, --max-memory 256MB\n",
             bytes / 1'000'000, repeats);
  const Row& copy = rows.front();
  for (const Row& row : rows) {
    const double seconds = bench::median(row.seconds);
    fmt::print(
        "{:32} {:8.0f} MB/s  {:5.2f} of the durable copy, {:5.2f} the fastest of each  peak {:4} "
        "MB\n",
        row.name, static_cast<double>(bytes) / 1e6 / seconds, bench::median(copy.seconds) / seconds,
        fastest(copy.seconds) / fastest(row.seconds), row.peak_bytes / 1'000'000);
  }
  checkpoint::remove_tree(folder);
  return 0;
}
