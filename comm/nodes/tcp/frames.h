// Protection of the data of one connection: messages are cut into frames, each with a tag.
// libsodium does the cryptography; docs/several-hosts.md describes the bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace tessera::comm {

enum class Protection : std::uint8_t {
  none,           // bytes go as they are
  authenticated,  // and each frame has a tag
  encrypted,      // each frame is encrypted and has a tag
};

// The keys of a connection, as one of its ends uses them.
struct FrameKeys {
  using Key = std::array<std::uint8_t, 32>;

  Protection protection = Protection::none;
  bool aes = false;  // AES-256-GCM; else ChaCha20-Poly1305
  Key sending{}, receiving{};

  FrameKeys() = default;
  ~FrameKeys();  // overwrites them
  FrameKeys(const FrameKeys&) = default;
  FrameKeys& operator=(const FrameKeys&) = default;
};

// True when this processor has the instructions for AES-256-GCM.
bool has_aes();

// Seals or opens the frames of one direction. A frame opens only as the one that the other end has
// sealed at the same place of the sequence.
class FrameCipher {
 public:
  static constexpr std::size_t most_bytes = std::size_t{64} << 10;  // of a frame, without its tag
  static constexpr std::size_t tag_bytes = 16;
  using Tag = std::array<std::byte, tag_bytes>;

  FrameCipher(const FrameKeys& keys, const FrameKeys::Key& key);
  ~FrameCipher();
  FrameCipher(const FrameCipher&) = delete;
  FrameCipher& operator=(const FrameCipher&) = delete;

  [[nodiscard]] bool encrypts() const { return encrypts_; }
  // Computes the tag of the next frame; a cipher that encrypts also writes the frame to `sealed`.
  void seal(const std::byte* data, std::size_t bytes, std::byte* sealed, Tag& tag);
  // Checks the next frame, and decrypts it in its place. After false the same frame comes next.
  [[nodiscard]] bool open(std::byte* data, std::size_t bytes, const Tag& tag);

 private:
  struct State;
  std::unique_ptr<State> state_;
  bool encrypts_;
};

}  // namespace tessera::comm
