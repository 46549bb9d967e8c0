// Memory from rank to rank beside a rank's own work.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "comm/communicator.h"
#include "engine/device/stream.h"

namespace tessera::comm {

// Communicator's send(), receive() and broadcast() on streams and channels of their own: they
// return at once, and are done when what they return has happened. Until then what is sent is not
// written, what is received is not touched, and both stay allocated. Each comes after what the
// calling thread has put into its current queue of the device.
//
// Messages to higher ranks go in the order of their calls, and apart from them those to lower ones;
// a send may wait for its receive, and what comes behind it in its direction with it. Broadcasts go
// with the messages to higher ranks. So ranks may swap, or pass on in a ring, in any order of
// calls. Used by the rank's own thread.
class MessageStream {
 public:
  // Collective, as duplicate() is.
  MessageStream(Communicator& ranks, std::string_view name);
  // Finishes what was begun; an error that nobody has waited for is dropped.
  ~MessageStream();
  MessageStream(const MessageStream&) = delete;
  MessageStream& operator=(const MessageStream&) = delete;

  Event send(const void* memory, std::size_t bytes, int to, Tag tag = {});
  Event receive(void* memory, std::size_t bytes, int from, Tag tag = {});
  Event broadcast(void* memory, std::size_t bytes, int root, Tag tag = {});
  // What is called later waits for the event.
  void wait(const Event& event);
  // Waits for the event, on a GPU in the calling thread's current queue, and rethrows. Rather than
  // Event::join(), after which ranks that wait for one another would not be told so.
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
