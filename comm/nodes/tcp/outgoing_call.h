// A connection for data that this rank opens to another: it connects, greets and takes the answer,
// and never waits.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "comm/file_descriptor.h"
#include "comm/nodes/tcp/greeting.h"

namespace tessera::comm {

class OutgoingCall {
 public:
  // `peer` must live as long as the call.
  OutgoingCall(std::uint64_t channel, int rank, const Contact& own, const NamedContact& peer);

  // Goes on as far as it can; true when the connection is open. Throws Error(rank_failed) when the
  // other end is not that rank, or has gone; `look` first throws the job's own failure.
  bool step(const std::function<void()>& look);
  // For poll(); without a connection it waits for nothing.
  [[nodiscard]] pollfd wanted() const;
  [[noreturn]] void fail_late() const;

  // After step() has returned true.
  [[nodiscard]] FileDescriptor take_socket() { return std::move(socket_); }
  [[nodiscard]] FrameKeys keys() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage : std::uint8_t { apart, connecting, greeted };

  void begin();
  void finish_connecting();
  void say_hello();
  bool hear_answer(const std::function<void()>& look);
  void retry_later(int error);

  std::uint64_t channel_;
  int rank_;
  const Contact& own_;
  const NamedContact& peer_;
  std::string where_;  // the address that is called
  Stage stage_ = Stage::apart;
  FileDescriptor socket_;
  Clock::time_point next_try_{};
  std::string last_ = "no answer";
  DataHello hello_{};
  DataAnswer answer_{};
  std::size_t heard_ = 0;  // bytes of the answer
};

}  // namespace tessera::comm
