// X25519, HMAC-SHA-256 and secretstream of libsodium.
#include "comm/control/session.h"

#include <sodium.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace tessera::comm::control {

struct Session::Streams {
  crypto_secretstream_xchacha20poly1305_state sending{}, receiving{};
  std::array<std::uint8_t, crypto_secretstream_xchacha20poly1305_KEYBYTES> receiving_key{};

  Streams() = default;
  ~Streams() { sodium_memzero(this, sizeof(*this)); }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
};

namespace {

static_assert(Session::tag_bytes == crypto_secretstream_xchacha20poly1305_ABYTES);
static_assert(std::tuple_size_v<StreamHeader> == crypto_secretstream_xchacha20poly1305_HEADERBYTES);
static_assert(std::tuple_size_v<PublicKey> == crypto_scalarmult_BYTES);
static_assert(std::tuple_size_v<PublicKey> == crypto_box_PUBLICKEYBYTES);
static_assert(std::tuple_size_v<Proof> == crypto_kdf_KEYBYTES);

constexpr std::string_view keys_label = "tessera control plane, keys";
constexpr const char* key_context = "tessctrl";
constexpr std::uint64_t key_of_caller = 1, key_of_host = 2;  // of the frames that it sends

unsigned char* bytes_at(char* data) {
  return reinterpret_cast<unsigned char*>(data);
}
const unsigned char* bytes_at(const char* data) {
  return reinterpret_cast<const unsigned char*>(data);
}

// Appends one sealed piece.
void seal_piece(crypto_secretstream_xchacha20poly1305_state& state, std::string& to,
                std::string_view piece) {
  const std::size_t at = to.size();
  to.resize(at + piece.size() + Session::tag_bytes);
  crypto_secretstream_xchacha20poly1305_push(&state, bytes_at(to.data() + at), nullptr,
                                             bytes_at(piece.data()), piece.size(), nullptr, 0,
                                             crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
}

void open_piece(crypto_secretstream_xchacha20poly1305_state& state, char* to,
                std::string_view sealed) {
  unsigned char tag = 0;
  const bool opened = sealed.size() >= Session::tag_bytes &&
                      crypto_secretstream_xchacha20poly1305_pull(&state, bytes_at(to), nullptr,
                                                                 &tag, bytes_at(sealed.data()),
                                                                 sealed.size(), nullptr, 0) == 0;
  TESSERA_CHECK(opened, ErrorCode::rank_failed,
                "a message of a control connection was changed, repeated or left out on its way: "
                "another program passes the connection on; look for it between the nodes");
}

}  // namespace

Session::Session() = default;
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

std::string Session::seal(const FrameHeader& header, std::string_view payload) {
  std::string sealed;
  sealed.reserve(header_bytes + (payload.empty() ? 0 : payload.size() + tag_bytes));
  seal_piece(streams_->sending, sealed, {reinterpret_cast<const char*>(&header), sizeof(header)});
  if (!payload.empty()) seal_piece(streams_->sending, sealed, payload);
  return sealed;
}

FrameHeader Session::open_header(std::string_view sealed) {
  FrameHeader header;
  TESSERA_REQUIRE(sealed.size() == header_bytes, "a sealed header of {} bytes", sealed.size());
  open_piece(streams_->receiving, reinterpret_cast<char*>(&header), sealed);
  return header;
}

std::string Session::open_payload(std::string_view sealed) {
  std::string payload(sealed.size() - std::min(sealed.size(), tag_bytes), '\0');
  open_piece(streams_->receiving, payload.data(), sealed);
  return payload;
}

Handshake::Secret::~Secret() {
  sodium_memzero(bytes.data(), bytes.size());
}

Handshake::Handshake(End own, JobKey key, std::string_view meeting)
    : own_(own), key_(std::move(key)) {
  add(meeting);
  if (!key_.given()) return;
  TESSERA_CHECK(sodium_init() >= 0, ErrorCode::runtime, "libsodium cannot be started");
  crypto_box_keypair(public_.data(), secret_.bytes.data());
}

void Handshake::add(std::string_view message) {
  const std::uint64_t length = message.size();
  transcript_.append(reinterpret_cast<const char*>(&length), sizeof(length));
  transcript_ += message;
}

Proof Handshake::prove(std::string_view label, std::string_view said) const {
  return key_.prove({label, transcript_, said});
}

bool Handshake::holds(const Proof& proof, std::string_view label, std::string_view said) const {
  return key_.holds(proof, {label, transcript_, said});
}

bool Handshake::agree(const PublicKey& theirs) {
  if (!key_.given()) return true;
  Secret shared, root;
  if (crypto_scalarmult(shared.bytes.data(), secret_.bytes.data(), theirs.data()) != 0) {
    return false;
  }
  root.bytes =
      key_.prove({keys_label,
                  transcript_,
                  {reinterpret_cast<const char*>(shared.bytes.data()), shared.bytes.size()}});
  auto streams = std::make_unique<Session::Streams>();
  Secret sending;
  const bool calls = own_ == End::caller;
  crypto_kdf_derive_from_key(sending.bytes.data(), sending.bytes.size(),
                             calls ? key_of_caller : key_of_host, key_context, root.bytes.data());
  crypto_kdf_derive_from_key(streams->receiving_key.data(), streams->receiving_key.size(),
                             calls ? key_of_host : key_of_caller, key_context, root.bytes.data());
  crypto_secretstream_xchacha20poly1305_init_push(&streams->sending, header_.data(),
                                                  sending.bytes.data());
  session_.streams_ = std::move(streams);
  return true;
}

Session Handshake::session(const StreamHeader& theirs) {
  if (session_.seals()) {
    crypto_secretstream_xchacha20poly1305_init_pull(&session_.streams_->receiving, theirs.data(),
                                                    session_.streams_->receiving_key.data());
  }
  return std::move(session_);
}

}  // namespace tessera::comm::control
