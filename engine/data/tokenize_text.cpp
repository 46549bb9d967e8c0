// One thread reads and cuts, others encode; ids come out in the order of the text.
#include "engine/data/tokenize_text.h"

#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tessera {
namespace {

bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

// True if the two sides of `at`, encoded separately, give the ids of the text around it.
bool may_cut(std::string_view text, std::size_t at, const Tokenizer& tokenizer) {
  constexpr std::size_t context = 1024;
  std::size_t begin = at > context ? at - context : 0;
  while (begin < at && continues_character(text[begin])) ++begin;
  std::size_t end = std::min(text.size(), at + context);
  while (end < text.size() && continues_character(text[end])) ++end;
  std::vector<std::int32_t> apart = tokenizer.encode(text.substr(begin, at - begin));
  const std::vector<std::int32_t> right = tokenizer.encode(text.substr(at, end - at));
  apart.insert(apart.end(), right.begin(), right.end());
  return apart == tokenizer.encode(text.substr(begin, end - begin));
}

// True if the last bytes are the beginning of a character in UTF-8 that is longer.
bool ends_within_character(std::string_view text) {
  std::size_t more = 0;  // bytes behind the first of the last character
  while (more < 3 && more < text.size() && continues_character(text[text.size() - 1 - more])) {
    ++more;
  }
  if (more == text.size()) return false;
  const auto first = static_cast<unsigned char>(text[text.size() - 1 - more]);
  const std::size_t wanted = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc2 ? 1 : 0;
  return first <= 0xf4 && more < wanted;
}

// Cuts behind the last line, or at least between two characters.
std::size_t last_resort(std::string_view text) {
  const std::size_t line = text.rfind('\n');
  if (line != std::string_view::npos) return line + 1;
  std::size_t at = text.size();
  for (int back = 0; back < 3 && at > 1 && continues_character(text[at - 1]); ++back) --at;
  return at > 1 ? at - 1 : text.size();
}

}  // namespace

std::size_t place_to_cut(std::string_view text, const Tokenizer& tokenizer) {
  constexpr int trials = 64;
  int tried = 0;
  for (std::size_t at = text.size() > 1 ? text.size() - 2 : 0; at > 0 && tried < trials; --at) {
    if (text[at] != ' ' && text[at] != '\n') continue;
    if (is_blank(text[at - 1]) || is_blank(text[at + 1])) continue;
    if (may_cut(text, at, tokenizer)) return at;
    ++tried;
  }
  return 0;
}

namespace {

// Bytes that are encoded behind a piece, to check that the next piece may begin there.
constexpr std::size_t most_lookahead = 16 << 10;

std::size_t lookahead_of(std::string_view text) {
  return std::min(most_lookahead, text.size() / 4);
}

// `all` without the ids `behind` at its end; none if it does not end with them.
std::optional<std::vector<std::int32_t>> without(std::vector<std::int32_t> all,
                                                 const std::vector<std::int32_t>& behind) {
  if (behind.size() > all.size()) return std::nullopt;
  const auto front = all.size() - behind.size();
  if (!std::equal(behind.begin(), behind.end(), all.begin() + static_cast<std::ptrdiff_t>(front))) {
    return std::nullopt;
  }
  all.resize(front);
  return all;
}

// Begins at a place where the text may be cut, and is followed by more of the text.
struct Piece {
  std::string text;
  std::size_t length = 0;  // of the piece; the rest follows it

  // Its ids within its text; none if the text behind it has other ids by itself.
  [[nodiscard]] std::optional<std::vector<std::int32_t>> encode(const Tokenizer& tokenizer) const {
    std::vector<std::int32_t> ids = tokenizer.encode(text);
    if (length == text.size()) return ids;
    return without(std::move(ids), tokenizer.encode(std::string_view(text).substr(length)));
  }
};

// Cuts are found by their surroundings alone, so that several threads can encode. Each one is then
// checked with the ids of all the text since the cut before. At the first one that is wrong, the
// rest of the text is encoded in order: each piece first, then its end is found.
class Pieces {
 public:
  Pieces(TextReader& reader, const Tokenizer& tokenizer, const TokenizeOptions& options,
         const std::function<void(std::span<const std::int32_t>)>& take)
      : reader_(reader), tokenizer_(tokenizer), options_(options), take_(take) {}

  std::int64_t run() {
    wanted_ = options_.chunk_bytes;
    while (fill()) {
      if (in_order_) {
        encode_in_order();
      } else if (std::cmp_greater_equal(running_.size(), options_.workers)) {
        finish_first();
      } else {
        start_piece();
      }
    }
    TESSERA_CHECK(!options_.ends_whole || !ends_within_character(text_), ErrorCode::data,
                  "{} ends in the middle of a character of UTF-8, at byte {}: the program that "
                  "writes it was cut off; run it again",
                  reader_.name(), read_);
    if (!in_order_ && !text_.empty()) start(std::exchange(text_, {}), std::string::npos);
    while (!running_.empty()) finish_first();
    if (!text_.empty()) take_(tokenizer_.encode(text_));
    return read_;
  }

 private:
  struct Running {
    std::shared_ptr<const Piece> piece;
    std::future<std::optional<std::vector<std::int32_t>>> ids;
  };

  // False at the end of the text.
  bool fill() {
    bool more = true;
    while (more && std::cmp_less(text_.size(), wanted_)) {
      const std::size_t before = text_.size();
      more = reader_.append(text_, wanted_ - static_cast<std::int64_t>(before));
      read_ += static_cast<std::int64_t>(text_.size() - before);
    }
    return more;
  }

  bool grow() {
    if (wanted_ >= options_.longest_chunk) return false;
    wanted_ = std::min(wanted_ * 4, options_.longest_chunk);
    return true;
  }

  void keep_from(std::size_t cut) {
    text_.erase(0, cut);
    wanted_ = std::max(options_.chunk_bytes, static_cast<std::int64_t>(text_.size()));
  }

  void start_piece() {
    const std::string_view front =
        std::string_view(text_).substr(0, text_.size() - lookahead_of(text_));
    std::size_t cut = place_to_cut(front, tokenizer_);
    const bool is_checked = cut > 0;
    if (cut == 0 && grow()) return;
    if (cut == 0) cut = last_resort(text_);
    std::string piece = is_checked ? text_ : text_.substr(0, cut);
    keep_from(cut);
    start(std::move(piece), is_checked ? cut : std::string::npos);
  }

  void start(std::string text, std::size_t length) {
    const std::size_t whole = text.size();
    auto piece = std::make_shared<const Piece>(Piece{std::move(text), std::min(length, whole)});
    const auto policy = options_.workers == 1 ? std::launch::deferred : std::launch::async;
    running_.push_back(
        {piece, std::async(policy, [this, piece] { return piece->encode(tokenizer_); })});
  }

  void finish_first() {
    const auto ids = running_.front().ids.get();
    if (ids) {
      running_.pop_front();
      take_(*ids);
      return;
    }
    in_order_ = true;
    std::string all;
    for (const Running& one : running_) all.append(one.piece->text, 0, one.piece->length);
    running_.clear();
    text_.insert(0, all);
    wanted_ = std::max(options_.chunk_bytes, static_cast<std::int64_t>(text_.size()));
  }

  void encode_in_order() {
    constexpr int trials = 64;
    std::vector<std::int32_t> ids = tokenizer_.encode(text_);
    int tried = 0;
    for (std::size_t at = text_.size() - lookahead_of(text_); at > 0 && tried < trials; --at) {
      if (!is_blank(text_[at])) continue;
      ++tried;
      const auto front = without(ids, tokenizer_.encode(std::string_view(text_).substr(at)));
      if (!front) continue;
      take_(*front);
      keep_from(at);
      return;
    }
    if (grow()) return;
    const std::size_t cut = last_resort(text_);
    take_(tokenizer_.encode(std::string_view(text_).substr(0, cut)));
    keep_from(cut);
  }

  TextReader& reader_;
  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  const std::function<void(std::span<const std::int32_t>)>& take_;
  std::string text_;         // that no piece has yet
  std::int64_t wanted_ = 0;  // bytes of it before it is cut
  std::int64_t read_ = 0;
  bool in_order_ = false;
  std::deque<Running> running_;  // in the order of the text; ends before the rest
};

}  // namespace

std::int64_t tokenize_text(TextReader& reader, const Tokenizer& tokenizer,
                           const TokenizeOptions& options,
                           const std::function<void(std::span<const std::int32_t>)>& take) {
  TESSERA_REQUIRE(options.workers > 0 && options.chunk_bytes > 0 &&
                      options.longest_chunk >= options.chunk_bytes,
                  "tokenize_text: {} workers, chunks of {} to {} bytes", options.workers,
                  options.chunk_bytes, options.longest_chunk);
  reader.require_text();
  return Pieces(reader, tokenizer, options, take).run();
}

std::int64_t tokenize_text(const std::filesystem::path& path, const Tokenizer& tokenizer,
                           const TokenizeOptions& options,
                           const std::function<void(std::span<const std::int32_t>)>& take) {
  TextReader reader(path);
  return tokenize_text(reader, tokenizer, options, take);
}

TextStamp stamp_of_text(const std::filesystem::path& path) {
  const auto nanoseconds = [](const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  struct stat status {};
  TESSERA_CHECK(::stat(path.c_str(), &status) == 0, ErrorCode::data, "text {}: {}", path.string(),
                describe_errno("stat", errno));
  // Programs that are file systems may number their files anew at each look.
  constexpr std::int64_t fuse = 0x65735546;
  struct statfs system {};
  const bool numbered = ::statfs(path.c_str(), &system) == 0 && system.f_type != fuse;
  return {status.st_size, nanoseconds(status.st_mtim), nanoseconds(status.st_ctim),
          numbered ? status.st_ino : 0};
}

}  // namespace tessera
