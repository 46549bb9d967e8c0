// How a connection of the control plane begins: both ends prove to each other that they know the
// job's key, the caller first, and agree on keys for the frames that follow.
//
//   caller: knock      the id of the meeting, and a public key for this connection
//   host:   challenge  a public key for this connection
//   caller: hello      its proof, the port that it called, and its introduction
//   host:   hello      its proof, and its introduction; or a refusal with the reason
//
// Each proof covers all messages before it, the meeting's name and the rest of its own message.
// The door sends nothing that depends on the key before the caller has proven that it knows it.
// Frames after these four are sealed (session.h). Without a key the proofs are empty, any caller
// that knows the meeting's id is admitted, and frames go as they are. docs/several-hosts.md.
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
#include "comm/control/session.h"
#include "comm/control/wire.h"
#include "comm/watch/crowd.h"

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
  std::string name;  // `id` is its hash
  JobKey key;
};
// `purpose` distinguishes the doors of one job, `name` the jobs.
Meeting meeting_of(std::string_view purpose, std::string_view name, JobKey key);

// The host's admission, as the caller receives it.
struct Admission {
  std::string introduction;
  Session session;
};

// The caller's side. Throws NotOurHub, or Error(configuration) with the host's reason when it has
// proven itself and refuses.
Admission introduce(int socket, const Meeting& meeting, std::string_view introduction,
                    std::chrono::milliseconds patience);

// The host's side, for a thread that also serves other connections: no function here waits.
//
// A caller that sends something else, or does not finish in time, is dropped. The number and memory
// of callers that have not proven themselves are limited: a further one takes the place of the
// oldest silent one (crowd.h). The first dropped caller is reported on stderr, later ones are not.
class Door {
 public:
  struct Options {
    CrowdLimits strangers = {};  // unproven callers
    std::chrono::milliseconds patience{6'000};
    std::function<void(const std::string&)> report = {};  // the line; empty: to stderr
  };
  // A caller that was admitted.
  struct Caller {
    FileDescriptor connection;  // blocking
    std::string introduction;
    Handshake handshake;
    StreamHeader stream_header{};
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

  // The session of the admitted caller's connection.
  static Session answer(Caller& caller, std::string_view introduction);
  static void refuse(const Caller& caller, std::string_view reason);

 private:
  using Clock = std::chrono::steady_clock;
  struct Stranger {
    FrameStream stream;
    std::string address;
    Clock::time_point since;
    std::optional<Handshake> handshake = {};  // after its knock
    PublicKey public_key{};                   // its own
  };

  void accept_all(std::vector<Caller>& callers);
  [[nodiscard]] Standing look_at(Stranger& stranger, std::vector<Caller>& callers);
  // Advances a caller's handshake; true when the connection must be dropped.
  bool drops(Stranger& stranger, std::vector<Caller>& callers);
  bool take_knock(Stranger& stranger, const Frame& frame);
  bool take_hello(Stranger& stranger, const Frame& frame, std::vector<Caller>& callers);
  bool report(const Stranger& stranger, std::string_view what);  // true

  FileDescriptor listener_;
  Meeting meeting_;
  std::string host_;
  Options options_;
  std::vector<Stranger> strangers_;  // in the order of their arrival
  ListenerPause pause_;
  bool reported_ = false;
};

}  // namespace tessera::comm::control
