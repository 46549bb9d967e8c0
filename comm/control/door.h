// How a connection of the control plane begins: both ends prove to each other that they know the
// job's key before either identifies itself.
//
//   caller: knock      the id of the meeting, and a nonce
//   host:   challenge  a nonce, and its proof over both
//   caller: hello      its proof over both, and its introduction
//   host:   hello      its introduction; or a refusal with the reason
//
// Without a key the proofs are empty, and any caller that knows the meeting's id is admitted. The
// key authenticates the two ends when a connection begins; later traffic is neither encrypted nor
// signed (SECURITY.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "comm/control/frame_stream.h"
#include "comm/control/job_key.h"
#include "comm/control/wire.h"

struct pollfd;

namespace tessera::comm::control {

// The listener is not the host of this meeting. With ErrorCode::configuration it may be one that
// has another key or version.
class NotOurHub : public Error {
  using Error::Error;
};

// Identifies the callers that a door admits: those with the same id and the same key.
struct Meeting {
  std::uint64_t id = 0;
  JobKey key;
};
// `purpose` distinguishes the doors of one job, `name` the jobs.
Meeting meeting_of(std::string_view purpose, std::string_view name, JobKey key);

// The caller's side: returns the host's introduction. Throws NotOurHub, or Error(configuration)
// with the host's reason when it has proven itself and refuses.
std::string introduce(int socket, const Meeting& meeting, std::string_view introduction,
                      std::chrono::milliseconds patience);

// The host's side, for a thread that also serves other connections: no function here waits.
//
// A caller that sends something else, or does not finish in time, is dropped. The number and memory
// of callers that have not proven themselves are limited: further ones wait in the listening
// socket's queue. The first dropped caller is reported on stderr, later ones are not.
class Door {
 public:
  struct Options {
    std::size_t strangers = 64;  // unproven callers at a time
    std::chrono::milliseconds patience{6'000};
    std::function<void(const std::string&)> report = {};  // the line; empty: to stderr
  };
  // A caller that was admitted.
  struct Caller {
    FileDescriptor connection;  // blocking
    std::string introduction;
  };

  // `host` names this end in the report of a dropped caller.
  Door(FileDescriptor listener, Meeting meeting, std::string host, Options options);

  // Appends the descriptors that poll() must watch.
  void add_to(std::vector<pollfd>& watched) const;
  // Returns the callers admitted since the last call. A caller waits for answer() or refuse().
  std::vector<Caller> serve();
  // Takes a connection that the calling code has accepted itself.
  void take(FileDescriptor connection);
  [[nodiscard]] std::size_t strangers() const { return strangers_.size(); }

  static void answer(const Caller& caller, std::string_view introduction);
  static void refuse(const Caller& caller, std::string_view reason);

 private:
  using Clock = std::chrono::steady_clock;
  struct Stranger {
    FrameStream stream;
    std::string address;
    Clock::time_point deadline;
    bool knocked = false;
    Nonce its{}, ours{};
  };

  void accept_all();
  // Advances a caller's handshake; true when the connection must be dropped.
  bool drops(Stranger& stranger, std::vector<Caller>& callers);
  bool take_knock(Stranger& stranger, const Frame& frame);
  bool take_hello(Stranger& stranger, const Frame& frame, std::vector<Caller>& callers);
  bool report(const Stranger& stranger, std::string_view what);  // true

  FileDescriptor listener_;
  Meeting meeting_;
  std::string host_;
  Options options_;
  std::vector<Stranger> strangers_;
  bool reported_ = false;
};

}  // namespace tessera::comm::control
