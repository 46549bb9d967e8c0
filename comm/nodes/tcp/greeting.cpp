// Proofs and keys: keyed BLAKE2b of libsodium, with a label for each purpose.
#include "comm/nodes/tcp/greeting.h"

#include <sodium.h>

#include <initializer_list>
#include <string_view>

#include "base/error.h"

namespace tessera::comm {
namespace {

static_assert(sizeof(DataHello) == 24 + sizeof(control::Nonce) + sizeof(Mac), "has no padding");
static_assert(sizeof(DataAnswer) == sizeof(control::Nonce) + sizeof(Mac), "has no padding");

constexpr std::string_view hello_label = "tessera data, hello";
constexpr std::string_view answer_label = "tessera data, answer";
constexpr std::string_view confirmation_label = "tessera data, confirmation";
constexpr std::string_view frames_of_caller = "tessera data, frames of the caller";
constexpr std::string_view frames_of_called = "tessera data, frames of the called";

template <class T>
std::string_view bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// Over the parts in this order, each with its length.
Mac keyed_hash(const Contact::Secret& key, std::initializer_list<std::string_view> parts) {
  TESSERA_CHECK(sodium_init() >= 0, ErrorCode::runtime, "libsodium cannot be started");
  Mac result{};
  crypto_generichash_state state;
  crypto_generichash_init(&state, key.data(), key.size(), result.size());
  for (const std::string_view part : parts) {
    const std::uint64_t length = part.size();
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&length),
                              sizeof(length));
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(part.data()),
                              part.size());
  }
  crypto_generichash_final(&state, result.data(), result.size());
  sodium_memzero(&state, sizeof(state));
  return result;
}

bool equal(const Mac& one, const Mac& other) {
  return sodium_memcmp(one.data(), other.data(), one.size()) == 0;
}

Mac mac_of(const DataHello& hello, const Contact::Secret& secret) {
  DataHello without = hello;
  without.mac = {};
  return keyed_hash(secret, {hello_label, bytes_of(without)});
}

Mac mac_of(const DataAnswer& answer, const DataHello& hello, const Contact::Secret& secret) {
  return keyed_hash(secret, {answer_label, bytes_of(hello), bytes_of(answer.nonce)});
}

}  // namespace

DataHello make_hello(std::uint64_t channel, int from, int to, const Contact::Secret& secret) {
  DataHello hello{.channel = channel, .from = from, .to = to, .nonce = control::make_nonce()};
  hello.mac = mac_of(hello, secret);
  return hello;
}

bool is_genuine(const DataHello& hello, const Contact::Secret& secret) {
  return hello.magic == DataHello::magic_number && equal(hello.mac, mac_of(hello, secret));
}

DataAnswer make_answer(const DataHello& hello, const Contact::Secret& secret) {
  DataAnswer answer{.nonce = control::make_nonce()};
  answer.mac = mac_of(answer, hello, secret);
  return answer;
}

bool is_genuine(const DataAnswer& answer, const DataHello& hello, const Contact::Secret& secret) {
  return equal(answer.mac, mac_of(answer, hello, secret));
}

Mac make_confirmation(const DataHello& hello, const DataAnswer& answer,
                      const Contact::Secret& secret) {
  return keyed_hash(secret, {confirmation_label, bytes_of(hello), bytes_of(answer)});
}

bool is_genuine(const Mac& confirmation, const DataHello& hello, const DataAnswer& answer,
                const Contact::Secret& secret) {
  return equal(confirmation, make_confirmation(hello, answer, secret));
}

FrameKeys frame_keys(DataEnd end, const DataHello& hello, const DataAnswer& answer,
                     const Contact& caller, const Contact& called) {
  FrameKeys keys;
  keys.protection = protection_between(caller, called);
  if (keys.protection == Protection::none) return keys;
  keys.aes = caller.aes && called.aes;
  const auto key_of = [&](std::string_view label) {
    return keyed_hash(called.secret,
                      {label, bytes_of(caller.secret), bytes_of(hello), bytes_of(answer),
                       bytes_of(keys.protection), bytes_of(keys.aes)});
  };
  const bool calls = end == DataEnd::caller;
  keys.sending = key_of(calls ? frames_of_caller : frames_of_called);
  keys.receiving = key_of(calls ? frames_of_called : frames_of_caller);
  return keys;
}

}  // namespace tessera::comm
