// The three messages with which a connection for data begins: hello of the caller, answer of the
// rank that is called, confirmation of the caller. Each proves that its sender knows the secret of
// the called rank, and covers the messages before it; both ends contribute a random number.
#pragma once

#include <array>
#include <cstdint>

#include "comm/control/job_key.h"
#include "comm/nodes/tcp/contact.h"

namespace tessera::comm {

using Mac = std::array<std::uint8_t, 32>;  // keyed BLAKE2b

struct DataHello {
  static constexpr std::uint64_t magic_number = 0x32617461646c7374;  // "tsldata2" in memory
  std::uint64_t magic = magic_number;
  std::uint64_t channel = 0;
  std::int32_t from = 0;
  std::int32_t to = 0;
  control::Nonce nonce{};
  Mac mac{};
};

struct DataAnswer {
  control::Nonce nonce{};
  Mac mac{};
};

// `secret` is that of the called rank.
DataHello make_hello(std::uint64_t channel, int from, int to, const Contact::Secret& secret);
bool is_genuine(const DataHello& hello, const Contact::Secret& secret);
DataAnswer make_answer(const DataHello& hello, const Contact::Secret& secret);
bool is_genuine(const DataAnswer& answer, const DataHello& hello, const Contact::Secret& secret);
Mac make_confirmation(const DataHello& hello, const DataAnswer& answer,
                      const Contact::Secret& secret);
bool is_genuine(const Mac& confirmation, const DataHello& hello, const DataAnswer& answer,
                const Contact::Secret& secret);

// The keys of the connection for the end that has called, or for the other one.
enum class DataEnd : std::uint8_t { caller, called };
FrameKeys frame_keys(DataEnd end, const DataHello& hello, const DataAnswer& answer,
                     const Contact& caller, const Contact& called);

}  // namespace tessera::comm
