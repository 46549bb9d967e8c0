// One line, once.
#include "comm/wait_notice.h"

#include <algorithm>

#include "base/text/print.h"

namespace tessera::comm {

void WaitNotice::look(const std::function<std::string()>& waiting) {
  const auto waited = Clock::now() - began_;
  if (said_ || waited < patience) return;
  said_ = true;
  const double left = std::chrono::duration<double>(limit_ - waited).count();
  print_err("tessera: {}; it gives up in {:.0f} s\n", waiting(), std::max(0.0, left));
}

std::chrono::milliseconds WaitNotice::longest_sleep(std::chrono::milliseconds wanted) const {
  if (said_) return wanted;
  const auto until_said =
      std::chrono::ceil<std::chrono::milliseconds>(began_ + patience - Clock::now());
  return std::clamp(until_said, std::chrono::milliseconds(1),
                    std::max(wanted, std::chrono::milliseconds(1)));
}

}  // namespace tessera::comm
