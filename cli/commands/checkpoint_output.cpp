// Progress in bytes, JSON files, and the end by a signal.
#include "cli/commands/checkpoint_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text/byte_size.h"
#include "base/text/print.h"
#include "engine/storage/output_file.h"
#include "logs/output_files.h"
#include "logs/progress.h"
#include "training/interruption.h"

namespace tessera::cli {
namespace {

constexpr auto byte_redraw_interval = std::chrono::milliseconds(100);
constexpr std::size_t byte_bar_width = 24;

}  // namespace

ByteProgress::ByteProgress() : animated_(logs::animated_by_default()) {}

ByteProgress::~ByteProgress() {
  if (drawn_) redraw_line(STDERR_FILENO, "");
}

std::string ByteProgress::line(const char* doing, std::uint64_t done, std::uint64_t total,
                               double seconds) {
  const double part = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
  const auto filled =
      static_cast<std::size_t>(std::clamp(part, 0.0, 1.0) * static_cast<double>(byte_bar_width));
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const double left = rate > 0 ? static_cast<double>(total - std::min(done, total)) / rate : 0;
  return fmt::format("[{:<{}}] {} {} of {}  {}/s  {:.0f} s left", std::string(filled, '='),
                     byte_bar_width, doing, bytes_text(done), bytes_text(total),
                     bytes_text(static_cast<std::uint64_t>(rate)), std::ceil(left));
}

void ByteProgress::show(const char* doing, std::uint64_t done, std::uint64_t total) {
  if (!animated_) return;
  const auto now = std::chrono::steady_clock::now();
  if (doing_ != doing) {
    doing_ = doing;
    start_ = now;
  }
  if (drawn_ && done < total && now - last_draw_ < byte_redraw_interval) return;
  last_draw_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  redraw_line(STDERR_FILENO, line(doing, done, total, seconds));
}

JsonReport::JsonReport(const std::string& path, const std::string& kind,
                       const std::vector<std::string>& inputs)
    : what_("--json " + path), path_(path), kind_(kind) {
  logs::OutputFiles outputs;
  for (const std::string& input : inputs) outputs.add_input(input);
  outputs.add(what_, path_, logs::begins_as("{", fmt::format(R"("report": "{}")", kind_)));
}

void JsonReport::write(const nlohmann::ordered_json& json) const {
  if (path_.empty()) return;
  nlohmann::ordered_json report = {{"report", kind_}};
  report.update(json);
  write_output(what_, path_,
               report.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

bool was_interrupted() {
  return training::InterruptionWatch::signal() != 0;
}

int run_interruptibly(const std::function<int()>& work) {
  const training::SignalThread signals;
  const training::InterruptionWatch watch;
  try {
    return work();
  } catch (const Error& error) {
    const int signal = training::InterruptionWatch::signal();
    if (signal == 0) throw;
    print_err("tessera: stopped by signal {}: {}\n", signal, error.what());
    return 128 + signal;
  }
}

std::string part_name(checkpoint::formats::Part part) {
  return part == checkpoint::formats::Part::model ? "model" : "optimizer";
}

std::string hexadecimal(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

}  // namespace tessera::cli
