// Tokens per second of a text on one thread, and the time to load a tokenizer.
//   tokenizers_bench TEXT TOKENIZER ... [--repeats N = 5] [--json FILE]
// Each line is a separate text, as in bench/peers/tokenizers_package.py; the
// first pass, with empty word caches, is reported beside the median of the rest.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/programs/options.h"
#include "checkpoint/io/file.h"
#include "tokenizers/load.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Options {
  std::string text;
  std::vector<std::string> tokenizers;
  int repeats = 5;
  std::string json;
};

Options options_of(int argc, char** argv) {
  Options options;
  tessera::bench::read_options(
      argc, argv, "Tokens per second of a text, on one thread.",
      {required(tessera::bench::text("TEXT", options.text, "a file, each line a text of its own")),
       {"TOKENIZER...", "folders or files of tokenizers",
        [&options](const std::string& name) {
          options.tokenizers.push_back(name);
          return true;
        },
        true},
       tessera::bench::number("--repeats", options.repeats, 1,
                              "passes after the first, of which the median counts"),
       tessera::bench::text("--json", options.json, "a file for the results")});
  return options;
}

// Runs one pass over all lines and returns the number of tokens.
std::size_t encode_lines(const tessera::Tokenizer& tokenizer, std::string_view text) {
  std::size_t tokens = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    tokens += tokenizer.encode(text.substr(at, end - at)).size();
    at = end + 1;
  }
  return tokens;
}

nlohmann::json measured(const std::string& name, std::string_view text, int repeats) {
  auto begin = Clock::now();
  const auto tokenizer = tessera::tokenizers::load_tokenizer(name);
  const double load = seconds_since(begin);
  begin = Clock::now();
  const std::size_t tokens = encode_lines(*tokenizer, text);
  const double first = seconds_since(begin);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    begin = Clock::now();
    encode_lines(*tokenizer, text);
    times.push_back(seconds_since(begin));
  }
  std::sort(times.begin(), times.end());
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  return {{"tokenizer", name},
          {"tokens", tokens},
          {"load_s", load},
          {"first_mb_per_s", megabytes / first},
          {"mb_per_s", megabytes / times[times.size() / 2]}};
}

int run(const Options& options) {
  const std::string text = tessera::checkpoint::read_file(options.text, std::uint64_t{1} << 30);
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& name : options.tokenizers) {
    rows.push_back(measured(name, text, options.repeats));
    const nlohmann::json& row = rows.back();
    fmt::print("{}: {} tokens, load {:.3f} s, first pass {:.1f} MB/s, then {:.1f} MB/s\n", name,
               row["tokens"].get<std::size_t>(), row["load_s"].get<double>(),
               row["first_mb_per_s"].get<double>(), row["mb_per_s"].get<double>());
  }
  if (!options.json.empty()) {
    std::ofstream(options.json)
        << nlohmann::json{{"text_bytes", text.size()}, {"rows", std::move(rows)}}.dump(2) << '\n';
  }
  return 0;
}

}  // namespace

int main(int count, char** values) {
  try {
    return run(options_of(count, values));
  } catch (const std::exception& error) {
    fmt::print(stderr, "tokenizers_bench: {}\n", error.what());
    return 1;
  }
}
