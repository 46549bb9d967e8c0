// Searches with a trie from every place of the text at which a token may begin.
#include "tokenizers/pipeline/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

std::size_t spaces_before(std::string_view text, std::size_t at) {
  while (at > 0) {
    std::size_t begin = at - 1;
    while (!starts_character(text[begin])) --begin;
    std::size_t end = begin;
    if (!is_white_space(next_character(text, end))) break;
    at = begin;
  }
  return at;
}

std::size_t spaces_after(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t end = at;
    if (!is_white_space(next_character(text, end))) break;
    at = end;
  }
  return at;
}

bool word_before(std::string_view text, std::size_t at) {
  if (at == 0) return false;
  std::size_t begin = at - 1;
  while (!starts_character(text[begin])) --begin;
  return is_word(next_character(text, begin));
}

bool word_after(std::string_view text, std::size_t at) {
  return at < text.size() && is_word(next_character(text, at));
}

AddedToken added_token(const nlohmann::json& object, const std::string& source) {
  AddedToken token;
  token.content = string_of(object, "content", source);
  token.special = bool_or(object, "special", false, source);
  token.single_word = bool_or(object, "single_word", false, source);
  token.lstrip = bool_or(object, "lstrip", false, source);
  token.rstrip = bool_or(object, "rstrip", false, source);
  token.normalized = bool_or(object, "normalized", !token.special, source);
  return token;
}

}  // namespace

AddedTokens::AddedTokens(const nlohmann::json& listed, const VocabularyModel& model,
                         const Normalizer* normalizer, const std::string& source) {
  TESSERA_CHECK(listed.is_array(), ErrorCode::data, "{}: not a list", source);
  std::vector<AddedToken> special;
  std::vector<AddedToken> others;
  std::int32_t next = static_cast<std::int32_t>(model.listed());
  for (std::size_t i = 0; i < listed.size(); ++i) {
    AddedToken token = added_token(listed[i], fmt::format("{}[{}]", source, i));
    if (token.content.empty()) continue;
    std::string buffer;
    token.decoded = token.normalized && normalizer != nullptr
                        ? std::string(normalizer->apply(token.content, buffer))
                        : token.content;
    check_walk(token.decoded, fmt::format("{}[{}]", source, i));
    if (token.special && special_.insert(token.content).second) special.push_back(token);
    const auto known = id_of(token.content);
    token.id = known ? *known : model.id_of(token.content).value_or(next);
    const auto same = by_id_.find(token.id);
    if (same != by_id_.end() && same->second == token) continue;
    next = std::max(next, token.id + 1);
    ids_[token.content] = token.id;
    by_id_[token.id] = token;
    if (!is_special(token.content)) others.push_back(token);
  }
  for (AddedToken& token : special) token.id = ids_.find(token.content)->second;
  special.insert(special.end(), others.begin(), others.end());
  const auto split = std::stable_partition(
      special.begin(), special.end(), [](const AddedToken& token) { return !token.normalized; });
  exact_ = searched({special.begin(), split});
  normalized_ = searched({split, special.end()});
}

std::optional<std::int32_t> AddedTokens::id_of(std::string_view content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

AddedTokens::Searched AddedTokens::searched(std::vector<AddedToken> tokens) {
  std::vector<std::pair<std::string, std::int32_t>> entries;
  // Among equal tokens the first counts; the trie takes the last entry.
  for (std::size_t i = tokens.size(); i-- > 0;) {
    const std::string& content = tokens[i].decoded;
    if (!content.empty()) entries.emplace_back(content, static_cast<std::int32_t>(i));
  }
  return {Trie(std::move(entries)), std::move(tokens)};
}

void AddedTokens::cut(std::string_view text, const Searched& searched,
                      std::vector<TextPart>& parts) {
  std::size_t done = 0;
  const Trie& trie = searched.trie;
  for (std::size_t at = 0; at < text.size() && !searched.tokens.empty();) {
    std::int32_t longest = Trie::none;
    std::size_t stop = at;
    std::uint32_t node = Trie::root;
    for (std::size_t end = at; end < text.size();) {
      node = trie.child(node, static_cast<unsigned char>(text[end]));
      if (node == Trie::no_node) break;
      ++end;
      if (trie.value(node) == Trie::none) continue;
      longest = trie.value(node);
      stop = end;
    }
    if (longest == Trie::none) {
      ++at;
      continue;
    }
    const AddedToken& token = searched.tokens[static_cast<std::size_t>(longest)];
    std::size_t start = at;
    at = stop;
    if (token.single_word && (word_before(text, start) || word_after(text, stop))) continue;
    if (token.lstrip) start = std::max(spaces_before(text, start), done);
    if (token.rstrip) stop = spaces_after(text, stop);
    if (done < start) parts.push_back({text.substr(done, start - done), done});
    parts.push_back(
        {text.substr(std::min(start, stop), stop - std::min(start, stop)), start, token.id});
    done = stop;
  }
  if (done < text.size()) parts.push_back({text.substr(done), done});
}

}  // namespace tessera::tokenizers
