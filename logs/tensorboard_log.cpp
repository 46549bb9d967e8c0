// Metrics as scalars.
#include "logs/tensorboard_log.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "logs/event_file.h"

namespace tessera::logs {
namespace {

double wall_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// The bytes of whole records of steps up to `resume_step`.
std::int64_t event_bytes_to_keep(const std::filesystem::path& path, std::int64_t resume_step) {
  std::ifstream stream(path, std::ios::binary);
  std::stringstream content;
  content << stream.rdbuf();
  const std::string all = content.str();
  std::string_view rest = all;
  std::int64_t kept = 0;
  while (const auto event = take_tf_record(rest)) {
    const auto step = step_of_event(*event);
    if (!step || *step > resume_step) break;
    kept = static_cast<std::int64_t>(all.size() - rest.size());
  }
  TESSERA_CHECK(all.empty() || rest.size() < all.size(), ErrorCode::configuration,
                "log.tensorboard: {} exists and has no events; name another folder", path.string());
  return resume_step == 0 ? 0 : kept;
}

// The folder must be a folder, or not exist yet.
std::filesystem::path event_file_of(const std::filesystem::path& folder) {
  std::error_code none;
  const auto status = std::filesystem::status(folder, none);
  TESSERA_CHECK(!std::filesystem::exists(status) || std::filesystem::is_directory(status),
                ErrorCode::configuration, "log.tensorboard: {} is a file; name a folder",
                folder.string());
  return folder / TensorboardLog::file_name;
}

}  // namespace

TensorboardLog::TensorboardLog(const std::filesystem::path& folder, std::int64_t resume_step)
    : file_("log.tensorboard", event_file_of(folder),
            [resume_step](const std::filesystem::path& there) {
              return event_bytes_to_keep(there, resume_step);
            }) {}

void TensorboardLog::begin() {
  file_.begin();
  if (file_.bytes() == 0) file_.append(tf_record(version_event(wall_time())), 0);
}

void TensorboardLog::write(const StepMetrics& m) {
  std::vector<std::pair<std::string, double>> numbers = {
      {"train/loss", m.loss},
      {"train/grad_norm", m.grad_norm},
      {"train/lr", m.lr},
      {"speed/tokens_per_s", m.tokens_per_s},
      {"speed/samples_per_s", m.samples_per_s},
      {"speed/step_s", m.step_s},
      {"speed/data_wait_s", m.data_wait_s},
      {"communication/exposed_s", m.exposed_comm_s},
      {"communication/bytes", static_cast<double>(m.comm_bytes)},
      {"memory/peak_bytes", static_cast<double>(m.peak_bytes)},
      {"memory/cached_bytes", static_cast<double>(m.cached_bytes)}};
  if (m.loss_scale) {
    numbers.emplace_back("train/loss_scale", *m.loss_scale);
    numbers.emplace_back("train/skipped_steps", static_cast<double>(m.skipped_steps));
  }
  for (const auto& [name, value] : m.of_task) numbers.emplace_back("train/" + name, value);
  file_.append(tf_record(scalar_event(wall_time(), m.step, numbers)), m.step);
}

void TensorboardLog::write_spike(const Spike& spike) {
  const std::int64_t step = spike.goes_on_after();
  file_.append(tf_record(scalar_event(wall_time(), step,
                                      {{fmt::format("train/spike_{}", name_of(spike.done)),
                                        static_cast<double>(spike.step)}})),
               step);
}

void TensorboardLog::write_evaluation(std::int64_t step,
                                      const std::vector<std::pair<std::string, double>>& numbers) {
  std::vector<std::pair<std::string, double>> tagged;
  for (const auto& [name, number] : numbers) {
    tagged.emplace_back(name == "valid_loss" ? "validation/loss" : "validation/" + name, number);
  }
  file_.append(tf_record(scalar_event(wall_time(), step, tagged)), step);
}

}  // namespace tessera::logs
