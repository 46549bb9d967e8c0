// Outcomes of all ranks, exchanged so that none waits for one that has failed.
#include "checkpoint/collective.h"

#include <fmt/format.h>
#include <exception>
#include <optional>

#include "kernels/base/error.h"

namespace tessera::checkpoint {

std::vector<std::string> together(comm::Communicator& communicator, std::string_view doing,
                                  const std::function<std::string()>& work) {
  std::string outcome;
  try {
    outcome = '+' + work();
  } catch (const std::exception& error) {
    outcome = std::string("-") + error.what();
  }
  const comm::Tag tag{.step = 0, .unit = 0, .phase = comm::Phase::checkpoint};
  std::vector<std::string> outcomes = communicator.exchange(outcome, tag);
  std::optional<std::size_t> first;
  std::size_t others = 0;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].at(0) == '+') continue;
    if (first.has_value()) ++others;
    if (!first.has_value()) first = rank;
  }
  if (first.has_value()) {
    const std::string more =
        others == 0 ? std::string() : fmt::format(" (and {} more ranks failed)", others);
    fail(ErrorCode::checkpoint, "{}: rank {}: {}{}", doing, *first, outcomes[*first].substr(1),
         more);
  }
  for (std::string& message : outcomes) message.erase(0, 1);
  return outcomes;
}

}  // namespace tessera::checkpoint
