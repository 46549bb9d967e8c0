// Shared by convert, diff, inspect and verify: the progress line, the JSON, and the text for a
// tensor.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/formats/format.h"

namespace tessera::cli {

// A bar that is redrawn on a terminal; otherwise nothing, because the command ends with a report.
class ByteProgress {
 public:
  ByteProgress();
  ~ByteProgress();  // removes the bar
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;

  void show(const char* doing, std::uint64_t done, std::uint64_t total);
  // The parts of the line. Public for tests.
  static std::string line(const char* doing, std::uint64_t done, std::uint64_t total,
                          double seconds);

 private:
  bool animated_;
  bool drawn_ = false;
  std::string doing_;
  std::chrono::steady_clock::time_point start_{};
  std::chrono::steady_clock::time_point last_draw_{};
};

// --json FILE, checked before the work and written after it. The file begins with its kind, as in
// "report": "tessera-inspect".
class JsonReport {
 public:
  // `inputs` are what the command reads.
  JsonReport(const std::string& path, const std::string& kind,
             const std::vector<std::string>& inputs);
  void write(const nlohmann::ordered_json& json) const;

 private:
  std::string what_, path_, kind_;
};

// Runs `work`, which returns an exit code, while a signal only sets a flag: was_interrupted() tells
// the work to stop by an Error. Such an Error becomes one line and the signal's exit code.
int run_interruptibly(const std::function<int()>& work);
bool was_interrupted();

std::string part_name(checkpoint::formats::Part part);
std::string hexadecimal(std::uint64_t value);

}  // namespace tessera::cli
