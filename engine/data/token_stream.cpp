// Reads and writes token streams. The header is fixed: 256 bytes, numbers little endian.
#include "engine/data/token_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/write_failure.h"
#include "base/xxh3.h"
#include "engine/data/data_file.h"

namespace tessera {
namespace {

constexpr std::size_t stream_header_bytes = 256;
constexpr std::int64_t writeback_bytes = 16 << 20;
constexpr std::uint32_t stream_version = 1;
constexpr std::size_t longest_name = 140;
constexpr std::size_t longest_name_before_shard = 172;  // of streams without a checksum
constexpr std::size_t longest_older_name = 188;         // of streams without a shard
static_assert(token_stream_magic.size() == 16);

// The offsets of the fields.
constexpr std::size_t version_at = 16;     // u32
constexpr std::size_t id_bytes_at = 20;    // u32
constexpr std::size_t tokens_at = 24;      // u64
constexpr std::size_t vocabulary_at = 32;  // u64
constexpr std::size_t tokenizer_at = 40;   // u64
constexpr std::size_t source_at = 48;      // u64 bytes, i64 nanoseconds
constexpr std::size_t name_bytes_at = 64;  // u32
constexpr std::size_t name_at = 68;
constexpr std::size_t checksum_at = 208;  // u64
constexpr std::size_t changed_at = 216;   // i64 nanoseconds
constexpr std::size_t inode_at = 224;     // u64
constexpr std::size_t shard_at = 240;     // u32 index, u32 count
static_assert(name_at + longest_name == checksum_at);
static_assert(name_at + longest_name_before_shard == shard_at);
static_assert(name_at + longest_older_name == stream_header_bytes);

template <class Number>
Number number_at(std::string_view bytes, std::size_t offset) {
  Number number = 0;
  std::memcpy(&number, bytes.data() + offset, sizeof(Number));
  return number;
}

template <class Number>
void put_number(std::string& bytes, std::size_t offset, Number number) {
  std::memcpy(bytes.data() + offset, &number, sizeof(Number));
}

TokenShard shard_in(std::string_view header, std::uint32_t name_bytes) {
  if (name_bytes > longest_name_before_shard) return {};
  return {number_at<std::uint32_t>(header, shard_at),
          number_at<std::uint32_t>(header, shard_at + 4)};
}

// A seed makes one checksum of header and ids.
std::uint64_t stream_checksum(std::string header, std::uint64_t of_ids) {
  put_number(header, checksum_at, std::uint64_t{0});
  const auto sum = XXH3_64bits_withSeed(header.data(), header.size(), of_ids);
  return sum == 0 ? 1 : sum;  // 0 means that there is none
}

TokenStreamFormat own_stream(const std::string& path, std::string_view header,
                             std::int64_t file_bytes) {
  TESSERA_CHECK(header.size() >= stream_header_bytes, ErrorCode::data,
                "token stream {} is cut off in its header; write it again", path);
  const auto version = number_at<std::uint32_t>(header, version_at);
  TESSERA_CHECK(version == stream_version, ErrorCode::data,
                "token stream {} is of version {}, and this program reads version {}; write it "
                "again with tessera tokenize",
                path, version, stream_version);
  const auto id_bytes = number_at<std::uint32_t>(header, id_bytes_at);
  const auto tokens = number_at<std::uint64_t>(header, tokens_at);
  const auto vocabulary = number_at<std::uint64_t>(header, vocabulary_at);
  const auto name_bytes = number_at<std::uint32_t>(header, name_bytes_at);
  const TokenShard shard = shard_in(header, name_bytes);
  const std::uint64_t body = static_cast<std::uint64_t>(file_bytes) - stream_header_bytes;
  const bool sound = (id_bytes == 2 || id_bytes == 4) && name_bytes <= longest_older_name &&
                     shard.count <= most_token_shards && shard.index <= shard.count &&
                     (shard.index > 0) == (shard.count > 0) &&
                     vocabulary <= (std::uint64_t{1} << 31) && body % id_bytes == 0 &&
                     tokens == body / id_bytes;
  TESSERA_CHECK(sound, ErrorCode::data,
                "token stream {} is damaged: its header does not fit its {} bytes; write it again "
                "with tessera tokenize",
                path, file_bytes);
  TokenStreamFormat format{
      "tessera",
      static_cast<std::int64_t>(stream_header_bytes),
      static_cast<std::int64_t>(tokens),
      static_cast<int>(id_bytes),
      std::string(header.substr(name_at, name_bytes)),
      number_at<std::uint64_t>(header, tokenizer_at),
      static_cast<std::int64_t>(vocabulary),
      {number_at<std::int64_t>(header, source_at), number_at<std::int64_t>(header, source_at + 8)},
      shard};
  if (name_bytes <= longest_name) {
    format.checksum = number_at<std::uint64_t>(header, checksum_at);
    format.source.changed_ns = number_at<std::int64_t>(header, changed_at);
    format.source.inode = number_at<std::uint64_t>(header, inode_at);
  }
  return format;
}

// llm.c: 256 numbers of 4 bytes: the magic number, the version, the number of tokens, ...
struct LlmcKind {
  std::int32_t magic;
  std::int32_t version;
  int bytes_per_token;
  const char* tokenizer;
  std::int64_t vocabulary;
};
constexpr LlmcKind llmc_kinds[] = {{20240520, 1, 2, "gpt2", 50257},
                                   {20240801, 7, 4, "llama3", 128256}};
constexpr std::int64_t llmc_header_bytes = 1024;

std::optional<TokenStreamFormat> llmc_stream(const std::string& path, std::string_view beginning,
                                             std::int64_t file_bytes) {
  if (beginning.size() < 12) return {};
  for (const LlmcKind& kind : llmc_kinds) {
    if (number_at<std::int32_t>(beginning, 0) != kind.magic) continue;
    const auto version = number_at<std::int32_t>(beginning, 4);
    const std::int64_t tokens = number_at<std::int32_t>(beginning, 8);
    TESSERA_CHECK(version == kind.version, ErrorCode::data,
                  "llm.c's token file {} is of version {}, and this program reads version {}", path,
                  version, kind.version);
    TESSERA_CHECK(
        tokens >= 0 && file_bytes == llmc_header_bytes + tokens * kind.bytes_per_token,
        ErrorCode::data,
        "llm.c's token file {} is damaged: its header says {} tokens, and it has {} bytes", path,
        tokens, file_bytes);
    return TokenStreamFormat{
        "llm.c", llmc_header_bytes, tokens, kind.bytes_per_token, kind.tokenizer,
        0,       kind.vocabulary,   {}};
  }
  return {};
}

}  // namespace

std::optional<TokenStreamFormat> recognise_token_stream(const std::filesystem::path& path,
                                                        std::string_view beginning,
                                                        std::int64_t file_bytes) {
  const std::string name = path.string();
  if (beginning.starts_with(token_stream_magic)) return own_stream(name, beginning, file_bytes);
  if (auto llmc = llmc_stream(name, beginning, file_bytes)) return llmc;
  if (path.extension() != ".bin") return {};
  TESSERA_CHECK(file_bytes % 2 == 0, ErrorCode::data,
                "token file {} has {} bytes, and a .bin without a header holds 2 for each token; "
                "give a text another name",
                name, file_bytes);
  return TokenStreamFormat{"uint16", 0, file_bytes / 2, 2, "", 0, 0, {}};
}

bool is_sound_token_stream(const std::filesystem::path& path) {
  const DataFile file(path.string());
  std::string header(stream_header_bytes, '\0');
  if (file.read_to_end(0, header.data(), header.size()) < header.size()) return false;
  const auto format = recognise_token_stream(path, header, file.size());
  if (!format || format->kind != "tessera" || format->checksum == 0) return false;
  const std::uint64_t ids = checksum_of_file(path, format->offset);
  return stream_checksum(std::move(header), ids) == format->checksum;
}

namespace {

// A writer holds a lock on its file; the lock ends with the process.
constexpr std::string_view partial_mark = ".partial-";
constexpr std::size_t partial_digits = 8;

bool is_partial_of(const std::string& stream, const std::string& name) {
  const std::size_t digits_at = stream.size() + partial_mark.size();
  return name.size() == digits_at + partial_digits && name.starts_with(stream) &&
         name.compare(stream.size(), partial_mark.size(), partial_mark) == 0 &&
         name.find_first_not_of("0123456789abcdef", digits_at) == std::string::npos;
}

// Removes partial files of the same stream that killed processes of this user left; each may be as
// large as the corpus. Failure to remove one does not stop the writer.
void remove_stale_partials(const std::filesystem::path& stream) {
  std::error_code ended;
  const std::filesystem::path folder = stream.has_parent_path() ? stream.parent_path() : ".";
  std::filesystem::directory_iterator entry(folder, ended);
  for (; !ended && entry != std::filesystem::directory_iterator(); entry.increment(ended)) {
    const std::filesystem::path& path = entry->path();
    if (!is_partial_of(stream.filename().string(), path.filename().string())) continue;
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) continue;
    struct stat status {};
    const bool is_stale = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
                          status.st_uid == ::geteuid() && ::flock(file, LOCK_EX | LOCK_NB) == 0;
    if (is_stale) ::unlink(path.c_str());
    ::close(file);
  }
}

// Opens a new locked file and checks that it still exists: before the lock, another process may
// have removed it as stale.
int open_partial(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file < 0) return file;
  // On a file system without locks no process gets a lock to remove it, either.
  const bool is_taken = ::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  struct stat status {};
  if (!is_taken && ::fstat(file, &status) == 0 && status.st_nlink > 0) return file;
  ::unlink(path.c_str());
  ::close(file);
  errno = EEXIST;
  return -1;
}

}  // namespace

TokenStreamWriter::TokenStreamWriter(std::filesystem::path path, const Tokenizer& tokenizer,
                                     const TextStamp& source, TokenShard shard)
    : path_(std::move(path)),
      tokenizer_(tokenizer.name().substr(0, longest_name)),
      fingerprint_(tokenizer.fingerprint()),
      vocabulary_(tokenizer.vocabulary_size()),
      bytes_per_token_(vocabulary_ > 0 && vocabulary_ <= 65536 ? 2 : 4),
      source_(source),
      shard_(shard) {
  TESSERA_REQUIRE(shard.count <= most_token_shards && shard.index <= shard.count &&
                      (shard.index > 0) == (shard.count > 0),
                  "shard {} of {}", shard.index, shard.count);
  remove_stale_partials(path_);
  std::random_device random;
  for (int attempts = 0; file_ < 0 && attempts < 10; ++attempts) {
    temporary_ = fmt::format("{}{}{:08x}", path_.string(), partial_mark, random());
    file_ = open_partial(temporary_.string());
    if (file_ < 0 && errno != EEXIST) break;
  }
  TESSERA_CHECK(file_ >= 0, full_disk_or(errno, ErrorCode::configuration),
                "token stream {} cannot be written: {}", path_.string(),
                describe_errno("open", errno));
}

TokenStreamWriter::~TokenStreamWriter() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void TokenStreamWriter::write(const void* data, std::size_t bytes, std::int64_t offset) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t wrote = ::pwrite(file_, static_cast<const char*>(data) + done, bytes - done,
                                   static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (wrote < 0 && errno == EINTR) continue;
    const int reason = wrote < 0 ? errno : ENOSPC;
    TESSERA_CHECK(wrote > 0, full_disk_or_runtime(reason), "token stream {} cannot be written: {}",
                  path_.string(), describe_errno("pwrite", reason));
    done += static_cast<std::size_t>(wrote);
  }
}

void TokenStreamWriter::append(std::span<const std::int32_t> ids) {
  constexpr std::int64_t largest = std::numeric_limits<std::int32_t>::max();
  const auto last =
      static_cast<std::int32_t>(vocabulary_ == 0 ? largest : std::min(vocabulary_ - 1, largest));
  bool known = true;  // without a break the compiler vectorises the loop
  for (const std::int32_t id : ids) known &= id >= 0 && id <= last;
  if (!known) {
    const auto outside =
        std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id < 0 || id > last; });
    misuse("token {} outside a vocabulary of {}", *outside, vocabulary_);
  }
  if (bytes_per_token_ == 4) {
    append_bytes(ids.data(), ids.size_bytes());
  } else {
    narrow_.resize(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) narrow_[i] = static_cast<std::uint16_t>(ids[i]);
    append_bytes(narrow_.data(), 2 * narrow_.size());
  }
  tokens_ += static_cast<std::int64_t>(ids.size());
  start_writeback();
}

void TokenStreamWriter::append_bytes(const void* data, std::size_t bytes) {
  checksum_.update(data, bytes);
  write(data, bytes, static_cast<std::int64_t>(stream_header_bytes) + tokens_ * bytes_per_token_);
}

// The disk writes while ids are made, so that finish() has little to wait for.
void TokenStreamWriter::start_writeback() {
  const std::int64_t end =
      static_cast<std::int64_t>(stream_header_bytes) + tokens_ * bytes_per_token_;
  if (end - written_back_ < writeback_bytes) return;
  // A file system that refuses this writes in finish(), which checks for errors.
  (void)::sync_file_range(file_, written_back_, end - written_back_, SYNC_FILE_RANGE_WRITE);
  written_back_ = end;
}

std::string TokenStreamWriter::header() const {
  std::string bytes(stream_header_bytes, '\0');
  bytes.replace(0, token_stream_magic.size(), token_stream_magic);
  put_number(bytes, version_at, stream_version);
  put_number(bytes, id_bytes_at, static_cast<std::uint32_t>(bytes_per_token_));
  put_number(bytes, tokens_at, static_cast<std::uint64_t>(tokens_));
  put_number(bytes, vocabulary_at, static_cast<std::uint64_t>(vocabulary_));
  put_number(bytes, tokenizer_at, fingerprint_);
  put_number(bytes, source_at, source_.bytes);
  put_number(bytes, source_at + 8, source_.modified_ns);
  put_number(bytes, name_bytes_at, static_cast<std::uint32_t>(tokenizer_.size()));
  bytes.replace(name_at, tokenizer_.size(), tokenizer_);
  put_number(bytes, shard_at, static_cast<std::uint32_t>(shard_.index));
  put_number(bytes, shard_at + 4, static_cast<std::uint32_t>(shard_.count));
  put_number(bytes, changed_at, source_.changed_ns);
  put_number(bytes, inode_at, source_.inode);
  put_number(bytes, checksum_at, stream_checksum(bytes, checksum_.value()));
  return bytes;
}

void TokenStreamWriter::finish() {
  const std::string bytes = header();
  write(bytes.data(), bytes.size(), 0);
  const int synced = ::fsync(file_);
  const int error = errno;
  TESSERA_CHECK(synced == 0, full_disk_or_runtime(error), "token stream {} cannot be written: {}",
                path_.string(), describe_errno("fsync", error));
  TESSERA_CHECK(::rename(temporary_.c_str(), path_.c_str()) == 0, ErrorCode::runtime,
                "token stream {} cannot be given its name: {}", path_.string(),
                describe_errno("rename", errno));
  ::close(file_);
  file_ = -1;
  // The name is durable once its folder is synced; if that is not possible, this is the best
  // available.
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    ::fsync(directory);
    ::close(directory);
  }
}

}  // namespace tessera
