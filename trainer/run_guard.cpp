// Remembers the first failed call.
#include "trainer/run_guard.h"

#include <fmt/format.h>

#include "base/error.h"

namespace tessera {

void RunGuard::require(std::string_view call, Needs needs) const {
  TESSERA_REQUIRE(std::this_thread::get_id() == thread_,
                  "{} on another thread: the Trainer was made on another thread, whose seed and "
                  "device it uses; call it there",
                  call);
  TESSERA_REQUIRE(
      !module_.expired(),
      "{}: the module was destroyed before the trainer; keep it until the trainer's end", call);
  TESSERA_REQUIRE(failure_.empty() || (needs == Needs::last_step && has_last_step_),
                  "{}: an earlier {}: make a new Trainer and resume() from the last checkpoint",
                  call, failure_);
}

void RunGuard::fail(std::string_view call, Needs needs, std::string_view reason) {
  constexpr std::size_t longest = 300;  // the report of the ranks' calls may follow
  if (!failure_.empty()) return;
  has_last_step_ = has_last_step_ || needs == Needs::last_step;
  failure_ = fmt::format("{} failed ('{}{}')", call, reason.substr(0, longest),
                         reason.size() > longest ? "..." : "");
}

}  // namespace tessera
