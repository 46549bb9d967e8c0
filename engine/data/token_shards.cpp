// Checks that shards belong together, with a message for each way in which they may not.
#include "engine/data/token_shards.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>
#include <tuple>

#include "base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::optional<std::int64_t> whole_number_in(std::string_view text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}

// False for other files, and for a file that cannot be read, which is refused where
// it is opened.
bool is_shard(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return false;
  struct stat status {};
  char bytes[256];
  const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  const ssize_t got = regular ? ::pread(file, bytes, sizeof(bytes), 0) : -1;
  ::close(file);
  const std::string_view header(bytes, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (!header.starts_with(token_stream_magic)) return false;
  const auto format = recognise_token_stream(path, header, status.st_size);
  return format && format->shard.count > 0;
}

std::vector<fs::path> shards_in_folder(const fs::path& folder) {
  std::vector<fs::path> shards;
  std::error_code ended;  // a folder that cannot be read is refused where tables are looked for
  for (fs::directory_iterator entry(folder, ended); !ended && entry != fs::directory_iterator();
       entry.increment(ended)) {
    const fs::path& path = entry->path();
    if (path.extension() == ".tokens" && is_shard(path)) shards.push_back(path);
  }
  return shards;
}

// "2, 5, 6 and 12 more".
std::string some_of(const std::vector<std::int64_t>& numbers) {
  constexpr std::size_t named = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(named, numbers.size()); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", numbers[i]);
  }
  if (numbers.size() > named) text += fmt::format(" and {} more", numbers.size() - named);
  return text;
}

void check_one_corpus(const TokenShardFile& one, const TokenShardFile& other) {
  const TokenShard& first = one.second.shard;
  const TokenShard& second = other.second.shard;
  TESSERA_CHECK(first.count == second.count, ErrorCode::data,
                "data files {} and {} are shards {}/{} and {}/{}, of two corpora; name the files "
                "of one, or remove those of the other",
                one.first.string(), other.first.string(), first.index, first.count, second.index,
                second.count);
  TESSERA_CHECK(first.index != second.index, ErrorCode::data,
                "data files {} and {} are both shard {}/{}; remove one of them", one.first.string(),
                other.first.string(), first.index, first.count);
}

void check_all_are_there(const std::vector<TokenShardFile>& shards) {
  const std::int64_t count = shards.front().second.shard.count;
  std::vector<std::int64_t> missing;
  auto next = shards.begin();
  for (std::int64_t i = 1; i <= count; ++i) {
    if (next != shards.end() && next->second.shard.index == i) {
      ++next;
    } else {
      missing.push_back(i);
    }
  }
  if (missing.empty()) return;
  const fs::path& path = shards.front().first;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  fail(ErrorCode::data,
       "data file {} is shard {}/{}, and {} of the {} shards are missing: {}; name all of them, or "
       "write the others: tessera tokenize ... --out {} --shard {}/{}",
       path.string(), shards.front().second.shard.index, count, missing.size(), count,
       some_of(missing), folder.string(), missing.front(), count);
}

void check_tokenizers(const std::vector<TokenShardFile>& shards) {
  const TokenShardFile* first = nullptr;
  for (const TokenShardFile& one : shards) {
    const auto& [path, format] = one;
    if (format.tokens == 0) continue;
    if (first == nullptr) first = &one;
    const bool same = format.fingerprint == first->second.fingerprint &&
                      format.vocabulary == first->second.vocabulary &&
                      format.bytes_per_token == first->second.bytes_per_token;
    TESSERA_CHECK(
        same, ErrorCode::data,
        "data files {} and {} are shards with ids of two tokenizers, {} and {}; write one "
        "of them again: tessera tokenize ... --shard {}/{}",
        first->first.string(), path.string(), first->second.tokenizer, format.tokenizer,
        format.shard.index, format.shard.count);
  }
  TESSERA_CHECK(first != nullptr, ErrorCode::data,
                "data file {} and the other shards of its corpus hold no tokens",
                shards.front().first.string());
}

}  // namespace

TokenShard parse_token_shard(std::string_view text) {
  const std::size_t slash = text.find('/');
  TokenShard shard;
  bool sound = slash != std::string_view::npos;
  if (sound) {
    shard.index = whole_number_in(text.substr(0, slash)).value_or(0);
    shard.count = whole_number_in(text.substr(slash + 1)).value_or(0);
    sound = shard.index >= 1 && shard.index <= shard.count && shard.count <= most_token_shards;
  }
  TESSERA_CHECK(sound, ErrorCode::usage,
                "--shard {}: give I/N, the number of this part and of all parts, from 1/N to N/N, "
                "with N at most {}",
                text, most_token_shards);
  return shard;
}

fs::path token_shard_path(const fs::path& folder, const TokenShard& shard) {
  return folder / fmt::format("tokens-{:05}-of-{:05}.tokens", shard.index, shard.count);
}

std::vector<fs::path> find_token_shards(const std::vector<std::string>& names) {
  std::vector<fs::path> shards;
  std::string other;
  for (const std::string& name : names) {
    std::error_code unknown;
    const bool folder = fs::is_directory(name, unknown);
    const std::vector<fs::path> found = folder ? shards_in_folder(fs::path(name).lexically_normal())
                                        : is_shard(name) ? std::vector<fs::path>{name}
                                                         : std::vector<fs::path>{};
    shards.insert(shards.end(), found.begin(), found.end());
    if (found.empty() && other.empty()) other = name;
  }
  TESSERA_CHECK(shards.empty() || other.empty(), ErrorCode::data,
                "data file {} is a shard of a corpus, and {} is none; give it as a data set of its "
                "own",
                shards.empty() ? "" : shards.front().string(), other);
  return shards;
}

void sort_token_shards(std::vector<TokenShardFile>& shards) {
  TESSERA_REQUIRE(!shards.empty(), "a corpus of no shard");
  std::sort(shards.begin(), shards.end(), [](const auto& a, const auto& b) {
    const TokenShard& first = a.second.shard;
    const TokenShard& second = b.second.shard;
    return std::tie(first.count, first.index, a.first) <
           std::tie(second.count, second.index, b.first);
  });
  for (std::size_t i = 1; i < shards.size(); ++i) check_one_corpus(shards[i - 1], shards[i]);
  check_all_are_there(shards);
  check_tokenizers(shards);
}

}  // namespace tessera
