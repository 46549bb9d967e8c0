// The JSONL file of a run.
#include "logs/metrics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tessera::logs {
namespace {

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null";
}

// {"step": 5, "lo
bool begins_metrics(std::string_view line) {
  constexpr std::string_view beginning = "{\"step\": ";
  if (beginning.starts_with(line)) return true;
  if (!line.starts_with(beginning)) return false;
  line.remove_prefix(beginning.size());
  const std::size_t digits = line.find_first_not_of("0123456789");
  return digits != 0 && (digits == std::string_view::npos || line[digits] == ',');
}

// The bytes of steps up to `resume_step`.
std::int64_t bytes_to_keep(const std::string& key, const std::filesystem::path& path,
                           std::int64_t resume_step) {
  const auto stays = [&](const std::string& line, std::int64_t line_number) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    const bool metrics =
        object.is_object() && object.contains("step") && object["step"].is_number_integer();
    TESSERA_CHECK(metrics, ErrorCode::configuration,
                  "{}: {} exists and line {} is not a step of a run; name another file", key,
                  path.string(), line_number);
    return object["step"].get<std::int64_t>() <= resume_step;
  };
  return bytes_of_lines(key, path, begins_metrics, stays);
}

}  // namespace

std::string to_json_line(const StepMetrics& metrics) {
  std::string more;
  if (metrics.loss_scale) {
    more = fmt::format(R"(, "loss_scale": {}, "skipped_steps": {})", *metrics.loss_scale,
                       metrics.skipped_steps);
  }
  if (!metrics.rank_samples.empty()) {
    more += fmt::format(R"(, "rank_samples": [{}])", fmt::join(metrics.rank_samples, ", "));
  }
  if (metrics.imbalance) more += fmt::format(R"(, "imbalance": {})", number(*metrics.imbalance));
  for (const auto& [name, value] : metrics.of_task) {
    more += fmt::format(R"(, "{}": {})", name, number(value));
  }
  return fmt::format(
      R"({{"step": {}, "loss": {}, "grad_norm": {}, "lr": {}, "tokens_per_s": {}, )"
      R"("samples_per_s": {}, "step_s": {}, "peak_bytes": {}, "cached_bytes": {}, "comm_bytes": {}, "exposed_comm_s": {}, "data_wait_s": {}{}}})",
      metrics.step, number(metrics.loss), number(metrics.grad_norm), number(metrics.lr),
      number(metrics.tokens_per_s), number(metrics.samples_per_s), number(metrics.step_s),
      metrics.peak_bytes, metrics.cached_bytes, metrics.comm_bytes, number(metrics.exposed_comm_s),
      number(metrics.data_wait_s), more);
}

MetricsWriter::MetricsWriter(const std::string& key, const std::filesystem::path& path,
                             std::int64_t resume_step)
    : file_(key, path, [&key, resume_step](const std::filesystem::path& there) {
        return bytes_to_keep(key, there, resume_step);
      }) {}

void MetricsWriter::write(const StepMetrics& metrics) {
  file_.append(to_json_line(metrics) + "\n", metrics.step);
}

void MetricsWriter::write_spike(const Spike& spike) {
  file_.append(
      fmt::format(
          R"({{"step": {}, "on_spike": "{}", "spike_step": {}, "spike_loss": {}, "spike_grad_norm": {}, "spike_limit": {}}})"
          "\n",
          spike.goes_on_after(), name_of(spike.done), spike.step, number(spike.loss),
          number(spike.grad_norm), spike.limit ? number(*spike.limit) : "null"),
      spike.goes_on_after());
}

void MetricsWriter::write_evaluation(std::int64_t step,
                                     const std::vector<std::pair<std::string, double>>& numbers) {
  std::string line = fmt::format("{{\"step\": {}", step);
  for (const auto& [name, value] : numbers) {
    line += fmt::format(", \"{}\": {}", name, number(value));
  }
  file_.append(line + "}\n", step);
}

}  // namespace tessera::logs
