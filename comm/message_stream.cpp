// Calls of a communicator on a stream's worker, one for each direction.
#include "comm/message_stream.h"

#include <fmt/format.h>

#include <utility>

namespace tessera::comm {

MessageStream::Direction MessageStream::direction(Communicator& ranks, std::string_view name,
                                                  std::string_view to) {
  const std::string full = fmt::format("{}, to {} ranks", name, to);
  return {ranks.duplicate(full), std::make_unique<Stream>(full, ranks.device())};
}

MessageStream::MessageStream(Communicator& ranks, std::string_view name)
    : up_(direction(ranks, name, "higher")), down_(direction(ranks, name, "lower")) {}

MessageStream::~MessageStream() {
  const RankWaits waits(*up_.ranks);
  up_.stream.reset();
  down_.stream.reset();
}

template <class Call>
Event MessageStream::Direction::enqueue(Call call) {
  return stream->enqueue([ranks = ranks.get(), call = std::move(call)] {
    const WorkerScope scope(*ranks);
    call(*ranks);
  });
}

Event MessageStream::send(const void* memory, std::size_t bytes, int to, Tag tag) {
  return (to > up_.ranks->rank() ? up_ : down_).enqueue([=](Communicator& ranks) {
    ranks.send(memory, bytes, to, tag);
  });
}

Event MessageStream::receive(void* memory, std::size_t bytes, int from, Tag tag) {
  return (from < up_.ranks->rank() ? up_ : down_).enqueue([=](Communicator& ranks) {
    ranks.receive(memory, bytes, from, tag);
  });
}

Event MessageStream::broadcast(void* memory, std::size_t bytes, int root, Tag tag) {
  return up_.enqueue([=](Communicator& ranks) { ranks.broadcast(memory, bytes, root, tag); });
}

void MessageStream::wait(const Event& event) {
  up_.stream->wait(event);
  down_.stream->wait(event);
}

void MessageStream::join(const Event& event) {
  const RankWaits waits(*up_.ranks);
  event.join();
}

}  // namespace tessera::comm
