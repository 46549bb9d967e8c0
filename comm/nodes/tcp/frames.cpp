// AES-256-GCM and ChaCha20-Poly1305 of libsodium. Data that is only authenticated is a cipher's
// additional data, with an empty message.
#include "comm/nodes/tcp/frames.h"

#include <sodium.h>

#include <cstring>

#include "base/error.h"

namespace tessera::comm {
namespace {

// The number of the frame. Both ciphers have nonces of 12 bytes; a key is for one direction of one
// connection, so no number comes twice under it.
using FrameNonce = std::array<unsigned char, 12>;

static_assert(sizeof(FrameNonce) == crypto_aead_aes256gcm_NPUBBYTES);
static_assert(sizeof(FrameNonce) == crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
static_assert(FrameCipher::tag_bytes == crypto_aead_aes256gcm_ABYTES);
static_assert(FrameCipher::tag_bytes == crypto_aead_chacha20poly1305_ietf_ABYTES);
static_assert(sizeof(FrameKeys::Key) == crypto_aead_aes256gcm_KEYBYTES);
static_assert(sizeof(FrameKeys::Key) == crypto_aead_chacha20poly1305_ietf_KEYBYTES);

unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

void start_sodium() {
  TESSERA_CHECK(sodium_init() >= 0, ErrorCode::runtime, "libsodium cannot be started");
}

}  // namespace

FrameKeys::~FrameKeys() {
  sodium_memzero(sending.data(), sending.size());
  sodium_memzero(receiving.data(), receiving.size());
}

bool has_aes() {
  start_sodium();
  return crypto_aead_aes256gcm_is_available() == 1;
}

struct FrameCipher::State {
  bool aes = false;
  FrameKeys::Key key{};
  crypto_aead_aes256gcm_state expanded{};
  std::uint64_t frames = 0;

  State() = default;
  ~State() { sodium_memzero(this, sizeof(*this)); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  [[nodiscard]] FrameNonce nonce() const {
    FrameNonce nonce{};
    std::memcpy(nonce.data() + nonce.size() - sizeof(frames), &frames, sizeof(frames));
    return nonce;
  }
};

FrameCipher::FrameCipher(const FrameKeys& keys, const FrameKeys::Key& key)
    : state_(std::make_unique<State>()), encrypts_(keys.protection == Protection::encrypted) {
  start_sodium();
  state_->aes = keys.aes;
  state_->key = key;
  if (keys.aes) (void)crypto_aead_aes256gcm_beforenm(&state_->expanded, key.data());
}

FrameCipher::~FrameCipher() = default;

void FrameCipher::seal(const std::byte* data, std::size_t bytes, std::byte* sealed, Tag& tag) {
  const FrameNonce nonce = state_->nonce();
  // libsodium takes no null pointers, even for a message of 0 bytes.
  const unsigned char* message = raw(data);
  unsigned char nothing = 0;
  unsigned char* const result = encrypts_ ? raw(sealed) : &nothing;
  const unsigned char* covered = encrypts_ ? nullptr : raw(data);
  const std::size_t message_bytes = encrypts_ ? bytes : 0;
  const std::size_t covered_bytes = encrypts_ ? 0 : bytes;
  if (state_->aes) {
    (void)crypto_aead_aes256gcm_encrypt_detached_afternm(result, raw(tag.data()), nullptr, message,
                                                         message_bytes, covered, covered_bytes,
                                                         nullptr, nonce.data(), &state_->expanded);
  } else {
    (void)crypto_aead_chacha20poly1305_ietf_encrypt_detached(
        result, raw(tag.data()), nullptr, message, message_bytes, covered, covered_bytes, nullptr,
        nonce.data(), state_->key.data());
  }
  ++state_->frames;
}

bool FrameCipher::open(std::byte* data, std::size_t bytes, const Tag& tag) {
  const FrameNonce nonce = state_->nonce();
  unsigned char* message = raw(data);  // not null, as in seal()
  const unsigned char* covered = encrypts_ ? nullptr : raw(data);
  const std::size_t message_bytes = encrypts_ ? bytes : 0;
  const std::size_t covered_bytes = encrypts_ ? 0 : bytes;
  const int result = state_->aes ? crypto_aead_aes256gcm_decrypt_detached_afternm(
                                       message, nullptr, message, message_bytes, raw(tag.data()),
                                       covered, covered_bytes, nonce.data(), &state_->expanded)
                                 : crypto_aead_chacha20poly1305_ietf_decrypt_detached(
                                       message, nullptr, message, message_bytes, raw(tag.data()),
                                       covered, covered_bytes, nonce.data(), state_->key.data());
  if (result != 0) return false;
  ++state_->frames;
  return true;
}

}  // namespace tessera::comm
