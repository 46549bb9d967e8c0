// A number and the noun that it counts, for messages: "1 rank", "2 ranks".
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>
#include <string_view>

namespace tessera {

// The plural adds "es" after ch, sh, s and x ("batches"), turns a y after a consonant into "ies"
// ("entries"), and adds "s" otherwise.
inline std::string plural_of(std::string_view noun) {
  const auto ends = [&](std::string_view end) { return noun.ends_with(end); };
  if (ends("ch") || ends("sh") || ends("s") || ends("x")) return fmt::format("{}es", noun);
  constexpr std::string_view vowels = "aeiou";
  if (noun.size() > 1 && ends("y") && vowels.find(noun[noun.size() - 2]) == vowels.npos) {
    return fmt::format("{}ies", noun.substr(0, noun.size() - 1));
  }
  return fmt::format("{}s", noun);
}

std::string counted(std::integral auto number, std::string_view noun) {
  return fmt::format("{} {}", number, number == 1 ? std::string(noun) : plural_of(noun));
}

}  // namespace tessera
