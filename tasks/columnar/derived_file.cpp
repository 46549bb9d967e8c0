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

// What else was made for this purpose, and what killed processes left of it.
void remove_others(const fs::path& folder, const std::string& prefix, const std::string& ending) {
  std::error_code ended;
  for (fs::directory_iterator entry(folder, ended); !ended && entry != fs::directory_iterator();
       entry.increment(ended)) {
    const std::string name = entry->path().filename().string();
    const bool derived = name.starts_with(prefix) &&
                         name.compare(prefix.size() + hash_digits, ending.size(), ending) == 0 &&
                         name.size() >= prefix.size() + hash_digits + ending.size();
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
  for (const TableFile& file : files) {
    purpose = mix_text(purpose, fs::path(file.path).lexically_relative(folder).string());
  }
  const std::string prefix = fmt::format("_{}.{:016x}.", first.filename().string(), purpose);
  const FirstFileLock lock(first.string());
  path_ = folder / fmt::format("{}{:016x}{}", prefix, stamp_of(files), ending);
  if (::access(path_.c_str(), R_OK) == 0) return;
  passing_ = ::faccessat(AT_FDCWD, folder.c_str(), W_OK, AT_EACCESS) != 0;
  if (passing_) {
    std::string name = (fs::temp_directory_path() / "tessera-rows-XXXXXX").string();
    const int made = ::mkstemp(name.data());
    TESSERA_CHECK(made >= 0, ErrorCode::data,
                  "data file {}: what is made from it can be kept neither beside it nor in {}: {}",
                  first.string(), fs::temp_directory_path().string(),
                  describe_errno("mkstemp", errno));
    ::close(made);
    path_ = name;
  } else if (lock.taken()) {
    remove_others(folder, prefix, ending);
  }
  try {
    make(path_);
  } catch (...) {
    if (passing_) checkpoint::try_remove_tree(path_);
    throw;
  }
}

DerivedFile::~DerivedFile() {
  if (passing_) checkpoint::try_remove_tree(path_);
}

}  // namespace tessera::tasks
