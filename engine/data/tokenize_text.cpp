// One thread reads and cuts, others encode; ids come out in the order of the text.
#include "engine/data/tokenize_text.h"

#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <future>
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

std::int64_t tokenize_text(TextReader& reader, const Tokenizer& tokenizer,
                           const TokenizeOptions& options,
                           const std::function<void(std::span<const std::int32_t>)>& take) {
  TESSERA_REQUIRE(options.workers > 0 && options.chunk_bytes > 0 &&
                      options.longest_chunk >= options.chunk_bytes,
                  "tokenize_text: {} workers, chunks of {} to {} bytes", options.workers,
                  options.chunk_bytes, options.longest_chunk);
  std::deque<std::future<std::vector<std::int32_t>>> running;
  const auto finish_first = [&] {
    const std::vector<std::int32_t> ids = running.front().get();
    running.pop_front();
    take(ids);
  };
  const auto encode = [&](std::string chunk) {
    if (options.workers == 1) {
      take(tokenizer.encode(chunk));
      return;
    }
    if (std::cmp_greater_equal(running.size(), options.workers)) finish_first();
    running.push_back(std::async(std::launch::async, [&tokenizer, text = std::move(chunk)] {
      return tokenizer.encode(text);
    }));
  };
  std::int64_t total = 0;
  std::string text;
  auto wanted = options.chunk_bytes;
  for (bool more = true; more;) {
    while (more && std::cmp_less(text.size(), wanted)) {
      more = reader.append(text, wanted - static_cast<std::int64_t>(text.size()));
    }
    if (!more) break;
    std::size_t cut = place_to_cut(text, tokenizer);
    if (cut == 0 && wanted < options.longest_chunk) {
      wanted = std::min(wanted * 4, options.longest_chunk);
      continue;
    }
    if (cut == 0) cut = last_resort(text);
    total += static_cast<std::int64_t>(cut);
    std::string rest = text.substr(cut);
    text.resize(cut);
    encode(std::move(text));
    text = std::move(rest);
    wanted = std::max(options.chunk_bytes, static_cast<std::int64_t>(text.size()));
  }
  TESSERA_CHECK(!options.ends_whole || !ends_within_character(text), ErrorCode::data,
                "{} ends in the middle of a character of UTF-8, at byte {}: the program that "
                "writes it was cut off; run it again",
                reader.name(), total + static_cast<std::int64_t>(text.size()));
  total += static_cast<std::int64_t>(text.size());
  if (!text.empty()) encode(std::move(text));
  while (!running.empty()) finish_first();
  return total;
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
