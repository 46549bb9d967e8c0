// The keys of one connection of a job with a key, and its sealed frames. libsodium does the
// cryptography; docs/several-hosts.md describes the messages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "comm/control/job_key.h"
#include "comm/control/wire.h"

namespace tessera::comm::control {

using PublicKey = std::array<std::uint8_t, 32>;     // X25519
using StreamHeader = std::array<std::uint8_t, 24>;  // of the frames in one direction

// Seals and opens the frames of a connection (XChaCha20-Poly1305): they arrive in order, unchanged
// and each once, or opening throws. Each direction has a key of its own. One thread may seal while
// another opens.
class Session {
 public:
  static constexpr std::size_t tag_bytes = 17;
  // A sealed frame is its sealed header, then its sealed payload, if it has one.
  static constexpr std::size_t header_bytes = sizeof(FrameHeader) + tag_bytes;

  Session();  // without a key: frames go as they are
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  [[nodiscard]] bool seals() const { return streams_ != nullptr; }
  [[nodiscard]] std::string seal(const FrameHeader& header, std::string_view payload);
  // Both throw Error(rank_failed) for bytes that the other end has not sealed as the next ones.
  FrameHeader open_header(std::string_view sealed);
  std::string open_payload(std::string_view sealed);

 private:
  friend class Handshake;
  struct Streams;
  std::unique_ptr<Streams> streams_;
};

// One end's part of a handshake. It keeps the messages in a transcript, which every proof covers.
// Without a key all proofs and public keys are zeros.
class Handshake {
 public:
  enum class End { caller, host };

  // The name of the meeting is the first part of the transcript.
  Handshake(End own, JobKey key, std::string_view meeting);

  [[nodiscard]] const PublicKey& public_key() const { return public_; }
  // Adds a message to the transcript; both ends add the same ones in the same order.
  void add(std::string_view message);

  // The proof for a message `said` after those of the transcript; `label` names its sender and
  // kind.
  [[nodiscard]] Proof prove(std::string_view label, std::string_view said) const;
  [[nodiscard]] bool holds(const Proof& proof, std::string_view label, std::string_view said) const;

  // Derives the keys of both directions from the job's key, the secret that both public keys share,
  // and the transcript, which must have both public keys. False when `theirs` is not a public key.
  [[nodiscard]] bool agree(const PublicKey& theirs);
  // After agree(): of the frames that this end sends.
  [[nodiscard]] const StreamHeader& stream_header() const { return header_; }
  // After agree(), once: the session with the other end's header.
  Session session(const StreamHeader& theirs);

 private:
  struct Secret {
    std::array<std::uint8_t, 32> bytes{};
    ~Secret();  // overwrites it
  };

  End own_;
  JobKey key_;
  std::string transcript_;
  Secret secret_;  // of public_
  PublicKey public_{};
  StreamHeader header_{};
  Session session_;
};

}  // namespace tessera::comm::control
