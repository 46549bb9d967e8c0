// Folders and whole small files: the functions of checkpoint/io/file.h that need several system
// calls.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/io/file.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_path(std::string_view action, const fs::path& path, const char* call,
                            int error_number) {
  throw SystemFailure(error_number, fmt::format("cannot {} '{}': {}", action, path.string(),
                                                describe_errno(call, error_number)));
}

fs::path parent_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

// Closes a folder's descriptor at the end of the block.
class OpenFolder {
 public:
  explicit OpenFolder(const fs::path& folder) {
    do {
      fd_ = system_calls().open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    } while (fd_ == -1 && errno == EINTR);
    if (fd_ == -1) fail_path("open folder", folder, "open", errno);
  }
  ~OpenFolder() { system_calls().close(fd_); }  // nothing was written through it
  OpenFolder(const OpenFolder&) = delete;
  OpenFolder& operator=(const OpenFolder&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

}  // namespace

void sync_folder(const fs::path& folder) {
  const OpenFolder opened(folder);
  while (system_calls().fsync(opened.fd()) == -1) {
    // EINVAL means that the file system has no fsync for folders.
    if (errno == EINVAL) return;
    if (errno != EINTR) fail_path("make durable folder", folder, "fsync", errno);
  }
}

void create_folder(const fs::path& folder) {
  if (system_calls().mkdir(folder.c_str(), 0777) == -1) {
    fail_path("create folder", folder, "mkdir", errno);
  }
}

void create_folders(const fs::path& folder) {
  std::vector<fs::path> missing;
  fs::path above = folder.has_filename() ? folder : folder.parent_path();
  std::error_code status_error;
  while (!above.empty() && !fs::exists(above, status_error)) {
    missing.push_back(above);
    above = above.parent_path();
  }
  for (auto it = missing.rbegin(); it != missing.rend(); ++it) {
    // Another run may create it at the same moment, which is fine.
    if (system_calls().mkdir(it->c_str(), 0777) == -1 && errno != EEXIST) {
      fail_path("create folder", *it, "mkdir", errno);
    }
    sync_folder(parent_of(*it));
  }
  TESSERA_CHECK(fs::is_directory(folder, status_error), ErrorCode::checkpoint,
                "'{}' is not a folder; choose another place for checkpoints", folder.string());
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (system_calls().rename(from.c_str(), to.c_str()) == -1) {
    fail_path(fmt::format("rename '{}' to", from.string()), to, "rename", errno);
  }
}

fs::path exchange_folders(const fs::path& fresh, const fs::path& old, const fs::path& aside) {
  if (system_calls().exchange(fresh.c_str(), old.c_str()) == 0) {
    return fresh;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
    fail_path(fmt::format("exchange '{}' with", fresh.string()), old, "renameat2", errno);
  }
  rename_path(old, aside);
  try {
    rename_path(fresh, old);
  } catch (const Error& error) {
    if (system_calls().rename(aside.c_str(), old.c_str()) == 0) throw;
    throw SystemFailure(
        errno, fmt::format("{}; what was there is complete in '{}'", error.what(), aside.string()));
  }
  return aside;
}

std::vector<std::string> names_in_folder(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  std::vector<std::string> names;
  while (!error && entries != fs::directory_iterator()) {
    names.push_back(entries->path().filename());
    entries.increment(error);
  }
  if (error) fail_path("list", folder, "readdir", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

bool path_exists(const fs::path& path) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  if (error && error != std::errc::not_a_directory) {
    fail_path("look at", path, "stat", error.value());
  }
  return there;
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) return;
  if (status.type() != fs::file_type::directory) {
    if (system_calls().unlink(path.c_str()) == -1) fail_path("remove", path, "unlink", errno);
    return;
  }
  for (const std::string& child : names_in_folder(path)) remove_tree(path / child);
  if (system_calls().rmdir(path.c_str()) == -1) fail_path("remove folder", path, "rmdir", errno);
}

void write_file(const fs::path& path, std::string_view contents) {
  File file = File::create(path);
  file.write_at(0, contents.data(), contents.size());
  file.sync();
  file.close();
}

void replace_file(const fs::path& path, std::string_view contents) {
  fs::path fresh = path;
  fresh += ".partial";
  File file = File::create_or_truncate(fresh);
  file.write_at(0, contents.data(), contents.size());
  file.sync();
  file.close();
  rename_path(fresh, path);
  sync_folder(parent_of(path));
}

std::string read_file(const fs::path& path, std::uint64_t limit) {
  const File file = File::open_for_reading(path);
  const std::uint64_t bytes = file.size();
  TESSERA_CHECK(bytes <= limit, ErrorCode::checkpoint,
                "'{}' has {} bytes, more than the {} that such a file may have", path.string(),
                bytes, limit);
  std::string contents(static_cast<std::size_t>(bytes), '\0');
  file.read_at(0, contents.data(), contents.size());
  return contents;
}

void check_writable(const fs::path& folder) {
  const fs::path probe = folder / fmt::format(".writable-{}", ::getpid());
  const int file =
      system_calls().open(probe.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file == -1) fail_path("write into folder", folder, "open", errno);
  system_calls().close(file);
  if (system_calls().unlink(probe.c_str()) == -1) fail_path("remove", probe, "unlink", errno);
}

std::uint64_t free_bytes(const fs::path& folder) {
  struct statvfs status {};
  if (system_calls().statvfs(folder.c_str(), &status) == -1) {
    fail_path("ask for the free space of", folder, "statvfs", errno);
  }
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

}  // namespace tessera::checkpoint
