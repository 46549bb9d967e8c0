// A line that is drawn again, or lines.
#include "cli/commands/encoders/evaluation_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/counted.h"
#include "base/text/print.h"

namespace tessera::cli {

EvaluationProgress::~EvaluationProgress() {
  if (drawn_) redraw_line(STDERR_FILENO, "");
}

void EvaluationProgress::add(std::int64_t tokens) {
  done_ = std::min(done_ + tokens * ranks_, tokens_);
  const auto now = std::chrono::steady_clock::now();
  if (!shown_ || now - last_ < (animated_ ? redraw_interval : line_interval)) return;
  last_ = now;
  drawn_ = animated_;
  const std::string text = fmt::format("{} of {}", done_, counted(tokens_, "token"));
  if (animated_) {
    redraw_line(STDERR_FILENO, text);
  } else {
    print_err("tessera: {}\n", text);
  }
}

}  // namespace tessera::cli
