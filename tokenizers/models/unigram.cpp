// Unigram: of all ways to cut a text into tokens, takes the one with the highest sum of scores. A
// character that no token covers has the score of the worst token minus ten; adjacent ones form one
// unknown token.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/error.h"
#include "tokenizers/pipeline/vocabulary_model.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/trie.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

// The best path to the end of a prefix of the text: its last token, and that token's beginning.
struct BestPath {
  double score = 0;
  std::int64_t begin = -1;
  std::int32_t token = 0;
};

// A token of the best path, from the last to the first.
struct PathToken {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::int32_t token = 0;
};

struct UnigramScratch final : VocabularyModel::Scratch {
  std::vector<BestPath> paths;
  std::vector<PathToken> backwards;
};

class Unigram final : public VocabularyModel {
 public:
  Unigram(const nlohmann::json& object, const std::string& source);

  [[nodiscard]] std::unique_ptr<Scratch> scratch() const override {
    return std::make_unique<UnigramScratch>();
  }
  void encode(std::string_view text, Scratch* scratch,
              std::vector<std::int32_t>& ids) const override;
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const override {
    const std::int32_t id = trie_.find(token);
    return id == Trie::none ? std::nullopt : std::optional(id);
  }
  [[nodiscard]] const std::vector<std::string>& tokens() const override { return tokens_; }
  [[nodiscard]] std::int64_t listed() const override {
    return static_cast<std::int64_t>(tokens_.size());
  }

 private:
  void search(std::string_view text, std::vector<BestPath>& paths) const;
  void append_unknown(std::string_view text, std::vector<std::int32_t>& ids) const;

  Trie trie_;
  std::vector<std::string> tokens_;
  std::vector<double> scores_;
  double unknown_score_ = 0;
  std::int32_t unknown_ = Trie::none;
  bool byte_fallback_ = false;
  std::array<std::int32_t, 256> fallback_{};
};

Unigram::Unigram(const nlohmann::json& object, const std::string& source) {
  const nlohmann::json& vocabulary = member(object, "vocab", source);
  TESSERA_CHECK(vocabulary.is_array() && !vocabulary.empty() &&
                    vocabulary.size() <= static_cast<std::size_t>(largest_vocabulary),
                ErrorCode::data, "{}: 'vocab' is not a list of 1 to {} tokens with their scores",
                source, largest_vocabulary);
  std::vector<std::pair<std::string, std::int32_t>> entries;
  double least = std::numeric_limits<double>::infinity();
  for (const nlohmann::json& entry : vocabulary) {
    TESSERA_CHECK(
        entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number(),
        ErrorCode::data, "{}: entry {} of 'vocab' is not a token and its score", source,
        tokens_.size());
    tokens_.push_back(entry[0].get<std::string>());
    scores_.push_back(entry[1].get<double>());
    least = std::min(least, scores_.back());
    check_walk(tokens_.back(), source);
    if (!tokens_.back().empty()) {
      entries.emplace_back(tokens_.back(), static_cast<std::int32_t>(tokens_.size() - 1));
    }
  }
  trie_ = Trie(std::move(entries));
  unknown_score_ = least - 10.0;
  if (has(object, "unk_id")) {
    unknown_ = static_cast<std::int32_t>(
        integer_of(object, "unk_id", 0, static_cast<std::int64_t>(tokens_.size()) - 1, source));
  }
  byte_fallback_ = bool_or(object, "byte_fallback", false, source);
  for (int byte = 0; byte < 256; ++byte) {
    fallback_[static_cast<std::size_t>(byte)] = trie_.find(fmt::format("<0x{:02X}>", byte));
  }
}

void Unigram::search(std::string_view text, std::vector<BestPath>& paths) const {
  paths.assign(text.size() + 1, BestPath{});
  const auto offer = [&](std::size_t begin, std::size_t end, double score, std::int32_t token) {
    BestPath& path = paths[end];
    if (path.begin >= 0 && score <= path.score) return;
    path = {score, static_cast<std::int64_t>(begin), token};
  };
  for (std::size_t begin = 0; begin < text.size();) {
    const double before = paths[begin].score;
    const std::size_t next = begin + character_length(text[begin]);
    bool covered = false;
    std::uint32_t node = Trie::root;
    for (std::size_t end = begin; end < text.size();) {
      node = trie_.child(node, static_cast<unsigned char>(text[end]));
      if (node == Trie::no_node) break;
      ++end;
      const std::int32_t token = trie_.value(node);
      if (token == Trie::none) continue;
      offer(begin, end, scores_[static_cast<std::size_t>(token)] + before, token);
      covered = covered || end == next;
    }
    if (!covered) {
      TESSERA_CHECK(unknown_ != Trie::none, ErrorCode::data,
                    "'{}' is in no token, and the vocabulary has no unknown token (unk_id)",
                    shown(text.substr(begin, next - begin)));
      offer(begin, next, unknown_score_ + before, unknown_);
    }
    begin = next;
  }
}

void Unigram::append_unknown(std::string_view text, std::vector<std::int32_t>& ids) const {
  // Several adjacent unknown characters may spell a token.
  if (const std::int32_t id = trie_.find(text); id != Trie::none) {
    ids.push_back(id);
    return;
  }
  const auto fallback = [&](char byte) { return fallback_[static_cast<unsigned char>(byte)]; };
  if (byte_fallback_ && std::all_of(text.begin(), text.end(),
                                    [&](char byte) { return fallback(byte) != Trie::none; })) {
    for (const char byte : text) ids.push_back(fallback(byte));
    return;
  }
  ids.push_back(unknown_);
}

void Unigram::encode(std::string_view text, Scratch* scratch,
                     std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  auto& memory = static_cast<UnigramScratch&>(*scratch);
  search(text, memory.paths);
  memory.backwards.clear();
  for (std::size_t end = text.size(); end > 0;) {
    const BestPath& path = memory.paths[end];
    const auto begin = static_cast<std::size_t>(path.begin);
    if (path.token == unknown_ && !memory.backwards.empty() &&
        memory.backwards.back().token == unknown_) {
      memory.backwards.back().begin = begin;
    } else {
      memory.backwards.push_back({begin, end, path.token});
    }
    end = begin;
  }
  for (auto piece = memory.backwards.rbegin(); piece != memory.backwards.rend(); ++piece) {
    if (piece->token == unknown_) {
      append_unknown(text.substr(piece->begin, piece->end - piece->begin), ids);
    } else {
      ids.push_back(piece->token);
    }
  }
}

}  // namespace

std::unique_ptr<VocabularyModel> make_unigram(const nlohmann::json& object,
                                              const std::string& source) {
  return std::make_unique<Unigram>(object, source);
}

}  // namespace tessera::tokenizers
