// Exchanges messages in as many rounds as the longest one needs.
#include "comm/shared/messages.h"

#include <algorithm>

namespace tessera::comm {

std::vector<std::string> exchange_messages(Group& group, std::string_view message, Call call) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::string> messages(ranks);
  std::size_t longest = message.size();
  for (std::size_t begin = 0; begin == 0 || begin < longest; begin += mailbox_bytes) {
    const std::string_view part = message.substr(std::min(begin, message.size()), mailbox_bytes);
    group.meet(call, part, message.size());
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t bytes = group.message_bytes(static_cast<int>(rank));
      longest = std::max(longest, bytes);
      if (begin >= bytes) continue;
      messages[rank] +=
          group.mailbox(static_cast<int>(rank)).substr(0, std::min(mailbox_bytes, bytes - begin));
    }
    ++call.part;
  }
  return messages;
}

std::string broadcast_message(Group& group, std::string_view message, int root, Call call) {
  call.root = root;
  const std::string_view own = group.rank() == root ? message : std::string_view{};
  return std::move(exchange_messages(group, own, call)[static_cast<std::size_t>(root)]);
}

}  // namespace tessera::comm
