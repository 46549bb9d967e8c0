// Names, the lock, and files that nothing uses any more.
#include "tasks/columnar/derived_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text/print.h"
#include "base/write_failure.h"
#include "checkpoint/io/removal.h"
#include "engine/data/file_checksum.h"
#include "engine/data/permutation.h"
#include "engine/data/tokenize_text.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t hash_digits = 16;

// A lock on a data file, which ends with the descriptor. On a file system without locks, each
// process makes the file, and the last one remains.
class FirstFileLock {
 public:
  explicit FirstFileLock(const std::string& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    TESSERA_CHECK(descriptor_ >= 0, ErrorCode::data, "data file {} cannot be opened: {}", path,
                  describe_errno("open", errno));
  }
  ~FirstFileLock() { ::close(descriptor_); }
  FirstFileLock(const FirstFileLock&) = delete;
  FirstFileLock& operator=(const FirstFileLock&) = delete;
  // `kind`: LOCK_SH or LOCK_EX. False if the file system has no locks.
  [[nodiscard]] bool take(int kind) const {
    int result = 0;
    do {
      result = ::flock(descriptor_, kind);
    } while (result != 0 && errno == EINTR);
    return result == 0;
  }

 private:
  int descriptor_;
};

std::uint64_t stamp_of(const std::vector<TableFile>& files) {
  std::uint64_t hash = files.size();
  for (const TableFile& file : files) {
    const TextStamp stamp = stamp_of_text(file.path);
    hash = mix(hash, static_cast<std::uint64_t>(stamp.bytes));
    hash = mix(hash, static_cast<std::uint64_t>(stamp.modified_ns));
    hash = mix(hash, static_cast<std::uint64_t>(stamp.changed_ns));
    hash = mix(hash, stamp.inode);
  }
  return hash;
}

fs::path absolute_path(const fs::path& path) {
  std::error_code no_folder;  // the current folder was removed: the path as it is
  const fs::path whole = fs::absolute(path, no_folder);
  return (no_folder ? path : whole).lexically_normal();
}

std::uint64_t mix_names(std::uint64_t purpose, const std::vector<TableFile>& files,
                        const fs::path& folder) {
  const fs::path base = absolute_path(folder);
  for (const TableFile& file : files) {
    purpose = mix_text(purpose, absolute_path(file.path).lexically_relative(base).string());
    for (const auto& [name, value] : file.partition) {
      purpose = mix_text(mix_text(purpose, name), value);
    }
  }
  return purpose;
}

// The files in a folder whose names begin and end so.
std::vector<fs::path> files_named(const fs::path& folder, const std::string& prefix,
                                  const std::string& ending) {
  std::vector<fs::path> found;
  std::error_code ended;
  for (fs::directory_iterator entry(folder, ended); !ended && entry != fs::directory_iterator();
       entry.increment(ended)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(ending)) found.push_back(entry->path());
  }
  return found;
}

// A file, and its stamp: one that was made again has another.
using StampedFile = std::pair<fs::path, TextStamp>;

// The files of one version that can be read: between prefix and ending is their checksum.
std::vector<StampedFile> files_of_version(const fs::path& folder, const std::string& prefix,
                                          const std::string& ending) {
  std::vector<StampedFile> files;
  for (const fs::path& path : files_named(folder, prefix, ending)) {
    const std::size_t bytes = path.filename().string().size();
    if (bytes != prefix.size() + hash_digits + ending.size()) continue;
    if (::access(path.c_str(), R_OK) == 0) files.emplace_back(path, stamp_of_text(path));
  }
  return files;
}

bool is_sound(const fs::path& path, const std::string& prefix) {
  const std::string name = path.filename().string();
  return name.compare(prefix.size(), hash_digits, fmt::format("{:016x}", checksum_of_file(path))) ==
         0;
}

// Removes older files of the same purpose, and those that killed processes left.
void remove_others(const fs::path& folder, const std::string& prefix, const std::string& ending) {
  for (const fs::path& path : files_named(folder, prefix, "")) {
    if (path.filename().string().find(ending, prefix.size()) == std::string::npos) continue;
    checkpoint::try_remove_tree(path);
  }
}

// The sound file of a version, with all its bytes read; empty if this process has to make it.
// Processes read it at the same time, under a shared lock; who makes it has an exclusive one.
// `locked` tells whether there are locks.
fs::path find_sound(const FirstFileLock& lock, const fs::path& folder, const std::string& prefix,
                    const std::string& ending, bool& locked) {
  std::vector<StampedFile> damaged;
  for (;;) {
    locked = lock.take(LOCK_SH);
    for (const StampedFile& file : files_of_version(folder, prefix, ending)) {
      if (std::find(damaged.begin(), damaged.end(), file) != damaged.end()) continue;
      if (is_sound(file.first, prefix)) return file.first;
      damaged.push_back(file);
    }
    locked = lock.take(LOCK_EX);
    const std::vector<StampedFile> files = files_of_version(folder, prefix, ending);
    const bool none = std::all_of(files.begin(), files.end(), [&](const StampedFile& file) {
      return std::find(damaged.begin(), damaged.end(), file) != damaged.end();
    });
    if (!none) continue;  // another process has made it meanwhile
    for (const auto& [path, stamp] : files) {
      print_err("tessera: {} is damaged, and is made again\n", path.string());
    }
    return {};
  }
}

}  // namespace

std::uint64_t mix_text(std::uint64_t hash, std::string_view text) {
  hash = mix(hash, text.size());
  for (const char c : text) hash = mix(hash, static_cast<unsigned char>(c));
  return hash;
}

DerivedFile::DerivedFile(const std::vector<TableFile>& files, std::uint64_t purpose,
                         const std::string& ending,
                         const std::function<void(const fs::path&)>& make) {
  TESSERA_REQUIRE(!files.empty(), "a file derived from no file");
  const fs::path first = files.front().path;
  const fs::path folder = first.has_parent_path() ? first.parent_path() : fs::path(".");
  purpose = mix_names(purpose, files, folder);
  const std::string prefix = fmt::format("_{}.{:016x}.", first.filename().string(), purpose);
  const std::string version = fmt::format("{}{:016x}.", prefix, stamp_of(files));
  const FirstFileLock lock(first.string());
  bool locked = false;
  path_ = find_sound(lock, folder, version, ending, locked);
  if (!path_.empty()) return;
  const bool kept = ::faccessat(AT_FDCWD, folder.c_str(), W_OK, AT_EACCESS) == 0;
  if (!kept) {
    // Only this user can enter the folder, whatever the mode of the file.
    std::error_code unknown;
    std::string name = (fs::temp_directory_path(unknown) / "tessera-rows-XXXXXX").string();
    const bool made = ::mkdtemp(name.data()) != nullptr;
    TESSERA_CHECK(made, ErrorCode::data,
                  "data file {}: what is made from it can be kept neither beside it nor as {}: {}",
                  first.string(), name, describe_errno("mkdtemp", errno));
    passing_folder_ = name;
    path_ = passing_folder_ / ("rows" + ending);
  } else {
    if (locked) remove_others(folder, prefix, ending);
    path_ = folder / fmt::format("{}making-{:08x}{}", version, std::random_device()(), ending);
  }
  try {
    make(path_);
    if (kept) {
      const fs::path whole =
          folder / fmt::format("{}{:016x}{}", version, checksum_of_file(path_), ending);
      fs::rename(path_, whole);
      path_ = whole;
    }
  } catch (...) {
    checkpoint::try_remove_tree(kept ? path_ : passing_folder_);
    throw;
  }
}

DerivedFile::~DerivedFile() {
  if (!passing_folder_.empty()) checkpoint::try_remove_tree(passing_folder_);
}

PassingFile::PassingFile(const fs::path& path)
    : path_(path),
      partial_(fmt::format("{}.partial-{:08x}", path.string(), std::random_device()())) {
  constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  descriptor_ = ::open(partial_.c_str(), flags, 0666);  // less the umask
  check(descriptor_ >= 0, "open", ErrorCode::configuration);
}

PassingFile::~PassingFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  checkpoint::try_remove_tree(partial_);
}

void PassingFile::write(std::string_view bytes) const {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    check(wrote > 0, "write", ErrorCode::runtime);
    done += static_cast<std::size_t>(wrote);
  }
}

void PassingFile::publish() {
  check(::fsync(descriptor_) == 0, "fsync", ErrorCode::runtime);
  check(::rename(partial_.c_str(), path_.c_str()) == 0, "rename", ErrorCode::runtime);
  ::close(descriptor_);
  descriptor_ = -1;
}

void PassingFile::check(bool succeeded, const char* call, ErrorCode otherwise) const {
  const int reason = errno;
  TESSERA_CHECK(succeeded, full_disk_or(reason, otherwise),
                "the rows of the data files cannot be kept in {}: {}", path_.string(),
                describe_errno(call, reason));
}

}  // namespace tessera::tasks
