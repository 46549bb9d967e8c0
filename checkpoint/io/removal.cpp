// Every folder is opened in the folder above it without following links, and every name is removed
// in an open folder. So no name is looked up twice from the root, where it could mean another
// place.
#include "checkpoint/io/removal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/text/printable.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/io/file.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;

std::string line_about_owner(const fs::path& path, uid_t owner) {
  return fmt::format(
      "'{}' stays: it belongs to user {} and this process runs as user {}; have its owner remove "
      "it",
      printable(path.string()), owner, ::geteuid());
}

// A name that was a folder a moment ago and is none now.
bool was_exchanged(int error_number) {
  return error_number == ENOTDIR || error_number == ELOOP;
}

[[noreturn]] void fail_exchanged(const fs::path& path, const char* call, int error_number) {
  throw SystemFailure(
      error_number,
      fmt::format("cannot remove folder '{}': {}; another process put something else in its place, "
                  "which stays: find out who else writes to '{}', then remove it yourself",
                  printable(path.string()), describe_errno(call, error_number),
                  printable(path.parent_path().string())));
}

// One removal.
class Removal {
 public:
  Removal(std::string_view first, bool own_only) : first_(first), own_only_(own_only) {}

  // False if something of another user stays; kept() is the line about the first such thing.
  bool remove(const OpenFolder& parent, const std::string& name, bool is_top = true) {
    const fs::path path = parent.path() / name;
    struct stat status {};
    if (::fstatat(parent.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == -1) {
      if (errno == ENOENT) return true;
      fail_path("remove", path, "fstatat", errno);
    }
    if (keeps(path, status)) return false;
    const bool is_folder = S_ISDIR(status.st_mode);
    if (is_folder && !empty_folder(parent, name, is_top)) return false;
    if (system_calls().unlinkat(parent.fd(), name.c_str(), is_folder ? AT_REMOVEDIR : 0) == 0) {
      return true;
    }
    if (!is_folder) fail_path("remove", path, "unlinkat", errno);
    if (was_exchanged(errno)) fail_exchanged(path, "unlinkat", errno);
    fail_path("remove folder", path, "unlinkat", errno);
  }

  [[nodiscard]] const std::string& kept() const { return kept_; }

 private:
  // True if the thing is another user's and stays.
  bool keeps(const fs::path& path, const struct stat& status) {
    if (!own_only_ || status.st_uid == ::geteuid()) return false;
    if (kept_.empty()) kept_ = line_about_owner(path, status.st_uid);
    return true;
  }

  // False if something in it stays.
  bool empty_folder(const OpenFolder& parent, const std::string& name, bool is_top) {
    std::optional<OpenFolder> folder;
    try {
      folder.emplace(parent, name);
    } catch (const SystemFailure& failure) {
      if (!was_exchanged(failure.number())) throw;
      fail_exchanged(parent.path() / name, "openat", failure.number());
    }
    struct stat status {};  // the one before may be about another folder
    if (::fstat(folder->fd(), &status) == -1) fail_path("remove", folder->path(), "fstat", errno);
    if (keeps(folder->path(), status)) return false;
    std::vector<std::string> names = folder->names();
    if (is_top) {
      std::stable_partition(names.begin(), names.end(),
                            [this](const std::string& child) { return child == first_; });
    }
    bool all = true;
    for (const std::string& child : names) all = remove(*folder, child, false) && all;
    return all;
  }

  std::string_view first_;
  bool own_only_;
  std::string kept_;
};

std::string remove_path(fs::path path, std::string_view first, bool own_only) {
  if (!path.has_filename()) path = path.parent_path();  // "out/" is "out"
  const std::string name = path.filename();
  TESSERA_REQUIRE(!name.empty() && name != "." && name != "..",
                  "'{}' does not name a file or folder", path.string());
  std::optional<OpenFolder> parent;
  try {
    // The user's own words: links in them are meant.
    parent.emplace(path.parent_path().empty() ? fs::path(".") : path.parent_path());
  } catch (const SystemFailure& failure) {
    if (failure.number() == ENOENT || failure.number() == ENOTDIR) return {};
    throw;
  }
  Removal removal(first, own_only);
  removal.remove(*parent, name);
  return removal.kept();
}

}  // namespace

void remove_tree(const fs::path& path, std::string_view first) {
  (void)remove_path(path, first, false);
}

void try_remove_tree(const fs::path& path) noexcept {
  try {
    remove_tree(path);
  } catch (const std::exception&) {  // the owner of a temporary file cannot do more
    return;
  }
}

std::string remove_leftover(const fs::path& path, std::string_view first) {
  return remove_path(path, first, true);
}

std::string describe_other_owner(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == -1 || status.st_uid == ::geteuid()) return {};
  return line_about_owner(path, status.st_uid);
}

}  // namespace tessera::checkpoint
