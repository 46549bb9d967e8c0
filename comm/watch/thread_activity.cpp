// Reads /proc/self/task.
#include "comm/watch/thread_activity.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace tessera::comm {
namespace {

// A file of /proc, cut to the buffer; empty when it cannot be read.
class ProcText {
 public:
  explicit ProcText(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    const ssize_t got = ::read(file, text_.data(), text_.size() - 1);
    size_ = got > 0 ? static_cast<std::size_t>(got) : 0;
    ::close(file);
  }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] const char* text() const { return text_.data(); }
  [[nodiscard]] std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::array<char, 2048> text_{};
  std::size_t size_ = 0;
};

// The fields of /proc/.../stat for a thread or process.
struct Stat {
  char state = ' ';
  unsigned long page_reads = 0;  // faults that a file or the swap served
  unsigned long ticks = 0;
};

Stat parse_stat(const ProcText& text) {
  Stat stat;
  const char* behind_name = std::strrchr(text.text(), ')');
  unsigned long user = 0, system = 0;
  if (behind_name == nullptr ||
      std::sscanf(behind_name + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %lu %*u %lu %lu",
                  &stat.state, &stat.page_reads, &user, &system) < 2) {
    return {};
  }
  stat.ticks = user + system;
  return stat;
}

// The system call that a thread waits in; -1: none, as in a page fault. No value: the thread runs,
// or the kernel does not show the call.
struct Blocked {
  long call = -1;
  unsigned long first_argument = 0;
};
std::optional<Blocked> blocked_in(pid_t thread) {
  const ProcText text(fmt::format("/proc/self/task/{}/syscall", thread));
  Blocked blocked;
  if (text.empty() ||
      std::sscanf(text.text(), "%ld %lx", &blocked.call, &blocked.first_argument) < 1) {
    return std::nullopt;
  }
  return blocked;
}

// Calls that work on the descriptor in their first argument.
bool uses_descriptor(long call) {
  switch (call) {
    case SYS_read:
    case SYS_write:
    case SYS_pread64:
    case SYS_pwrite64:
    case SYS_readv:
    case SYS_writev:
    case SYS_preadv:
    case SYS_pwritev:
    case SYS_preadv2:
    case SYS_pwritev2:
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_sync_file_range:
    case SYS_ftruncate:
    case SYS_fallocate:
    case SYS_fadvise64:
    case SYS_copy_file_range:
    case SYS_sendfile:
    case SYS_getdents64:
    case SYS_close:
    case SYS_fstat:
    case SYS_syncfs:
      return true;
    default:
      return false;
  }
}

// Calls that name files by paths, or work on files in another way.
bool works_on_files(long call) {
  switch (call) {
    case SYS_openat:
    case SYS_openat2:
    case SYS_renameat:
    case SYS_renameat2:
    case SYS_unlinkat:
    case SYS_mkdirat:
    case SYS_linkat:
    case SYS_symlinkat:
    case SYS_newfstatat:
    case SYS_statx:
    case SYS_statfs:
    case SYS_truncate:
    case SYS_msync:
    case SYS_sync:
    case SYS_io_uring_enter:
#ifdef SYS_open
    case SYS_open:
    case SYS_creat:
    case SYS_stat:
    case SYS_lstat:
    case SYS_rename:
    case SYS_unlink:
    case SYS_mkdir:
    case SYS_rmdir:
    case SYS_link:
    case SYS_symlink:
#endif
      return true;
    default:
      return false;
  }
}

// Sends no request to the file's server, which may be the one that does not answer.
bool is_on_a_disk(int descriptor) {
  struct statx status {};
  if (::statx(descriptor, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &status) != 0) {
    return false;
  }
  return S_ISREG(status.stx_mode) || S_ISDIR(status.stx_mode) || S_ISBLK(status.stx_mode);
}

// A disk or a file server may be slow, but a call on a file returns at some time.
bool waits_for_a_file(pid_t thread, char state) {
  if (state != 'S' && state != 'D') return false;
  const std::optional<Blocked> blocked = blocked_in(thread);
  if (!blocked) return state == 'D';
  if (uses_descriptor(blocked->call)) {
    // close() has already removed the number from the table.
    return blocked->call == SYS_close || is_on_a_disk(static_cast<int>(blocked->first_argument));
  }
  return works_on_files(blocked->call);
}

std::int64_t nanoseconds_of(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

std::thread start_watcher(std::string_view name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto restore = [&before](void*) { pthread_sigmask(SIG_SETMASK, &before, nullptr); };
  const std::unique_ptr<void, decltype(restore)> restored(&before, restore);
  return std::thread(
      [full = std::string(watcher_prefix) + std::string(name), work = std::move(body)] {
        pthread_setname_np(pthread_self(), full.substr(0, 15).c_str());
        work();
      });
}

std::int64_t processor_time_of(pid_t thread) {
  // The same value as pthread_getcpuclockid() makes, for a thread that may have ended meanwhile.
  constexpr unsigned of_one_thread = 4, scheduled_time = 2;
  const auto clock = static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3) | of_one_thread |
                                            scheduled_time);
  timespec time{};
  return ::clock_gettime(clock, &time) == 0 ? nanoseconds_of(time) : -1;
}

void ThreadActivity::look() {
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds step = now - looked_at_;
  looked_at_ = now;
  ++looks_;
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(::opendir("/proc/self/task"), &::closedir);
  if (threads == nullptr) return;
  while (const dirent* entry = ::readdir(threads.get())) {
    if (entry->d_name[0] != '.') look_at(std::atoi(entry->d_name), step);
  }
  std::erase_if(samples_, [this](const auto& one) { return one.second.look != looks_; });
}

void ThreadActivity::look_at(pid_t thread, std::chrono::nanoseconds step) {
  const ProcText stat_text(fmt::format("/proc/self/task/{}/stat", thread));
  if (stat_text.empty()) return;  // it has ended
  if (stat_text.view().find(fmt::format("({}", watcher_prefix)) != std::string_view::npos) return;
  const Stat stat = parse_stat(stat_text);
  Sample now{.page_reads = stat.page_reads, .runnable = stat.state == 'R', .look = looks_};
  const ProcText schedule(fmt::format("/proc/self/task/{}/schedstat", thread));
  long long computed = 0, queued = 0, turns = 0;
  if (!schedule.empty() &&
      std::sscanf(schedule.text(), "%lld %lld %lld", &computed, &queued, &turns) == 3) {
    now.computed = computed;
    now.queued = queued;
    now.turns = turns;
  } else {
    now.computed = std::max<std::int64_t>(processor_time_of(thread), 0);
  }
  const auto known = samples_.find(thread);
  if (known != samples_.end()) {
    const Sample& before = known->second;
    now.moved = computes(before, now, step) || now.page_reads != before.page_reads ||
                waits_for_a_file(thread, stat.state);
  }
  samples_[thread] = now;
}

// Waiting for a processor counts only for a thread that uses one: on a loaded machine a thread that
// merely polls now and then also waits for its turns.
bool ThreadActivity::computes(const Sample& before, const Sample& now,
                              std::chrono::nanoseconds step) {
  constexpr std::int64_t least_turn = 100'000;
  const std::int64_t computed = now.computed - before.computed;
  const std::int64_t queued = now.queued - before.queued;
  const std::int64_t turns = now.turns - before.turns;
  const std::int64_t least = step.count() / moving_share;
  if (computed >= least) return true;
  if (turns == 0) return now.runnable && before.runnable;  // it starves
  return computed + queued >= least && computed >= turns * least_turn;
}

bool ThreadActivity::moved(pid_t thread) const {
  const auto known = samples_.find(thread);
  return known != samples_.end() && known->second.moved;
}

bool ThreadActivity::any_moved_but(const std::set<pid_t>& left_out) const {
  return std::any_of(samples_.begin(), samples_.end(), [&](const auto& one) {
    return one.second.moved && !left_out.contains(one.first);
  });
}

std::string describe_wait(pid_t thread) {
  const Stat stat = parse_stat(ProcText(fmt::format("/proc/self/task/{}/stat", thread)));
  if (stat.state == ' ') return "has ended";
  const std::optional<Blocked> blocked = blocked_in(thread);
  if (!blocked) return fmt::format("is in state {}", stat.state);
  switch (blocked->call) {
    case -1:
      return "hangs in a page fault";
    case SYS_futex:
      return "waits for a lock or another thread (futex)";
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
      return "sleeps";
    case SYS_read:
    case SYS_recvfrom:
    case SYS_recvmsg:
      return fmt::format("waits for input on descriptor {}", blocked->first_argument);
    case SYS_wait4:
    case SYS_waitid:
      return "waits for a process that it started";
    case SYS_ppoll:
    case SYS_pselect6:
    case SYS_epoll_pwait:
#ifdef SYS_poll
    case SYS_poll:
    case SYS_select:
    case SYS_epoll_wait:
#endif
      return "waits for descriptors";
    default:
      return fmt::format("waits in system call {}", blocked->call);
  }
}

char process_state(pid_t process) {
  return parse_stat(ProcText(fmt::format("/proc/{}/stat", process))).state;
}

bool is_traced(pid_t process) {
  const ProcText status(fmt::format("/proc/{}/status", process));
  constexpr std::string_view key = "\nTracerPid:\t";
  const std::size_t at = status.view().find(key);
  return at != std::string_view::npos && status.text()[at + key.size()] != '0';
}

}  // namespace tessera::comm
