// flock, or a file that one process can create.
#include "checkpoint/folder_lock.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "checkpoint/failure.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr const char* lock_name = ".lock";
constexpr const char* owner_name = ".lock-owner";
constexpr std::uint64_t owner_limit = 4096;

// The first word of a small file of /proc, or nothing.
std::string word_of(const std::string& path) {
  std::ifstream stream(path);
  std::string word;
  stream >> word;
  return word;
}

// When a process began, in ticks since the system's start; nothing when there is no such process.
std::string start_of(pid_t pid) {
  std::ifstream stream(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(stream, text);
  const auto name_end = text.rfind(')');  // the name may hold anything
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
  // Certainly gone: of this host, and of an earlier start of it or not running any more.
  [[nodiscard]] bool is_gone(const Owner& here) const {
    if (host != here.host) return false;
    if (boot != here.boot) return true;
    return ::kill(pid, 0) == -1 && errno == ESRCH ? true : start_of(pid) != start;
  }
};

// Creates the file; false when it is there.
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

FolderLock::FolderLock(const fs::path& dir) : file_(File::create_or_truncate(dir / lock_name)) {
  const File::Lock lock = file_.try_lock();
  TESSERA_CHECK(lock != File::Lock::held, ErrorCode::checkpoint,
                "another run is saving into '{}' at this moment; give each run its own folder",
                dir.string());
  if (lock == File::Lock::unsupported) take_owner_file(dir);
}

void FolderLock::take_owner_file(const fs::path& dir) {
  const fs::path path = dir / owner_name;
  const Owner self = Owner::self();
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (create_owner_file(path, self.text())) {
      owner_file_ = path;
      warning_ = fmt::format(
          "'{}' has no flock: saves are kept apart by '{}', which a run that is killed leaves "
          "behind; another host cannot tell and would refuse to save until it is removed",
          dir.string(), path.string());
      return;
    }
    const auto owner = Owner::parse(read_file(path, owner_limit));
    if (attempt == 1 || !owner || !owner->is_gone(self)) {
      fail(ErrorCode::checkpoint,
           "another run is saving into '{}': '{}' says that {} holds it; give each run its own "
           "folder, or remove that file when no such process runs",
           dir.string(), path.string(),
           owner ? fmt::format("process {} on {}", owner->pid, owner->host) : "somebody");
    }
    remove_tree(path);
  }
}

FolderLock::~FolderLock() {
  if (owner_file_.empty()) return;
  if (system_calls().unlink(owner_file_.c_str()) == -1) {
    std::fprintf(stderr, "%s\n", describe_errno("unlink .lock-owner", errno).c_str());
  }
}

}  // namespace tessera::checkpoint
