// The sources of the key, and HMAC-SHA-256 by libsodium.
#include "comm/control/job_key.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/error.h"
#include "comm/file_descriptor.h"

namespace tessera::comm::control {
namespace {

constexpr std::size_t shortest = 16;
constexpr std::size_t longest = 1024;

static_assert(std::tuple_size_v<Proof> == crypto_auth_hmacsha256_BYTES);

void start_library() {
  TESSERA_CHECK(sodium_init() >= 0, ErrorCode::runtime, "libsodium cannot be started");
}

const unsigned char* key_bytes(const void* data) {
  return static_cast<const unsigned char*>(data);
}

}  // namespace

Nonce make_nonce() {
  start_library();
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

JobKey::~JobKey() {
  sodium_memzero(text_.data(), text_.size());
}

JobKey JobKey::none() {
  JobKey key;
  key.declined_ = true;
  return key;
}

JobKey JobKey::from_environment() {
  const char* text = std::getenv(job_key_variable);
  if (text != nullptr && *text != '\0') {
    return text == no_job_key ? none() : from_text(text, job_key_variable);
  }
  const char* path = std::getenv(job_key_file_variable);
  return path != nullptr && *path != '\0' ? from_file(path) : JobKey();
}

JobKey JobKey::from_text(std::string_view text, std::string_view source) {
  const auto is_visible = [](char character) { return character > ' ' && character < '\x7f'; };
  TESSERA_CHECK(text.size() >= shortest && text.size() <= longest &&
                    std::all_of(text.begin(), text.end(), is_visible),
                ErrorCode::configuration,
                "{} holds no job key: {} to {} visible ASCII characters without spaces are needed, "
                "such as those of `openssl rand -hex 32`",
                source, shortest, longest);
  JobKey key;
  key.text_ = text;
  return key;
}

JobKey JobKey::from_file(const std::filesystem::path& path) {
  // O_NONBLOCK: a FIFO must not block the open; it is refused like everything that is not a file.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  TESSERA_CHECK(file.get() >= 0, ErrorCode::configuration, "the job key's file {}: {}",
                path.string(), describe_errno("open", errno));
  struct stat status {};
  TESSERA_SYSTEM(::fstat(file.get(), &status));
  TESSERA_CHECK(S_ISREG(status.st_mode), ErrorCode::configuration,
                "the job key's file {} is not a regular file", path.string());
  TESSERA_CHECK(status.st_uid == ::geteuid() || status.st_uid == 0, ErrorCode::configuration,
                "the job key's file {} belongs to another user (uid {}), who may have put a key of "
                "their own there: make a file of your own (`openssl rand -hex 32`, chmod 600)",
                path.string(), status.st_uid);
  TESSERA_CHECK((status.st_mode & (S_IRWXG | S_IRWXO)) == 0, ErrorCode::configuration,
                "the job key's file {} is open to others than its owner (mode {:04o}): chmod 600 "
                "{}, and make another key if another user may have read it",
                path.string(), status.st_mode & 07777U, path.string());
  std::array<char, longest + 2> text{};
  std::size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    TESSERA_CHECK(got >= 0, ErrorCode::configuration, "the job key's file {}: {}", path.string(),
                  describe_errno("read", errno));
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  std::string_view line(text.data(), length);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  return from_text(line, path.string());
}

JobKey JobKey::made() {
  const Nonce random = make_nonce();
  std::array<char, 2 * std::tuple_size_v<Nonce> + 1> text{};
  sodium_bin2hex(text.data(), text.size(), random.data(), random.size());
  JobKey key;
  key.text_ = text.data();
  return key;
}

Proof JobKey::prove(std::initializer_list<std::string_view> parts) const {
  Proof proof{};
  if (!given()) return proof;
  start_library();
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key_bytes(text_.data()), text_.size());
  for (const std::string_view part : parts) {
    const std::uint64_t length = part.size();
    crypto_auth_hmacsha256_update(&state, key_bytes(&length), sizeof(length));
    crypto_auth_hmacsha256_update(&state, key_bytes(part.data()), part.size());
  }
  crypto_auth_hmacsha256_final(&state, proof.data());
  return proof;
}

bool JobKey::holds(const Proof& proof, std::initializer_list<std::string_view> parts) const {
  const Proof expected = prove(parts);
  return sodium_memcmp(proof.data(), expected.data(), proof.size()) == 0;
}

}  // namespace tessera::comm::control
