// Opening, cutting, adding.
#include "cli/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "kernels/base/error.h"

namespace tessera::cli {
namespace {

void make_parent(const std::filesystem::path& path) {
  std::error_code ignored;  // the file's own error says more
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), ignored);
}

// Adds it all; false with errno where the system refuses.
bool write_bytes(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::write(file, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(got));
  }
  return true;
}

}  // namespace

LogFile::LogFile(std::string key, const std::filesystem::path& path,
                 const std::function<std::int64_t(const std::filesystem::path&)>& kept)
    : key_(std::move(key)), path_(path) {
  make_parent(path);
  constexpr int flags = O_RDWR | O_APPEND | O_CLOEXEC;
  file_ = ::open(path.c_str(), flags | O_CREAT | O_EXCL, 0666);
  is_new_ = file_ >= 0;
  if (!is_new_ && errno == EEXIST) file_ = ::open(path.c_str(), flags | O_CREAT, 0666);
  TESSERA_CHECK(file_ >= 0, ErrorCode::configuration, "{}: {} cannot be written: {}", key_,
                path.string(), describe_errno("open", errno));
  struct stat status {};
  try {
    TESSERA_SYSTEM(::fstat(file_, &status));
    // A device or a pipe takes bytes and has none to remove.
    is_regular_ = S_ISREG(status.st_mode);
    if (is_regular_ && !is_new_) bytes_ = kept(path);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

LogFile::~LogFile() {
  ::close(file_);
  if (is_new_ && !begun_) ::unlink(path_.c_str());
}

void LogFile::begin() {
  if (!begun_) cut(bytes_);
  begun_ = true;
}

void LogFile::cut(std::int64_t bytes) {
  if (is_regular_) TESSERA_SYSTEM(::ftruncate(file_, bytes));
  bytes_ = bytes;
}

void LogFile::append(std::string_view bytes, std::int64_t step) {
  begin();
  TESSERA_CHECK(write_bytes(file_, bytes), ErrorCode::runtime, "{}: {} at step {}: {}", key_,
                path_.string(), step, describe_errno("write", errno));
  bytes_ += static_cast<std::int64_t>(bytes.size());
}

std::int64_t bytes_of_lines(const std::string& key, const std::filesystem::path& path,
                            const std::function<bool(std::string_view)>& begins,
                            const std::function<bool(const std::string&, std::int64_t)>& stays) {
  std::ifstream stream(path, std::ios::binary);
  std::int64_t kept = 0;
  std::int64_t number = 0;
  bool keeping = true;
  for (std::string line; std::getline(stream, line);) {
    if (stream.eof()) {  // no newline at its end
      TESSERA_CHECK(number > 0 || begins(line), ErrorCode::configuration,
                    "{}: {} exists and is no log of a run; name another file", key, path.string());
      break;
    }
    keeping = stays(line, ++number) && keeping;
    if (keeping) kept += static_cast<std::int64_t>(line.size()) + 1;
  }
  return kept;
}

void check_output_file(const std::string& key, const std::filesystem::path& path,
                       std::string_view mark) {
  LogFile(key, path, [&](const std::filesystem::path& there) {
    std::ifstream stream(there, std::ios::binary);
    std::string beginning(256, '\0');
    stream.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
    beginning.resize(static_cast<std::size_t>(stream.gcount()));
    TESSERA_CHECK(beginning.empty() || beginning.find(mark) != std::string::npos,
                  ErrorCode::configuration,
                  "{}: {} exists and is something else; name another file", key, there.string());
    return 0;
  });
}

}  // namespace tessera::cli
