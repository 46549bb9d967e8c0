// Locks by flock, or by a file that one process can create.
#include "checkpoint/io/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <exception>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/text/print.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/io/removal.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view partial_beside_mark = ".partial-";
constexpr std::chrono::milliseconds look_again{50};
constexpr const char* lock_name = ".lock";
constexpr const char* owner_name = ".lock-owner";
constexpr std::uint64_t owner_limit = 4096;

// The first word of a small file of /proc; empty: none.
std::string word_of(const std::string& path) {
  std::ifstream stream(path);
  std::string word;
  stream >> word;
  return word;
}

// Start time of a process, in ticks since the system's start; empty if the process does not exist.
std::string start_of(pid_t pid) {
  std::ifstream stream(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(stream, text);
  const auto name_end = text.rfind(')');  // the name may contain anything
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22 && fields >> field; ++i) {
  }
  return field;
}

struct Owner {
  std::string host, boot, start;
  pid_t pid = 0;

  static Owner self() {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    const pid_t pid = ::getpid();
    return {host.data(), word_of("/proc/sys/kernel/random/boot_id"), start_of(pid), pid};
  }
  [[nodiscard]] std::string text() const {
    return fmt::format("host {}\npid {}\nboot {}\nstart {}\n", host, pid, boot, start);
  }
  static std::optional<Owner> parse(const std::string& text) {
    Owner owner;
    std::istringstream stream(text);
    std::string h, p, b, s;
    stream >> h >> owner.host >> p >> owner.pid >> b >> owner.boot >> s >> owner.start;
    const bool whole = stream && h == "host" && p == "pid" && b == "boot" && s == "start";
    return whole ? std::optional(owner) : std::nullopt;
  }
  // True if the owner is certainly gone: a process of this host that runs no more, or of an earlier
  // boot.
  [[nodiscard]] bool is_gone(const Owner& here) const {
    if (host != here.host) return false;
    if (boot != here.boot) return true;
    return ::kill(pid, 0) == -1 && errno == ESRCH ? true : start_of(pid) != start;
  }
};

// Removes the file of a dead owner. Two runs may try at the same moment: only one of them gets the
// renamed file, and a run that finds another owner's text in it puts it back.
void remove_owner_file(const fs::path& path, const std::string& dead, pid_t self) {
  const fs::path aside = fmt::format("{}.gone-{}", path.string(), self);
  try {
    rename_path(path, aside);
  } catch (const SystemFailure& failure) {
    if (failure.number() == ENOENT) return;  // the other one was first
    throw;
  }
  if (read_file(aside, owner_limit) == dead) {
    remove_tree(aside);
  } else {
    rename_path(aside, path);
  }
}

// Creates the file; false if it exists.
bool create_owner_file(const fs::path& path, const std::string& text) {
  try {
    write_file(path, text);
    return true;
  } catch (const SystemFailure& failure) {
    if (failure.number() != EEXIST) throw;
    return false;
  }
}

}  // namespace

FolderLock::FolderLock(const fs::path& dir, std::chrono::milliseconds patience)
    : file_(File::create_or_truncate(dir / lock_name)) {
  const File::Lock lock = lock_patiently(patience);
  TESSERA_CHECK(lock != File::Lock::held, ErrorCode::checkpoint,
                "another run is saving into '{}' at this moment; give each run its own folder",
                dir.string());
  if (lock == File::Lock::unsupported) take_owner_file(dir);
}

// Every save ends sooner or later, so two runs in one folder wait for each other.
File::Lock FolderLock::lock_patiently(std::chrono::milliseconds patience) {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  File::Lock lock = file_.try_lock();
  while (lock == File::Lock::held && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(look_again);
    lock = file_.try_lock();
  }
  return lock;
}

void FolderLock::take_owner_file(const fs::path& dir) {
  const fs::path path = dir / owner_name;
  const Owner self = Owner::self();
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (create_owner_file(path, self.text())) {
      owner_file_ = path;
      warning_ = fmt::format(
          "'{}' has no flock: saves are locked by the file '{}'; a killed run leaves it behind, "
          "and "
          "other hosts then refuse to save until it is removed",
          dir.string(), path.string());
      return;
    }
    const std::string text = read_file(path, owner_limit);
    const auto owner = Owner::parse(text);
    if (attempt == 1 || !owner || !owner->is_gone(self)) {
      fail(ErrorCode::checkpoint,
           "another run is saving into '{}': '{}' says that {} holds it; give each run its own "
           "folder, or remove that file if this process no longer runs",
           dir.string(), path.string(),
           owner ? fmt::format("process {} on {}", owner->pid, owner->host) : "an unknown process");
    }
    remove_owner_file(path, text, self.pid);
  }
}

FolderLock::~FolderLock() {
  if (owner_file_.empty()) return;
  try {
    remove_tree(owner_file_);
  } catch (const std::exception& error) {
    print_err("{}\n", error.what());
  }
}

std::optional<LockedFolder> LockedFolder::try_lock(const fs::path& folder) {
  const int fd =
      system_calls().open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
  if (fd == -1) return std::nullopt;
  LockedFolder opened(fd);
  int status = 0;
  do {
    status = system_calls().flock(fd, LOCK_EX | LOCK_NB);
  } while (status == -1 && errno == EINTR);
  if (status != 0) return std::nullopt;
  return opened;
}

LockedFolder::LockedFolder(LockedFolder&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

LockedFolder& LockedFolder::operator=(LockedFolder&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

LockedFolder::~LockedFolder() {
  if (fd_ != -1) system_calls().close(fd_);  // nothing was written through it
}

fs::path partial_beside(const fs::path& target, const std::string& id) {
  return target.string() + std::string(partial_beside_mark) + id;
}

std::vector<std::string> clear_partials(const fs::path& target) {
  const fs::path parent = target.parent_path().empty() ? fs::path(".") : target.parent_path();
  const std::string start = target.filename().string() + std::string(partial_beside_mark);
  std::vector<std::string> lines;
  for (const std::string& name : names_in_folder(parent)) {
    if (!name.starts_with(start) || !is_hex_id(std::string_view(name).substr(start.size()))) {
      continue;
    }
    const fs::path path = parent / name;
    std::error_code error;
    if (!fs::is_directory(fs::symlink_status(path, error))) continue;
    if (std::string line = describe_other_owner(path); !line.empty()) {
      lines.push_back(std::move(line));
      continue;
    }
    const std::optional<LockedFolder> lock = LockedFolder::try_lock(path);
    if (!lock) {
      lines.push_back(fmt::format("'{}' belongs to a conversion or an export that may still run",
                                  path.string()));
      continue;
    }
    std::string line = remove_leftover(path);
    if (line.empty()) {
      line =
          fmt::format("removed '{}', left by a conversion or an export that died", path.string());
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace tessera::checkpoint
