// Memory from rank to rank, in parallel with a rank's own work.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "comm/communicator.h"
#include "engine/device/stream.h"

namespace tessera::comm {

// Communicator's send(), receive() and broadcast() on separate streams and channels. They return at
// once; a message is done when the returned event has happened. Until then the caller must not
// write the sent memory, must not touch the received memory, and must keep both allocated. Each
// message comes after the work that the calling thread has put into its current queue of the
// device.
//
// Messages to higher ranks go in the order of their calls, and messages to lower ranks separately
// in theirs; a send may wait for its receive, and later messages in its direction wait with it.
// Broadcasts go with the messages to higher ranks. So ranks may swap, or pass on in a ring, in any
// order of calls. Used by the rank's own thread.
class MessageStream {
 public:
  // Collective, as duplicate() is.
  MessageStream(Communicator& ranks, std::string_view name);
  // Finishes the messages that were begun; drops an error that no call has waited for.
  ~MessageStream();
  MessageStream(const MessageStream&) = delete;
  MessageStream& operator=(const MessageStream&) = delete;

  Event send(const void* memory, std::size_t bytes, int to, Tag tag = {});
  Event receive(void* memory, std::size_t bytes, int from, Tag tag = {});
  Event broadcast(void* memory, std::size_t bytes, int root, Tag tag = {});
  // Later calls wait for the event.
  void wait(const Event& event);
  // Waits for the event, on a GPU in the calling thread's current queue, and rethrows. Use it
  // instead of Event::join(), after which a deadlock of ranks would not be reported.
  void join(const Event& event);

 private:
  struct Direction {
    std::shared_ptr<Communicator> ranks;
    std::unique_ptr<Stream> stream;
    template <class Call>
    Event enqueue(Call call);
  };
  static Direction direction(Communicator& ranks, std::string_view name, std::string_view to);

  Direction up_, down_;
};

}  // namespace tessera::comm
