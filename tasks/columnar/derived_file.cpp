// Names, the lock, and files that nothing uses any more.
#include "tasks/columnar/derived_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "checkpoint/io/removal.h"
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
    int result = 0;
    do {
      result = ::flock(descriptor_, LOCK_EX);
    } while (result != 0 && errno == EINTR);
    taken_ = result == 0;
  }
  ~FirstFileLock() { ::close(descriptor_); }
  FirstFileLock(const FirstFileLock&) = delete;
  FirstFileLock& operator=(const FirstFileLock&) = delete;
  [[nodiscard]] bool taken() const { return taken_; }

 private:
  int descriptor_;
  bool taken_ = false;
};

std::uint64_t stamp_of(const std::vector<TableFile>& files) {
  std::uint64_t hash = files.size();
  for (const TableFile& file : files) {
    const TextStamp stamp = stamp_of_text(file.path);
    hash = mix(hash, static_cast<std::uint64_t>(stamp.bytes));
    hash = mix(hash, static_cast<std::uint64_t>(stamp.modified_ns));
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

// Removes older files of the same purpose, and those that killed processes left.
void remove_others(const fs::path& folder, const std::string& prefix, const std::string& ending) {
  std::error_code ended;
  for (fs::directory_iterator entry(folder, ended); !ended && entry != fs::directory_iterator();
       entry.increment(ended)) {
    const std::string name = entry->path().filename().string();
    const bool derived = name.starts_with(prefix) &&
                         name.size() >= prefix.size() + hash_digits + ending.size() &&
                         name.compare(prefix.size() + hash_digits, ending.size(), ending) == 0;
    if (derived) checkpoint::try_remove_tree(entry->path());
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
  const FirstFileLock lock(first.string());
  path_ = folder / fmt::format("{}{:016x}{}", prefix, stamp_of(files), ending);
  if (::access(path_.c_str(), R_OK) == 0) return;
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK, AT_EACCESS) != 0) {
    // Only this user can enter the folder, whatever the mode of the file.
    std::error_code unknown;
    std::string name = (fs::temp_directory_path(unknown) / "tessera-rows-XXXXXX").string();
    const bool made = ::mkdtemp(name.data()) != nullptr;
    TESSERA_CHECK(made, ErrorCode::data,
                  "data file {}: what is made from it can be kept neither beside it nor as {}: {}",
                  first.string(), name, describe_errno("mkdtemp", errno));
    passing_folder_ = name;
    path_ = passing_folder_ / ("rows" + ending);
  } else if (lock.taken()) {
    remove_others(folder, prefix, ending);
  }
  try {
    make(path_);
  } catch (...) {
    if (!passing_folder_.empty()) checkpoint::try_remove_tree(passing_folder_);
    throw;
  }
}

DerivedFile::~DerivedFile() {
  if (!passing_folder_.empty()) checkpoint::try_remove_tree(passing_folder_);
}

}  // namespace tessera::tasks
