// Writes to a temporary name of this process beside the file, then renames it.
#include "engine/storage/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text/print.h"
#include "base/text/printable.h"
#include "base/write_failure.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int most_links = 40;  // the kernel's limit

// The number of the process's descriptor that a path names, or nothing.
std::optional<int> named_descriptor(const fs::path& path) {
  const std::string name = path.lexically_normal().string();
  constexpr std::array<std::string_view, 3> standard{"/dev/stdin", "/dev/stdout", "/dev/stderr"};
  const auto found = std::find(standard.begin(), standard.end(), name);
  if (found != standard.end()) return static_cast<int>(found - standard.begin());
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!name.starts_with(folder)) continue;
    int number = 0;
    const char* const end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + folder.size(), end, number);
    if (error == std::errc{} && stop == end) return number;
  }
  return std::nullopt;
}

// The text of a symbolic link, or nothing if `path` is not one. Owner and text are those of one
// inode, whatever the name refers to later.
std::optional<fs::path> text_of_link(const fs::path& path) {
  const int link = ::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (link < 0) return std::nullopt;
  struct stat status {};
  char text[PATH_MAX];
  const bool is_link = ::fstat(link, &status) == 0 && S_ISLNK(status.st_mode);
  const ssize_t length = is_link ? ::readlinkat(link, "", text, sizeof text) : 0;
  const int reason = errno;
  ::close(link);
  if (!is_link) return std::nullopt;
  TESSERA_CHECK(status.st_uid == ::geteuid() || status.st_uid == 0, ErrorCode::configuration,
                "{} is a symbolic link of another user (uid {}), which is not followed; remove it "
                "or name another file",
                path.string(), status.st_uid);
  TESSERA_CHECK(length > 0, ErrorCode::configuration, "{}", describe_errno("readlink", reason));
  return std::string(text, static_cast<std::size_t>(length));
}

// The partial file. It is removed at the end of its life, unless it became the file.
class PartialOutput {
 public:
  PartialOutput(const std::string& what, const fs::path& path) : what_(what) {
    try {
      target_ = written_path(path);
      partial_ = target_;
      partial_ += fmt::format(".partial-{}", ::getpid());
      TESSERA_CHECK(!fs::is_directory(target_), ErrorCode::configuration,
                    "it is a folder; name a file in it");
      ::unlink(partial_.c_str());  // of an earlier process with this number, or a stranger's
      file_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      TESSERA_CHECK(file_ >= 0, full_disk_or(errno, ErrorCode::configuration), "{}",
                    describe_errno("open", errno));
    } catch (const Error& error) {
      fail(error.code(), "{}: cannot be written: {}", what_, error.what());
    } catch (const std::exception& error) {
      fail(ErrorCode::configuration, "{}: cannot be written: {}", what_, error.what());
    }
  }
  ~PartialOutput() {
    if (file_ >= 0) ::close(file_);
    ::unlink(partial_.c_str());
  }
  PartialOutput(const PartialOutput&) = delete;
  PartialOutput& operator=(const PartialOutput&) = delete;

  void become(std::string_view text) {
    write(text);
    take_mode();
    if (::fsync(file_) != 0 && errno != EINVAL) refuse("fsync");  // some file systems have no fsync
    if (::close(std::exchange(file_, -1)) != 0) refuse("close");
    if (::rename(partial_.c_str(), target_.c_str()) != 0) refuse("rename");
  }

 private:
  [[noreturn]] void refuse(const char* call) const {
    const int reason = errno;
    fail(full_disk_or_runtime(reason), "{}: cannot be written: {}", what_,
         describe_errno(call, reason));
  }

  void write(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t bytes = ::write(file_, text.data(), text.size());
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes < 0) refuse("write");
      text.remove_prefix(static_cast<std::size_t>(bytes));
    }
  }

  // Copies owner and mode of the previous file. The owner comes first: changing it clears special
  // bits of the mode.
  void take_mode() const {
    struct stat before {};
    if (::stat(target_.c_str(), &before) != 0 || !S_ISREG(before.st_mode)) return;
    (void)!::fchown(file_, before.st_uid, before.st_gid);  // usually only root may
    if (::fchmod(file_, before.st_mode & 07777) != 0) refuse("fchmod");
  }

  std::string what_;
  fs::path target_;
  fs::path partial_;
  int file_ = -1;
};

void write_stream(const std::string& what, const fs::path& path, std::string_view text) {
  const int file = open_output(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(
      file < 0 ? nullptr : ::fdopen(file, "wb"), &std::fclose);
  TESSERA_CHECK(stream, ErrorCode::configuration, "{}: cannot be written: {}", what,
                describe_errno("open", errno));
  // Names in a report must not reach a terminal as escape sequences.
  const std::string safe =
      ::isatty(::fileno(stream.get())) == 1 ? printable_lines(text) : std::string(text);
  const bool whole = std::fwrite(safe.data(), 1, safe.size(), stream.get()) == safe.size() &&
                     std::fflush(stream.get()) == 0;
  TESSERA_CHECK(whole, full_disk_or_runtime(errno), "{}: cannot be written: {}", what,
                describe_errno("write", errno));
}

}  // namespace

bool is_stream_name(const fs::path& path) {
  return named_descriptor(path).has_value();
}

void require_file_name(const std::string& what, const fs::path& path) {
  TESSERA_CHECK(
      path != "-", ErrorCode::usage,
      "{}: this option takes the name of a file: /dev/stdout for standard output, ./- for "
      "a file called -",
      what);
}

fs::path written_path(const fs::path& path) {
  fs::path target = path;
  for (int link = 0; !is_stream_name(path); ++link) {
    const std::optional<fs::path> next = text_of_link(target);
    // The link of a pipe has a text that is not a path: "pipe:[1234]".
    if (!next || (next->is_relative() && target.string().starts_with("/proc/"))) break;
    TESSERA_CHECK(link < most_links, ErrorCode::configuration, "{}",
                  describe_errno("readlink", ELOOP));
    target = target.parent_path() / *next;  // an absolute path replaces it
  }
  return target;
}

int open_output(const fs::path& path, int flags) {
  // A file that is opened once more would have a place of its own: what the process and its caller
  // print there would be written over.
  if (const std::optional<int> number = named_descriptor(path)) {
    flush_standard_output();
    return ::fcntl(*number, F_DUPFD_CLOEXEC, 0);
  }
  const fs::path target = written_path(path);
  const bool is_kernels = is_stream_name(target) || target.string().starts_with("/proc/");
  return ::open(target.c_str(), is_kernels ? flags : flags | O_NOFOLLOW, 0666);
}

bool is_stream(const fs::path& path) {
  if (is_stream_name(path)) return true;
  std::error_code error;
  const auto status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

void check_output(const std::string& what, const fs::path& path) {
  if (!is_stream(path)) const PartialOutput made(what, path);
}

void write_output(const std::string& what, const fs::path& path, std::string_view text) {
  if (is_stream(path)) return write_stream(what, path, text);
  PartialOutput(what, path).become(text);
}

}  // namespace tessera
