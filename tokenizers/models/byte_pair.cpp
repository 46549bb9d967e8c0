// Byte-pair encoding: cuts a word into characters (or bytes), then merges the two neighbours whose
// merge has the lowest rank, the leftmost first, until no merge is left.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/error.h"
#include "tokenizers/models/merges.h"
#include "tokenizers/pipeline/vocabulary_model.h"
#include "tokenizers/text/byte_alphabet.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/trie.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

constexpr std::int32_t no_symbol = -1;
// The limit of a search for the two parts of every token.
constexpr std::uint64_t most_steps_of_merges = std::uint64_t{1} << 30;
constexpr std::size_t longest_mark = 1024;  // it is added to each character of a word

// A possible merge, of the symbol at `place` with the next one.
struct Candidate {
  std::uint32_t rank = 0;
  std::int32_t place = 0;
  std::int32_t token = 0;
  // The order of a heap whose top is the lowest rank; among equal ranks, the leftmost.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : place > other.place;
  }
};

struct LinkedSymbol {
  std::int32_t token = no_symbol;  // no_symbol: merged into one before it
  std::int32_t previous = -1;
  std::int32_t next = -1;
};

struct BytePairScratch final : VocabularyModel::Scratch {
  std::vector<std::int32_t> symbols;
  std::vector<Merge> merges;  // of a symbol with the next
  std::vector<LinkedSymbol> linked;
  std::vector<Candidate> heap;
};

class BytePair final : public VocabularyModel {
 public:
  BytePair(const nlohmann::json& object, const ModelOptions& options, const std::string& source);

  [[nodiscard]] std::unique_ptr<Scratch> scratch() const override {
    return std::make_unique<BytePairScratch>();
  }
  void encode(std::string_view word, Scratch* scratch,
              std::vector<std::int32_t>& ids) const override;
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const override;
  [[nodiscard]] const std::vector<std::string>& tokens() const override { return tokens_; }
  [[nodiscard]] std::int64_t listed() const override { return listed_; }

 private:
  void read_vocabulary(const nlohmann::json& object, const std::string& source);
  void read_merges(const nlohmann::json& object, const std::string& source);
  void read_bytes();
  void make_merges(const std::set<std::int32_t>& special, const std::string& source);
  void cut(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void cut_characters(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void merge_short(BytePairScratch& scratch) const;
  void merge_long(BytePairScratch& scratch) const;

  bool byte_alphabet_;
  Trie trie_;
  std::map<std::string, std::int32_t, std::less<>> outside_alphabet_;
  std::vector<std::string> tokens_;
  std::int64_t listed_ = 0;
  MergeTable merges_;
  std::array<std::int32_t, 256> byte_symbols_{};      // of single bytes, if words are bytes
  std::array<std::int32_t, 256> fallback_symbols_{};  // <0xNN>
  std::string prefix_;
  std::string suffix_;
  std::string unknown_name_;
  std::int32_t unknown_ = no_symbol;
  bool has_unknown_ = false;
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
};

std::size_t merges_listed(const nlohmann::json& object, const std::string& source) {
  const nlohmann::json& merges = member(object, "merges", source);
  TESSERA_CHECK(merges.is_array(), ErrorCode::data, "{}: 'merges' is not a list", source);
  return merges.size();
}

BytePair::BytePair(const nlohmann::json& object, const ModelOptions& options,
                   const std::string& source)
    : byte_alphabet_(options.byte_alphabet), merges_(merges_listed(object, source)) {
  TESSERA_CHECK(!has(object, "dropout") || object["dropout"] == 0, ErrorCode::data,
                "{}: 'dropout' is random and is not supported; set it to null", source);
  prefix_ = string_or(object, "continuing_subword_prefix", "", source);
  suffix_ = string_or(object, "end_of_word_suffix", "", source);
  TESSERA_CHECK(std::max(prefix_.size(), suffix_.size()) <= longest_mark, ErrorCode::data,
                "{}: a prefix or suffix of subwords of more than {} bytes", source, longest_mark);
  fuse_unknown_ = bool_or(object, "fuse_unk", false, source);
  byte_fallback_ = bool_or(object, "byte_fallback", false, source);
  ignore_merges_ = bool_or(object, "ignore_merges", false, source);
  read_vocabulary(object, source);
  read_bytes();
  has_unknown_ = has(object, "unk_token");
  if (has_unknown_) {
    unknown_name_ = string_of(object, "unk_token", source);
    unknown_ = id_of(unknown_name_).value_or(no_symbol);
  }
  read_merges(object, source);
  if (options.merges_by_id_except) make_merges(*options.merges_by_id_except, source);
}

void BytePair::read_vocabulary(const nlohmann::json& object, const std::string& source) {
  auto vocabulary = vocabulary_of(object, source);
  listed_ = static_cast<std::int64_t>(vocabulary.size());
  tokens_ = tokens_by_id(vocabulary);
  if (byte_alphabet_) {
    std::vector<std::pair<std::string, std::int32_t>> spelled;
    spelled.reserve(vocabulary.size());
    for (const auto& entry : vocabulary) {
      if (auto bytes = byte_alphabet().read(entry.first)) {
        spelled.emplace_back(std::move(*bytes), entry.second);
      } else {
        outside_alphabet_[entry.first] = entry.second;  // no word contains it
      }
    }
    vocabulary = std::move(spelled);
  }
  trie_ = Trie(std::move(vocabulary));
}

void BytePair::read_bytes() {
  for (int byte = 0; byte < 256; ++byte) {
    const auto index = static_cast<std::size_t>(byte);
    const char bytes = static_cast<char>(byte);
    byte_symbols_[index] = trie_.find({&bytes, 1});
    fallback_symbols_[index] = trie_.find(fmt::format("<0x{:02X}>", byte));
  }
}

void BytePair::read_merges(const nlohmann::json& object, const std::string& source) {
  std::uint32_t rank = 0;
  for (const nlohmann::json& merge : object["merges"]) {
    const std::string where = fmt::format("{}: merge {}", source, rank);
    std::string left;
    std::string right;
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      TESSERA_CHECK(space != std::string::npos && text.find(' ', space + 1) == std::string::npos,
                    ErrorCode::data, "{} ('{}') is not two tokens with a space between", where,
                    shown(text));
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      TESSERA_CHECK(
          merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(),
          ErrorCode::data, "{} is not two tokens", where);
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    }
    const auto token = [&](const std::string& name) {
      const auto id = id_of(name);
      TESSERA_CHECK(id.has_value(), ErrorCode::data, "{}: token '{}' is not in the vocabulary",
                    where, shown(name));
      return *id;
    };
    const std::int32_t left_id = token(left);
    const std::int32_t right_id = token(right);
    TESSERA_CHECK(right.size() >= prefix_.size(), ErrorCode::data,
                  "{}: '{}' lacks the continuing_subword_prefix", where, shown(right));
    merges_.insert(left_id, right_id, {rank, token(left + right.substr(prefix_.size()))});
    ++rank;
  }
}

void BytePair::make_merges(const std::set<std::int32_t>& special, const std::string& source) {
  struct Made {
    std::int32_t left, right, token;
  };
  std::vector<Made> made;
  std::uint64_t steps = 0;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const auto token = static_cast<std::int32_t>(i);
    const auto bytes = byte_alphabet().read(tokens_[i]);
    if (!bytes || special.contains(token)) continue;
    steps += std::uint64_t{bytes->size()} * bytes->size();
    TESSERA_CHECK(steps <= most_steps_of_merges, ErrorCode::data,
                  "{}: the tokens are longer than in any tokenizer; the file is damaged", source);
    for (std::size_t cut = 1; cut < bytes->size(); ++cut) {
      const std::int32_t left = trie_.find(std::string_view(*bytes).substr(0, cut));
      const std::int32_t right = trie_.find(std::string_view(*bytes).substr(cut));
      if (left == Trie::none || right == Trie::none) continue;
      if (!special.contains(left) && !special.contains(right)) made.push_back({left, right, token});
    }
  }
  merges_ = MergeTable(made.size());
  for (const Made& merge : made) {
    merges_.insert(merge.left, merge.right, {static_cast<std::uint32_t>(merge.token), merge.token});
  }
}

std::optional<std::int32_t> BytePair::id_of(std::string_view token) const {
  std::int32_t id = Trie::none;
  if (!byte_alphabet_) {
    id = trie_.find(token);
  } else if (const auto bytes = byte_alphabet().read(token)) {
    id = trie_.find(*bytes);
  } else if (const auto found = outside_alphabet_.find(token); found != outside_alphabet_.end()) {
    id = found->second;
  }
  return id == Trie::none ? std::nullopt : std::optional(id);
}

void BytePair::encode(std::string_view word, Scratch* scratch,
                      std::vector<std::int32_t>& ids) const {
  if (word.empty()) return;
  if (ignore_merges_) {
    if (const std::int32_t id = trie_.find(word); id != Trie::none) {
      ids.push_back(id);
      return;
    }
  }
  auto& memory = static_cast<BytePairScratch&>(*scratch);
  memory.symbols.clear();
  cut(word, memory.symbols);
  constexpr std::size_t few = 48;  // up to this number, a linear search is faster than a heap
  if (memory.symbols.size() > few) {
    merge_long(memory);
  } else if (memory.symbols.size() > 1) {
    merge_short(memory);
  }
  ids.insert(ids.end(), memory.symbols.begin(), memory.symbols.end());
}

void BytePair::cut(std::string_view word, std::vector<std::int32_t>& symbols) const {
  if (!byte_alphabet_) {
    cut_characters(word, symbols);
    return;
  }
  std::int32_t pending = no_symbol;
  for (const char byte : word) {
    const std::int32_t symbol = byte_symbols_[static_cast<unsigned char>(byte)];
    if (symbol != no_symbol) {
      if (pending != no_symbol) symbols.push_back(std::exchange(pending, no_symbol));
      symbols.push_back(symbol);
    } else if (has_unknown_) {
      if (pending != no_symbol && !fuse_unknown_) symbols.push_back(pending);
      pending = unknown_;
      TESSERA_CHECK(unknown_ != no_symbol, ErrorCode::data,
                    "the unknown token '{}' is not in the vocabulary", shown(unknown_name_));
    }
  }
  if (pending != no_symbol) symbols.push_back(pending);
}

void BytePair::cut_characters(std::string_view word, std::vector<std::int32_t>& symbols) const {
  std::int32_t pending = no_symbol;
  std::string decorated;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t length = character_length(word[at]);
    std::string_view character = word.substr(at, length);
    const bool first = at == 0;
    at += length;
    if ((!first && !prefix_.empty()) || (at == word.size() && !suffix_.empty())) {
      decorated = first ? "" : prefix_;
      decorated += character;
      if (at == word.size()) decorated += suffix_;
      character = decorated;
    }
    const std::int32_t symbol = trie_.find(character);
    if (symbol != Trie::none) {
      if (pending != no_symbol) symbols.push_back(std::exchange(pending, no_symbol));
      symbols.push_back(symbol);
      continue;
    }
    const auto fallback = [&](char byte) {
      return fallback_symbols_[static_cast<unsigned char>(byte)];
    };
    if (byte_fallback_ && std::all_of(character.begin(), character.end(),
                                      [&](char byte) { return fallback(byte) != no_symbol; })) {
      for (const char byte : character) symbols.push_back(fallback(byte));
    } else if (has_unknown_) {
      if (pending != no_symbol && !fuse_unknown_) symbols.push_back(pending);
      pending = unknown_;
      TESSERA_CHECK(unknown_ != no_symbol, ErrorCode::data,
                    "the unknown token '{}' is not in the vocabulary", shown(unknown_name_));
    }
  }
  if (pending != no_symbol) symbols.push_back(pending);
}

void BytePair::merge_short(BytePairScratch& scratch) const {
  std::vector<std::int32_t>& symbols = scratch.symbols;
  std::vector<Merge>& merges = scratch.merges;
  std::size_t pairs = symbols.size() - 1;
  merges.resize(pairs + 1);
  for (std::size_t i = 0; i < pairs; ++i) merges[i] = merges_.find(symbols[i], symbols[i + 1]);
  while (pairs > 0) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < pairs; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].token == no_symbol) break;
    symbols[best] = merges[best].token;
    // Removes the pair's right symbol, and the merge whose left symbol it was.
    const auto right = static_cast<std::ptrdiff_t>(best) + 1;
    std::copy(symbols.begin() + right + 1, symbols.begin() + static_cast<std::ptrdiff_t>(pairs) + 1,
              symbols.begin() + right);
    std::copy(merges.begin() + right, merges.begin() + static_cast<std::ptrdiff_t>(pairs),
              merges.begin() + right - 1);
    --pairs;
    if (best > 0) merges[best - 1] = merges_.find(symbols[best - 1], symbols[best]);
    if (best < pairs) merges[best] = merges_.find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(pairs + 1);
}

void BytePair::merge_long(BytePairScratch& scratch) const {
  std::vector<LinkedSymbol>& linked = scratch.linked;
  std::vector<Candidate>& heap = scratch.heap;
  const auto count = static_cast<std::int32_t>(scratch.symbols.size());
  linked.resize(scratch.symbols.size());
  heap.clear();
  const auto at = [&](std::int32_t place) -> LinkedSymbol& {
    return linked[static_cast<std::size_t>(place)];
  };
  const auto candidate = [&](std::int32_t place) {
    const Merge merge = merges_.find(at(place).token, at(at(place).next).token);
    if (merge.token == no_symbol) return false;
    heap.push_back({merge.rank, place, merge.token});
    return true;
  };
  for (std::int32_t i = 0; i < count; ++i) {
    at(i) = {scratch.symbols[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1};
  }
  for (std::int32_t i = 0; i + 1 < count; ++i) candidate(i);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    const Candidate top = heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    LinkedSymbol& left = at(top.place);
    if (left.token == no_symbol || left.next < 0) continue;
    LinkedSymbol& right = at(left.next);
    // Either symbol may have grown since.
    if (merges_.find(left.token, right.token).token != top.token) continue;
    left.token = top.token;
    left.next = right.next;
    right.token = no_symbol;
    if (left.next >= 0) at(left.next).previous = top.place;
    if (left.previous >= 0 && candidate(left.previous)) std::push_heap(heap.begin(), heap.end());
    if (left.next >= 0 && candidate(top.place)) std::push_heap(heap.begin(), heap.end());
  }
  scratch.symbols.clear();
  for (const LinkedSymbol& symbol : linked) {
    if (symbol.token != no_symbol) scratch.symbols.push_back(symbol.token);
  }
}

}  // namespace

std::unique_ptr<VocabularyModel> make_byte_pair(const nlohmann::json& object,
                                                const ModelOptions& options,
                                                const std::string& source) {
  return std::make_unique<BytePair>(object, options, source);
}

}  // namespace tessera::tokenizers
