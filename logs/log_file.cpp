// Opening, truncating, appending.
#include "logs/log_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/write_failure.h"
#include "checkpoint/io/removal.h"
#include "engine/storage/output_file.h"

namespace tessera::logs {
namespace {

void make_parent(const std::filesystem::path& path) {
  std::error_code ignored;  // the file's own error is more precise
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), ignored);
}

// Writes all of it; false with errno if the system refuses.
bool write_bytes(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::write(file, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(got));
  }
  return true;
}

// The same file once more, with a position and flags of its own: the descriptor, or -1 with errno.
int reopened(int file, int flags) {
  return ::open(fmt::format("/proc/self/fd/{}", file).c_str(), flags | O_CLOEXEC);
}

// The process that has locked the file: "1: FLOCK ADVISORY WRITE <pid> <major>:<minor>:<inode>".
std::optional<pid_t> holder_of_lock(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return std::nullopt;
  const std::string wanted = fmt::format(":{}", status.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, advisory, mode, place;
    pid_t pid = 0;
    if (!(words >> number >> kind >> advisory >> mode >> pid >> place)) continue;
    // Some file systems (btrfs) show another device number here than in stat().
    if (kind == "FLOCK" && place.ends_with(wanted) && pid > 0) return pid;
  }
  return std::nullopt;
}

// "m.jsonl" -> "m.1.jsonl". TensorBoard reads every file with "tfevents" in its name and would mix
// two runs.
std::filesystem::path aside_name_of(const std::filesystem::path& path, int number) {
  std::string stem = path.stem();
  if (const auto events = stem.find("tfevents"); events != std::string::npos) {
    stem.replace(events, std::strlen("tfevents"), "earlier");
  }
  return path.parent_path() / fmt::format("{}.{}{}", stem, number, path.extension().string());
}

}  // namespace

LogFile::LogFile(std::string key, const std::filesystem::path& path,
                 const std::function<std::int64_t(const std::filesystem::path&)>& kept)
    : key_(std::move(key)), path_(path) {
  make_parent(path);
  open_file();
  struct stat status {};
  try {
    TESSERA_SYSTEM(::fstat(file_, &status));
    // A device or a pipe has no bytes to remove. /dev/stdout belongs to the caller, so the log only
    // appends.
    is_regular_ = S_ISREG(status.st_mode) && !is_stream(path);
    awaits_reader_ = S_ISFIFO(status.st_mode) && (::fcntl(file_, F_GETFL) & O_ACCMODE) == O_RDWR;
    if (is_regular_) lock();
    if (is_regular_ && !is_new_) bytes_ = kept(path);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

void LogFile::open_file() {
  constexpr int flags = O_RDWR | O_APPEND | O_CLOEXEC;
  file_ = ::open(path_.c_str(), flags | O_CREAT | O_EXCL, 0666);
  is_new_ = file_ >= 0;
  if (!is_new_ && errno == EEXIST) {
    if (!open_read_pipe()) file_ = open_output(path_, flags | O_CREAT);
  }
  TESSERA_CHECK(file_ >= 0, full_disk_or(errno, ErrorCode::configuration),
                "{}: {} cannot be written: {}", key_, path_.string(),
                describe_errno("open", errno));
}

// Opens a pipe that has a reader. A process that could read its own pipe would fill it and wait for
// ever when the reader has ended; one that only writes gets EPIPE. Without a reader no process can
// open the pipe to write alone, and the log holds both ends, so that the run goes on until the pipe
// is full. Both ends are not opened first: they would wake a reader that waits for a writer, and
// closing them would end its file.
bool LogFile::open_read_pipe() {
  std::error_code unknown;
  if (is_stream_name(path_) || !std::filesystem::is_fifo(path_, unknown)) return false;
  const int writing = open_output(path_, O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK);
  if (writing < 0) return false;
  file_ = writing;
  TESSERA_SYSTEM(::fcntl(file_, F_SETFL, O_APPEND));  // no O_NONBLOCK
  return true;
}

// A reader has been there if bytes are no longer in the pipe.
void LogFile::look_for_reader() {
  int waiting = 0;
  TESSERA_SYSTEM(::ioctl(file_, FIONREAD, &waiting));
  if (waiting >= bytes_) return;
  const int writing = reopened(file_, O_WRONLY | O_APPEND);
  TESSERA_SYSTEM(writing);
  ::close(std::exchange(file_, writing));
  awaits_reader_ = false;
}

// The lock ends with the process in any case. A file system without flock (some NFS and FUSE) gives
// no lock, and the run goes on without it.
void LogFile::lock() const {
  if (::flock(file_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  const std::optional<pid_t> holder = holder_of_lock(file_);
  TESSERA_CHECK(holder != ::getpid(), ErrorCode::configuration,
                "{}: {} is another log of this run already; name another file", key_,
                path_.string());
  fail(ErrorCode::configuration,
       "{}: {} is being written by another run{}; name another file, or end that run", key_,
       path_.string(), holder ? fmt::format(", process {}", *holder) : "");
}

// The file of an earlier run stays, under the first free name.
void LogFile::rename_aside() {
  const std::filesystem::path there = std::filesystem::canonical(path_);
  for (int number = 1;; ++number) {
    set_aside_ = aside_name_of(there, number);
    std::error_code error;
    if (!std::filesystem::exists(std::filesystem::symlink_status(set_aside_, error))) break;
  }
  TESSERA_CHECK(::rename(there.c_str(), set_aside_.c_str()) == 0, ErrorCode::configuration,
                "{}: {} is from an earlier run and cannot be renamed to {}: {}; name another file",
                key_, path_.string(), set_aside_.string(), describe_errno("rename", errno));
  ::close(file_);
  open_file();
  lock();
}

LogFile::~LogFile() {
  ::close(file_);
  if (is_new_ && !begun_) checkpoint::try_remove_tree(path_);
}

void LogFile::begin() {
  if (begun_) return;
  struct stat status {};
  TESSERA_SYSTEM(::fstat(file_, &status));
  if (is_regular_ && bytes_ == 0 && status.st_size > 0) rename_aside();
  cut(bytes_);
  begun_ = true;
}

void LogFile::cut(std::int64_t bytes) {
  TESSERA_CHECK(!is_regular_ || ::ftruncate(file_, bytes) == 0, full_disk_or_runtime(errno),
                "{}: {}: {}", key_, path_.string(), describe_errno("ftruncate", errno));
  bytes_ = bytes;
}

void LogFile::append(std::string_view bytes, std::int64_t step) {
  begin();
  if (awaits_reader_) look_for_reader();
  if (!write_bytes(file_, bytes)) {
    const int error = errno;
    const std::string text = fmt::format("{}: {} at step {}: {}", key_, path_.string(), step,
                                         describe_errno("write", error));
    if (error == EPIPE) throw LostReader(ErrorCode::runtime, text);
    fail(full_disk_or_runtime(error), "{}", text);
  }
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
                    "{}: {} exists and is not a log of a run; name another file", key,
                    path.string());
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
                  "{}: {} exists and has another format; name another file", key, there.string());
    return 0;
  });
}

}  // namespace tessera::logs
