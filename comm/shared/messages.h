// Messages of any size between the ranks of a group, through its mailboxes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "comm/shared/group.h"

namespace tessera::comm {

// Every rank's message, in rank order.
std::vector<std::string> exchange_messages(Group& group, std::string_view message, Call call);
// The root's message. The messages of the other ranks are ignored.
std::string broadcast_message(Group& group, std::string_view message, int root, Call call);

}  // namespace tessera::comm
