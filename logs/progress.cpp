// The progress line.
#include "logs/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/text/byte_size.h"
#include "base/text/print.h"

namespace tessera::logs {
namespace {

constexpr auto redraw_interval = std::chrono::milliseconds(100);

std::string clock_text(double seconds) {
  const auto total = static_cast<std::int64_t>(std::llround(seconds));
  if (total >= 3600)
    return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
  return fmt::format("{}:{:02}", total / 60, total % 60);
}

std::string count_text(double value) {
  if (value >= 1e6) return fmt::format("{:.2f}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

std::string bar(double done, int width) {
  const int filled = std::clamp(static_cast<int>(done * width), 0, width);
  return fmt::format("[{:<{}}]", std::string(static_cast<std::size_t>(filled), '='), width);
}

int terminal_columns(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

bool animated_by_default(int descriptor) {
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || std::strcmp(terminal, "dumb") == 0;
  return ::isatty(descriptor) == 1 && !dumb;
}

Progress::Progress(const ProgressOptions& options) : options_(options) {
  options_.every = std::max<std::int64_t>(1, options_.every);
}

Progress::~Progress() {
  if (!drawn_) return;
  draw();
  write_text(options_.descriptor, "\n");
}

std::string Progress::line(const StepMetrics& metrics) const {
  const double left = smooth_step_s_ * static_cast<double>(options_.steps - metrics.step);
  return fmt::format("step {}/{}  loss {:.4f}  norm {:.3g}  lr {:.3g}  {} tokens/s  {}  {} left",
                     metrics.step, options_.steps, metrics.loss, metrics.grad_norm, metrics.lr,
                     count_text(metrics.tokens_per_s),
                     bytes_text(static_cast<std::uint64_t>(metrics.peak_bytes)), clock_text(left));
}

void Progress::step(const StepMetrics& metrics) {
  if (!options_.shown) return;
  // The first step also sets things up, so it is a poor measure of the time left.
  const bool first = metrics.step <= options_.first_step + 2;
  smooth_step_s_ = first ? metrics.step_s : 0.9 * smooth_step_s_ + 0.1 * metrics.step_s;
  const bool last = metrics.step == options_.steps;
  if (!options_.animated) {
    const bool wanted =
        metrics.step % options_.every == 0 || metrics.step == options_.first_step + 1 || last;
    if (wanted) write_text(options_.descriptor, line(metrics) + '\n');
    return;
  }
  const double done = options_.steps > 0
                          ? static_cast<double>(metrics.step) / static_cast<double>(options_.steps)
                          : 1;
  current_ = fmt::format("{} {}", bar(done, 16), line(metrics));
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && !last && now - last_draw_ < redraw_interval) return;
  last_draw_ = now;
  draw();
}

void Progress::note(const std::string& text) {
  if (!options_.shown) return;
  // Clears the progress line, writes, and draws the line again below.
  if (drawn_) redraw_line(options_.descriptor, "");
  // A note may quote a file, whose text must not begin a line of its own.
  write_text(options_.descriptor, printable(text) + '\n');
  if (drawn_) draw();
}

void Progress::draw() {
  const auto columns =
      static_cast<std::size_t>(std::max(20, terminal_columns(options_.descriptor) - 1));
  redraw_line(options_.descriptor, current_.substr(0, columns));
  drawn_ = true;
}

}  // namespace tessera::logs
