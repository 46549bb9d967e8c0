// Reads tokens directly from the file with pread.
#include "engine/data/corpus.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text/print.h"
#include "engine/data/permutation.h"
#include "engine/data/text_reader.h"
#include "engine/data/token_shards.h"
#include "engine/data/tokenize_text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "not a regular file";
}

// A stream beside a text.
struct KeptStream {
  enum class State : std::uint8_t { none, of_another_version, damaged, of_this_version };
  State state = State::none;
  TextStamp stamp = {};  // of the stream's file: another one after it was written again
};

// Compares the header alone; a header that does not fit the file is damage.
KeptStream look_at_stream(const fs::path& stream, const Tokenizer& tokenizer,
                          const TextStamp& stamp) {
  using State = KeptStream::State;
  const int file = ::open(stream.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return {};
  struct stat status {};
  std::array<char, 256> block{};
  const bool known = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  const ssize_t got = known ? ::pread(file, block.data(), block.size(), 0) : -1;
  ::close(file);
  if (got < 0) return {};
  try {
    const auto format = recognise_token_stream(
        stream, {block.data(), static_cast<std::size_t>(got)}, status.st_size);
    const bool fits = format && format->kind == "tessera" &&
                      format->fingerprint == tokenizer.fingerprint() &&
                      format->vocabulary == tokenizer.vocabulary_size() && format->source == stamp;
    if (fits) return {State::of_this_version, stamp_of_text(stream)};
    return {format ? State::of_another_version : State::damaged};
  } catch (const Error&) {
    return {State::damaged};
  }
}

// The stream of this version, once it is known to be whole: all its bytes are read. Ranks do so at
// the same time, under a shared lock on the text; one alone, under an exclusive lock, goes on to
// write the stream. The lock remains. On a file system without locks, each process writes the
// stream, and the last one remains.
KeptStream lock_stream(int text, const fs::path& stream, const Tokenizer& tokenizer,
                       const TextStamp& stamp) {
  using State = KeptStream::State;
  const auto lock = [&](int kind) {
    while (::flock(text, kind) != 0 && errno == EINTR) {
    }
  };
  std::optional<TextStamp> damaged;
  for (;;) {
    lock(LOCK_SH);
    KeptStream kept = look_at_stream(stream, tokenizer, stamp);
    if (kept.state == State::of_this_version) {
      if (is_sound_token_stream(stream)) return kept;
      damaged = kept.stamp;
    }
    lock(LOCK_EX);
    kept = look_at_stream(stream, tokenizer, stamp);
    if (kept.state != State::of_this_version) return kept;
    if (kept.stamp == damaged) return {State::damaged};
    // Another rank has written it meanwhile.
  }
}

void write_stream_of(const fs::path& text, const fs::path& stream, const Tokenizer& tokenizer,
                     const TextStamp& stamp, int workers) {
  TokenStreamWriter writer(stream, tokenizer, stamp);
  TokenizeOptions options;
  options.workers = workers;
  tokenize_text(text, tokenizer, options,
                [&](std::span<const std::int32_t> ids) { writer.append(ids); });
  writer.finish();
}

}  // namespace

Corpus::Corpus(const fs::path& path, const Tokenizer& tokenizer, int workers)
    : Corpus(path, tokenizer, workers, Part{}) {
  if (format_.shard.count == 0) {
    TESSERA_CHECK(format_.tokens > 0, ErrorCode::data, "data file {} holds no tokens",
                  path_.string());
    return;
  }
  std::vector<TokenShardFile> alone = {{path_, format_}};
  sort_token_shards(alone);
}

Corpus::Corpus(const std::vector<fs::path>& shards, const Tokenizer& tokenizer)
    : limit_(std::numeric_limits<std::int64_t>::max()) {
  std::map<fs::path, std::unique_ptr<const Corpus>> opened;
  std::vector<TokenShardFile> files;
  for (const fs::path& path : shards) {
    auto part = std::make_unique<const Corpus>(path, tokenizer, 1, Part{});
    files.emplace_back(path, part->format_);
    opened[path] = std::move(part);
  }
  sort_token_shards(files);
  path_ = files.front().first;
  std::int64_t tokens = 0;
  for (const auto& [path, format] : files) {
    if (format.tokens == 0) continue;
    if (parts_.empty()) format_ = format;
    parts_.push_back(std::move(opened.at(path)));
    firsts_.push_back(tokens);
    tokens += format.tokens;
  }
  format_.tokens = tokens;
  if (format_.vocabulary > 0) limit_ = format_.vocabulary;
}

Corpus::Corpus(const fs::path& path, const Tokenizer& tokenizer, int workers, Part)
    : path_(path), limit_(std::numeric_limits<std::int64_t>::max()) {
  open(path);
  try {
    recognise(tokenizer, workers);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

Corpus::~Corpus() {
  if (file_ >= 0) ::close(file_);
}

void Corpus::open(const fs::path& path) {
  // With O_NONBLOCK a pipe that was named by mistake is refused below instead of waited for.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const int reason = errno;
  TESSERA_CHECK(file >= 0, ErrorCode::data, "data file {} cannot be opened: {}{}", path.string(),
                describe_errno("open", reason),
                reason == EMFILE ? "; raise the limit (ulimit -n), or write fewer shards" : "");
  struct stat status {};
  const bool known = ::fstat(file, &status) == 0;
  const int error = errno;
  const bool usable = known && S_ISREG(status.st_mode) && status.st_size > 0;
  if (!usable) ::close(file);
  TESSERA_CHECK(known, ErrorCode::data, "data file {}: {}", path.string(),
                describe_errno("fstat", error));
  TESSERA_CHECK(S_ISREG(status.st_mode), ErrorCode::data, "data file {} is {}; name a text file",
                path.string(), kind_of(status.st_mode));
  TESSERA_CHECK(status.st_size > 0, ErrorCode::data, "data file {} is empty; name a file with text",
                path.string());
  if (file_ >= 0) ::close(file_);
  file_ = file;
  file_bytes_ = status.st_size;
}

std::string Corpus::beginning() const {
  std::string bytes(static_cast<std::size_t>(std::min<std::int64_t>(file_bytes_, 256)), '\0');
  read_bytes(0, {reinterpret_cast<unsigned char*>(bytes.data()), bytes.size()});
  return bytes;
}

void Corpus::recognise(const Tokenizer& tokenizer, int workers) {
  const bool bytes = tokenizer.name() == "bytes";
  if (auto stream = recognise_token_stream(path_, beginning(), file_bytes_)) {
    format_ = std::move(*stream);
    TESSERA_CHECK(bytes || format_.tokens == 0 || format_.fingerprint == 0 ||
                      tokenizer.fingerprint() == 0 ||
                      format_.fingerprint == tokenizer.fingerprint(),
                  ErrorCode::configuration,
                  "data file {} holds tokens of tokenizer {}, not of {}; give the text, or leave "
                  "the tokenizer out",
                  path_.string(), format_.tokenizer, tokenizer.name());
  } else if (bytes && !is_compressed_text(path_)) {
    format_ = {"bytes", 0, file_bytes_, 1, "bytes", tokenizer.fingerprint(), 256, {}};
  } else {
    open_tokenized(tokenizer, workers);
  }
  if (format_.vocabulary > 0) limit_ = format_.vocabulary;
}

void Corpus::open_tokenized(const Tokenizer& tokenizer, int workers) {
  // The lock is on the text and ends with its descriptor.
  const TextStamp stamp = stamp_of_text(path_);
  fs::path stream = fmt::format("{}.{:016x}.tokens", path_.string(), tokenizer.fingerprint());
  const fs::path folder = path_.has_parent_path() ? path_.parent_path() : fs::path(".");
  const bool may_write = ::faccessat(AT_FDCWD, folder.c_str(), W_OK, AT_EACCESS) == 0;
  const KeptStream kept = lock_stream(file_, stream, tokenizer, stamp);
  const bool ready = kept.state == KeptStream::State::of_this_version;
  if (kept.state == KeptStream::State::damaged) {
    print_err("tessera: token stream {} is damaged, and is made again\n", stream.string());
  }
  if (!ready && !may_write) {
    std::string name = (fs::temp_directory_path() / "tessera-tokens-XXXXXX").string();
    const int made = ::mkstemp(name.data());
    TESSERA_CHECK(made >= 0, ErrorCode::data,
                  "data file {}: its tokens can be kept neither beside it nor in {}: {}; write "
                  "them with tessera tokenize",
                  path_.string(), fs::temp_directory_path().string(),
                  describe_errno("mkstemp", errno));
    ::close(made);
    stream = name;
  }
  const bool passing = !ready && !may_write;  // unlinked in any case
  try {
    if (!ready) write_stream_of(path_, stream, tokenizer, stamp, workers);
    open(stream);  // closes the text
  } catch (...) {
    if (passing) ::unlink(stream.c_str());
    throw;
  }
  if (passing) ::unlink(stream.c_str());
  auto format = recognise_token_stream(stream, beginning(), file_bytes_);
  TESSERA_CHECK(format.has_value(), ErrorCode::data,
                "token stream {} was changed while it was read", stream.string());
  TESSERA_CHECK(format->tokens > 0, ErrorCode::data,
                "data file {} gives no tokens with tokenizer {}", path_.string(), tokenizer.name());
  format_ = std::move(*format);
}

void Corpus::require_vocabulary(std::int64_t model_vocabulary, bool pretrained) const {
  check_vocabulary(fmt::format("data file {}", path_.string()), format_.tokenizer,
                   format_.vocabulary, model_vocabulary, pretrained);
  limit_ = std::min(limit_.load(), model_vocabulary);
}

void Corpus::read_ids(std::int64_t first, std::span<unsigned char> out) const {
  if (parts_.empty()) return read_bytes(format_.offset + first, out);
  const auto width = static_cast<std::int64_t>(format_.bytes_per_token);
  auto part = static_cast<std::size_t>(
      std::upper_bound(firsts_.begin(), firsts_.end(), first / width) - firsts_.begin() - 1);
  for (; !out.empty(); ++part) {
    const std::int64_t at = first - firsts_[part] * width;
    const auto size = static_cast<std::size_t>(std::min<std::int64_t>(
        parts_[part]->tokens() * width - at, static_cast<std::int64_t>(out.size())));
    parts_[part]->read_ids(at, out.first(size));
    out = out.subspan(size);
    first += static_cast<std::int64_t>(size);
  }
}

void Corpus::read_bytes(std::int64_t first, std::span<unsigned char> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(file_, out.data() + done, out.size() - done,
                                static_cast<off_t>(first) + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    TESSERA_CHECK(got >= 0, ErrorCode::data, "data file {} cannot be read at byte {}: {}",
                  path_.string(), first + static_cast<std::int64_t>(done),
                  describe_errno("pread", errno));
    TESSERA_CHECK(got > 0, ErrorCode::data,
                  "data file {} became shorter while it was in use: it had {} bytes, now it ends "
                  "before byte {}",
                  path_.string(), file_bytes_, first + static_cast<std::int64_t>(out.size()));
    done += static_cast<std::size_t>(got);
  }
}

void Corpus::read(std::int64_t first, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  TESSERA_REQUIRE(first >= 0 && count <= tokens() && first <= tokens() - count,
                  "tokens {} to {} are outside a corpus of {}", first, first + count, tokens());
  const auto width = static_cast<std::int64_t>(format_.bytes_per_token);
  const std::int64_t limit = limit_.load(std::memory_order_relaxed);
  std::array<unsigned char, 4096> block;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t size =
        std::min<std::int64_t>(count - done, static_cast<std::int64_t>(block.size()) / width);
    read_ids((first + done) * width,
             std::span(block).first(static_cast<std::size_t>(size * width)));
    for (std::int64_t i = 0; i < size; ++i) {
      std::uint32_t id = 0;  // low byte first, as on every supported machine
      std::memcpy(&id, block.data() + i * width, static_cast<std::size_t>(width));
      TESSERA_CHECK(std::cmp_less(id, limit), ErrorCode::data,
                    "data file {}{}: token {} is {}, and the vocabulary has {} tokens; give the "
                    "file that was made for this model",
                    path_.string(), parts_.empty() ? "" : " and its other shards", first + done + i,
                    id, limit);
      out[static_cast<std::size_t>(done + i)] = static_cast<std::int32_t>(id);
    }
    done += size;
  }
}

std::uint64_t Corpus::fingerprint() const {
  constexpr std::int64_t samples = 64;
  constexpr std::int64_t sample_bytes = 1024;
  // Hashes only the tokens: a stream's header contains the time of its text.
  const std::int64_t bytes = format_.tokens * format_.bytes_per_token;
  std::uint64_t hash = mix(0, static_cast<std::uint64_t>(bytes));
  std::array<unsigned char, sample_bytes> block;
  const std::int64_t size = std::min(bytes, sample_bytes);
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t first = (bytes - size) / (samples - 1) * i;
    read_ids(first, std::span(block).first(static_cast<std::size_t>(size)));
    for (std::int64_t k = 0; k < size; ++k) hash = mix(hash, block[static_cast<std::size_t>(k)]);
  }
  return hash;
}

void check_vocabulary(const std::string& what, const std::string& tokenizer,
                      std::int64_t tokenizer_vocabulary, std::int64_t model_vocabulary,
                      bool pretrained) {
  TESSERA_CHECK(tokenizer_vocabulary <= model_vocabulary, ErrorCode::configuration,
                "{}: tokenizer {} has {} tokens, and the model's vocabulary is {}; use the model's "
                "own tokenizer, or a model with at least {}",
                what, tokenizer, tokenizer_vocabulary, model_vocabulary, tokenizer_vocabulary);
  // Embeddings are often slightly larger than vocabularies, so that their sizes divide well.
  const bool same =
      tokenizer_vocabulary == 0 || model_vocabulary - tokenizer_vocabulary <= model_vocabulary / 10;
  TESSERA_CHECK(!pretrained || same, ErrorCode::configuration,
                "{}: tokenizer {} has {} tokens, and the pretrained model has learnt {} of another "
                "tokenizer; name the folder of the model's own tokenizer (tokenizer.json), or give "
                "tokens made with it by tessera tokenize",
                what, tokenizer, tokenizer_vocabulary, model_vocabulary);
}

}  // namespace tessera
