// Where in a part of a text its tokens are: the tokens are laid along its normal form, one after
// the other.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "tokenizers/pipeline/pipeline.h"
#include "tokenizers/text/byte_alphabet.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

constexpr std::string_view space_mark = "\xE2\x96\x81";

// The byte of a token <0xNN>.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  int value = 0;
  for (const char digit : token.substr(3, 2)) {
    const std::size_t number = std::string_view("0123456789ABCDEF").find(digit);
    if (number == std::string_view::npos) return std::nullopt;
    value = value * 16 + static_cast<int>(number);
  }
  return static_cast<char>(value);
}

// The texts that a token can stand for, the least changed one first.
std::vector<std::string> spellings(std::string_view token) {
  std::vector<std::string> found{std::string(token)};
  if (auto bytes = byte_alphabet().read(token)) found.push_back(std::move(*bytes));
  if (const auto byte = byte_of(token)) found.emplace_back(1, *byte);
  if (token.find(space_mark) != std::string_view::npos) {
    std::string& spaced = found.emplace_back();
    for (std::size_t at = 0; at < token.size();) {
      const bool marked = token.substr(at).starts_with(space_mark);
      spaced += marked ? ' ' : token[at];
      at += marked ? space_mark.size() : 1;
    }
  }
  return found;
}

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// The bytes [begin, end) of a token that is the next one at `at`.
std::optional<std::pair<std::size_t, std::size_t>> next_place(std::string_view text, std::size_t at,
                                                              std::string_view token) {
  const std::vector<std::string> all = spellings(token);
  for (; at <= text.size(); ++at) {
    const std::string_view rest = text.substr(at);
    for (const std::string_view one : all) {
      if (rest.starts_with(one)) return std::pair(at, at + one.size());
    }
    // A space that pre-tokenizers write before a text.
    for (const std::string_view one : all) {
      for (const std::string_view space : {std::string_view(" "), space_mark}) {
        if (!one.starts_with(space) || !rest.starts_with(one.substr(space.size()))) continue;
        return std::pair(at, at + one.size() - space.size());
      }
    }
    // Or one that they drop.
    if (rest.empty() || !is_space(rest.front())) break;
  }
  return std::nullopt;
}

}  // namespace

std::string_view PipelineTokenizer::token_text(std::int32_t id) const {
  const auto added = parts_.added.by_id().find(id);
  if (added != parts_.added.by_id().end()) return added->second.decoded;
  const std::vector<std::string>& known = parts_.model->tokens();
  return std::cmp_less(id, known.size()) ? std::string_view(known[static_cast<std::size_t>(id)])
                                         : std::string_view();
}

CutTokens::Cut PipelineTokenizer::cut_of(std::string_view part, std::size_t place,
                                         std::span<const std::int32_t> ids) const {
  while (place > 0 && !starts_character(part[place])) --place;
  std::string whole_buffer, buffer;
  std::string_view text = part;
  std::string_view before = part.substr(0, place);
  if (parts_.normalizer) {
    text = parts_.normalizer->apply(part, whole_buffer);
    before = parts_.normalizer->apply(before, buffer);
  }
  // The same characters may have another normal form when others follow.
  const auto limit = static_cast<std::size_t>(
      std::mismatch(before.begin(), before.end(), text.begin(), text.end()).first - before.begin());
  CutTokens::Cut cut;
  std::size_t at = 0;
  for (const std::int32_t id : ids) {
    const auto found = next_place(text, at, token_text(id));
    TESSERA_CHECK(found.has_value(), ErrorCode::data,
                  "tokenizer {} changes a text so that the places of its tokens are not known: "
                  "'{}' is not the next of '{}'",
                  name(), shown(token_text(id)), shown(text.substr(at, 40)));
    if (found->first >= limit) break;
    ++cut.begun;
    if (found->second <= limit) ++cut.ended;
    at = found->second;
  }
  return cut;
}

}  // namespace tessera::tokenizers
