// The JSONL file of a run.
#include "cli/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace tessera::cli {
namespace {

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null";
}

// The bytes at the beginning of the file that stay: whole lines of steps up to `resume_step`. A
// last line that a crash cut off goes as well.
std::int64_t bytes_to_keep(const std::filesystem::path& path, std::int64_t resume_step) {
  std::ifstream stream(path, std::ios::binary);
  std::int64_t kept = 0;
  std::int64_t line_number = 0;
  bool keeping = true;
  for (std::string line; std::getline(stream, line);) {
    ++line_number;
    if (stream.eof()) break;  // no newline at its end
    const auto object = nlohmann::json::parse(line, nullptr, false);
    const bool metrics =
        object.is_object() && object.contains("step") && object["step"].is_number_integer();
    TESSERA_CHECK(metrics, ErrorCode::configuration,
                  "log.jsonl: {} exists and line {} is no step of a run; name another file",
                  path.string(), line_number);
    keeping = keeping && object["step"].get<std::int64_t>() <= resume_step;
    if (keeping) kept += static_cast<std::int64_t>(line.size()) + 1;
  }
  return kept;
}

}  // namespace

std::string to_json_line(const StepMetrics& metrics) {
  return fmt::format(
      R"({{"step": {}, "loss": {}, "grad_norm": {}, "lr": {}, "tokens_per_s": {}, )"
      R"("samples_per_s": {}, "step_s": {}, "peak_bytes": {}, "cached_bytes": {}, "comm_bytes": {}, "exposed_comm_s": {}, "data_wait_s": {}}})",
      metrics.step, number(metrics.loss), number(metrics.grad_norm), number(metrics.lr),
      number(metrics.tokens_per_s), number(metrics.samples_per_s), number(metrics.step_s),
      metrics.peak_bytes, metrics.cached_bytes, metrics.comm_bytes, number(metrics.exposed_comm_s),
      number(metrics.data_wait_s));
}

MetricsWriter::MetricsWriter(const std::filesystem::path& path, std::int64_t resume_step)
    : path_(path) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  TESSERA_CHECK(file_ >= 0, ErrorCode::configuration, "log.jsonl: {} cannot be written: {}",
                path.string(), describe_errno("open", errno));
  struct stat status {};
  try {
    TESSERA_SYSTEM(::fstat(file_, &status));
    // A device or a pipe takes lines and has none to remove.
    if (S_ISREG(status.st_mode))
      TESSERA_SYSTEM(::ftruncate(file_, bytes_to_keep(path, resume_step)));
  } catch (...) {
    ::close(file_);
    throw;
  }
}

MetricsWriter::~MetricsWriter() {
  ::close(file_);
}

void MetricsWriter::write(const StepMetrics& metrics) {
  append(to_json_line(metrics) + "\n", metrics.step);
}

void MetricsWriter::write_evaluation(std::int64_t step,
                                     const std::vector<std::pair<std::string, double>>& numbers) {
  std::string line = fmt::format("{{\"step\": {}", step);
  for (const auto& [name, value] : numbers) {
    line += fmt::format(", \"{}\": {}", name, number(value));
  }
  append(line + "}\n", step);
}

void MetricsWriter::append(const std::string& line, std::int64_t step) {
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t got = ::write(file_, line.data() + done, line.size() - done);
    if (got < 0 && errno == EINTR) continue;
    TESSERA_CHECK(got >= 0, ErrorCode::runtime, "log.jsonl: {} at step {}: {}", path_.string(),
                  step, describe_errno("write", errno));
    done += static_cast<std::size_t>(got);
  }
}

std::int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name; std::getline(status, name)) {
    std::int64_t kibibytes = 0;
    if (name == "VmHWM:" && status >> kibibytes) return kibibytes * 1024;
  }
  // Some sandboxes do not tell it. This one counts what the process held before it became this
  // program: a parent's memory after fork and exec.
  rusage usage{};
  TESSERA_SYSTEM(::getrusage(RUSAGE_SELF, &usage));
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace tessera::cli
