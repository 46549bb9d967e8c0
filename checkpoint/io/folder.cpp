// Folders and whole small files: the functions of checkpoint/io/file.h that need several system
// calls.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text/printable.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/removal.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;

fs::path parent_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace

OpenFolder::OpenFolder(const fs::path& folder) : path_(folder) {
  do {
    fd_ = system_calls().open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  } while (fd_ == -1 && errno == EINTR);
  if (fd_ == -1) fail_path("open folder", path_, "open", errno);
}

OpenFolder::OpenFolder(const OpenFolder& parent, const std::string& name)
    : path_(parent.path_ / name) {
  constexpr int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  do {
    fd_ = system_calls().openat(parent.fd_, name.c_str(), flags);
  } while (fd_ == -1 && errno == EINTR);
  if (fd_ == -1) fail_path("open folder", path_, "openat", errno);
}

OpenFolder::~OpenFolder() {
  system_calls().close(fd_);  // nothing was written through it
}

std::vector<std::string> OpenFolder::names() const {
  const int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);  // closedir closes it
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(copy == -1 ? nullptr : ::fdopendir(copy),
                                                    ::closedir);
  if (entries == nullptr) {
    const int error_number = errno;
    if (copy != -1) ::close(copy);
    fail_path("list", path_, "fdopendir", error_number, way_out_of_reading(error_number));
  }
  ::rewinddir(entries.get());  // the copy has the same position
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view name(entry->d_name);
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) fail_path("list", path_, "readdir", errno, way_out_of_reading(errno));
  std::sort(names.begin(), names.end());
  return names;
}

fs::path path_of_descriptor(int fd) {
  std::error_code error;
  const fs::path link = fmt::format("/proc/self/fd/{}", fd);
  fs::path path = fs::read_symlink(link, error);
  if (error) fail_path("find the path of", link, "readlink", error.value());
  return path;
}

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
  if (error) {
    fail_path("list", folder, "readdir", error.value(), way_out_of_reading(error.value()));
  }
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

void write_file(const fs::path& path, std::string_view contents, mode_t mode) {
  File file = File::create(path, mode);
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
  return read_whole(File::open_for_reading(path), limit);
}

std::string read_whole(const File& file, std::uint64_t limit) {
  const std::uint64_t bytes = file.size();
  TESSERA_CHECK(bytes <= limit, ErrorCode::checkpoint,
                "'{}' has {} bytes, more than the {} that such a file may have",
                file.path().string(), bytes, limit);
  std::string contents(static_cast<std::size_t>(bytes), '\0');
  file.read_at(0, contents.data(), contents.size());
  return contents;
}

void require_member(const fs::path& folder, const File& file) {
  // Both paths are those of open files: a link by name could change meanwhile.
  const fs::path root = path_of_descriptor(OpenFolder(folder).fd());
  const fs::path real = file.real_path();
  const bool is_inside =
      std::mismatch(root.begin(), root.end(), real.begin(), real.end()).first == root.end();
  const fs::path snapshots = root.parent_path();
  const bool is_blob = snapshots.filename() == "snapshots" &&
                       real.parent_path() == snapshots.parent_path() / "blobs";
  TESSERA_CHECK(
      is_inside || is_blob, ErrorCode::checkpoint,
      "'{}' is a link out of its folder, to '{}'; if you trust it, replace it by a copy of "
      "the file",
      printable(file.path().string()), printable(real.string()));
}

File open_member(const fs::path& folder, const std::string& name) {
  File file = File::open_for_reading(folder / name);
  require_member(folder, file);
  return file;
}

void check_writable(const fs::path& folder) {
  const fs::path probe = folder / fmt::format(".writable-{}", ::getpid());
  const int file =
      system_calls().open(probe.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file == -1) fail_path("write into folder", folder, "open", errno);
  system_calls().close(file);
  remove_tree(probe);
}

std::uint64_t free_bytes(const fs::path& folder) {
  struct statvfs status {};
  if (system_calls().statvfs(folder.c_str(), &status) == -1) {
    fail_path("ask for the free space of", folder, "statvfs", errno);
  }
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

}  // namespace tessera::checkpoint
