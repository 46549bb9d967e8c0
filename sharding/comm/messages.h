// Messages of any size between the ranks of a group, through its mailboxes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "sharding/comm/group.h"

namespace tessera::comm {

// Every rank's message, in rank order.
std::vector<std::string> exchange_messages(Group& group, std::string_view message, Call call);
// The root's message. What the others pass is ignored.
std::string broadcast_message(Group& group, std::string_view message, int root, Call call);

// The outcome of one rank's part of a collective step, for its peers: a number or an Error.
std::string encode_success(std::uint64_t value);
std::string encode_error(const Error& error);
// The number, or throws the Error.
std::uint64_t decode_result(std::string_view text);

}  // namespace tessera::comm
