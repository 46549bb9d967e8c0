// Byte tokens straight from the file by pread.
#include "engine/data/corpus.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "engine/data/permutation.h"
#include "kernels/base/error.h"

namespace tessera {
namespace {

std::string kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "no regular file";
}

}  // namespace

Corpus::Corpus(const std::filesystem::path& path, const Tokenizer& tokenizer) : path_(path) {
  TESSERA_REQUIRE(tokenizer.name() == "bytes",
                  "a corpus of raw bytes cannot be read with tokenizer {}", tokenizer.name());
  // O_NONBLOCK so that a pipe named by mistake is refused below and not waited for.
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  TESSERA_CHECK(file_ >= 0, ErrorCode::data, "data file {} cannot be opened: {}", path.string(),
                describe_errno("open", errno));
  struct stat status {};
  const bool known = ::fstat(file_, &status) == 0;
  const int error = errno;
  const bool usable = known && S_ISREG(status.st_mode) && status.st_size > 0;
  if (!usable) ::close(file_);
  TESSERA_CHECK(known, ErrorCode::data, "data file {}: {}", path.string(),
                describe_errno("fstat", error));
  TESSERA_CHECK(S_ISREG(status.st_mode), ErrorCode::data, "data file {} is {}; name a text file",
                path.string(), kind_of(status.st_mode));
  TESSERA_CHECK(status.st_size > 0, ErrorCode::data, "data file {} is empty; name a file with text",
                path.string());
  tokens_ = status.st_size;
}

Corpus::~Corpus() {
  ::close(file_);
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
                  path_.string(), tokens_, first + static_cast<std::int64_t>(out.size()));
    done += static_cast<std::size_t>(got);
  }
}

void Corpus::read(std::int64_t first, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  TESSERA_REQUIRE(first >= 0 && count <= tokens_ && first <= tokens_ - count,
                  "tokens {} to {} are outside a corpus of {}", first, first + count, tokens_);
  std::array<unsigned char, 4096> block;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t size = std::min<std::int64_t>(count - done, block.size());
    read_bytes(first + done, std::span(block).first(static_cast<std::size_t>(size)));
    std::copy_n(block.begin(), size, out.begin() + done);
    done += size;
  }
}

std::uint64_t Corpus::fingerprint() const {
  constexpr std::int64_t samples = 64;
  constexpr std::int64_t sample_bytes = 1024;
  std::uint64_t hash = mix(0, static_cast<std::uint64_t>(tokens_));
  std::array<unsigned char, sample_bytes> block;
  const std::int64_t size = std::min(tokens_, sample_bytes);
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t first = (tokens_ - size) / (samples - 1) * i;
    read_bytes(first, std::span(block).first(static_cast<std::size_t>(size)));
    for (std::int64_t k = 0; k < size; ++k) hash = mix(hash, block[static_cast<std::size_t>(k)]);
  }
  return hash;
}

}  // namespace tessera
