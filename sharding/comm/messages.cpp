// Exchange of messages in as many rounds as the longest one needs.
#include "sharding/comm/messages.h"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>

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

std::string encode_success(std::uint64_t value) {
  return fmt::format("ok {}", value);
}

std::string encode_error(const Error& error) {
  return fmt::format("error {} {}", static_cast<int>(error.code()), error.what());
}

std::uint64_t decode_result(std::string_view text) {
  std::uint64_t value = 0;
  const auto number = [&](std::size_t begin) {
    return std::from_chars(text.data() + begin, text.data() + text.size(), value);
  };
  if (text.starts_with("ok ")) {
    number(3);
    return value;
  }
  TESSERA_REQUIRE(text.starts_with("error "), "not an outcome: '{}'", text);
  const auto [end, status] = number(6);
  throw Error(static_cast<ErrorCode>(value),
              std::string(text.substr(static_cast<std::size_t>(end - text.data()) + 1)));
}

}  // namespace tessera::comm
