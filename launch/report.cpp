// The message for the first failure.
#include "launch/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "base/error.h"
#include "base/text/print.h"

namespace tessera::launcher {
namespace {

constexpr int rank_failed = static_cast<int>(ErrorCode::rank_failed);

// The launcher lost what a rank printed, or ended the rank's pipe because of that.
bool fails_for_want_of_room(const LaunchOutcome& outcome) {
  return outcome.lacked_room &&
         (!outcome.first_failure || outcome.first_failure->exit.signal == SIGPIPE);
}

int exit_code(const LaunchOutcome& outcome) {
  if (fails_for_want_of_room(outcome)) return static_cast<int>(ErrorCode::checkpoint);
  if (outcome.stop_signal != 0) {
    const bool chosen = outcome.first_failure && outcome.first_failure->exit.signal == 0;
    return chosen                  ? outcome.first_failure->exit.code
           : outcome.first_failure ? 128 + outcome.stop_signal
                                   : 0;
  }
  if (!outcome.first_failure) return 0;
  return outcome.first_failure->exit.signal != 0 ? rank_failed : outcome.first_failure->exit.code;
}

// For these codes every rank finds the same error, or the message itself names the rank.
bool concerns_all(int code) {
  constexpr ErrorCode kinds[] = {ErrorCode::usage, ErrorCode::configuration, ErrorCode::checkpoint,
                                 ErrorCode::numeric};
  return std::any_of(std::begin(kinds), std::end(kinds),
                     [code](ErrorCode kind) { return static_cast<int>(kind) == code; });
}

// The message of the first rank that failed, once; without a message, how that rank ended.
std::string line_of(const LaunchOutcome& outcome, int here, int world, const std::string& place) {
  if (!outcome.first_failure) return "";
  const EndedRank& first = *outcome.first_failure;
  const auto of_first =
      std::find_if(outcome.messages.begin(), outcome.messages.end(),
                   [&](const Failure& message) { return message.rank == first.rank; });
  if (first.exit.signal == 0 && of_first != outcome.messages.end()) {
    const bool all_alike =
        here > 1 && std::count_if(outcome.messages.begin(), outcome.messages.end(),
                                  [&](const Failure& message) {
                                    return message.message == of_first->message;
                                  }) == here;
    return world == 1 || all_alike || concerns_all(of_first->code)
               ? fmt::format("error: {}", of_first->message)
               : fmt::format("error: rank {} (pid {}{}): {}", first.rank, first.pid, place,
                             of_first->message);
  }
  if (outcome.stop_signal != 0) {
    return fmt::format("stopped by signal {} (SIG{})", outcome.stop_signal,
                       sigabbrev_np(outcome.stop_signal));
  }
  const bool perhaps_memory = first.exit.signal == SIGKILL;
  return fmt::format("error: rank {} (pid {}{}) {}{}{}", first.rank, first.pid, place,
                     describe(first.exit),
                     perhaps_memory ? ", by hand, or by the kernel because memory ran out" : "",
                     world > 1 ? "; the other ranks were stopped" : "");
}

// An error that would come again is not worth a restart. A resumed run repeats its bits, so a loss
// that is not finite comes back as well.
bool worth_restarting(const LaunchOutcome& outcome) {
  if (!outcome.first_failure || outcome.stop_signal != 0) return false;
  if (fails_for_want_of_room(outcome)) return false;
  const int code = outcome.first_failure->exit.code;
  constexpr ErrorCode lasting[] = {ErrorCode::usage, ErrorCode::configuration, ErrorCode::data,
                                   ErrorCode::checkpoint, ErrorCode::numeric};
  return std::none_of(std::begin(lasting), std::end(lasting),
                      [code](ErrorCode kind) { return static_cast<int>(kind) == code; });
}

}  // namespace

int weight_of(const RankExit& exit) {
  if (exit.signal != 0) return Weight::kill;
  return exit.code == 0             ? Weight::none
         : exit.code == rank_failed ? Weight::consequence
                                    : Weight::failure;
}

LaunchReport report_of(const LaunchOutcome& outcome, int here, int world,
                       const std::string& place) {
  return {.code = exit_code(outcome),
          .weight = outcome.first_failure ? weight_of(outcome.first_failure->exit) : Weight::none,
          .worth_restarting = worth_restarting(outcome),
          .line = line_of(outcome, here, world, place)};
}

void say(const std::string& line) {
  write_text(STDERR_FILENO, "tessera: " + in_lines(printable(line)) + "\n");
}

}  // namespace tessera::launcher
