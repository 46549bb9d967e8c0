// System calls that fail, end the process or lose unsynced data, at the k-th call.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/io/file.h"

namespace tessera::checkpoint::testing {

enum class Fault {
  none,
  error,       // the call fails with `error_number`, once
  errors_on,   // this call and all later writing calls fail
  kill,        // the process ends before the call, as by SIGKILL: the page cache survives
  power_loss,  // the process ends, and files and names without an fsync are lost
};

// Shared by all ranks (threads) of a save; counts the calls that change the disk.
class FaultyCalls final : public SystemCalls {
 public:
  static constexpr int exit_status = 42;

  FaultyCalls(Fault fault, int at, int error_number = 0)
      : fault_(fault), at_(at), error_number_(error_number) {}

  [[nodiscard]] int calls() const { return calls_; }

  int open(const char* path, int flags, mode_t mode) override {
    const std::lock_guard guard(mutex_);
    const bool creates = (flags & O_CREAT) != 0;
    if (creates && fails()) return -1;
    const bool fresh = creates && ::access(path, F_OK) != 0;
    const int fd = SystemCalls::open(path, flags, mode);
    if (fd != -1) path_of_[fd] = path;
    if (fd != -1 && fresh) created_.insert(path);
    return fd;
  }
  int close(int fd) override {
    const std::lock_guard guard(mutex_);
    path_of_.erase(fd);
    return SystemCalls::close(fd);
  }
  ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) override {
    const std::lock_guard guard(mutex_);
    if (fails()) return -1;
    unsynced_.insert(path_of_.at(fd));
    return SystemCalls::pwrite(fd, data, bytes, offset);
  }
  int ftruncate(int fd, off_t bytes) override {
    const std::lock_guard guard(mutex_);
    if (fails()) return -1;
    unsynced_.insert(path_of_.at(fd));
    return SystemCalls::ftruncate(fd, bytes);
  }
  int fallocate(int fd, off_t bytes) override {
    const std::lock_guard guard(mutex_);
    if (fails()) return -1;
    unsynced_.insert(path_of_.at(fd));
    return SystemCalls::fallocate(fd, bytes);
  }
  int fsync(int fd) override {
    const std::lock_guard guard(mutex_);
    if (fails()) return -1;
    const std::filesystem::path path = path_of_.at(fd);
    unsynced_.erase(path.string());
    std::erase_if(created_, [&](const auto& name) { return parent(name) == path; });
    std::erase_if(renames_, [&](const auto& rename) { return parent(rename.to) == path; });
    return 0;  // the real call would take time and test nothing more
  }
  int sync_range(int, off_t, off_t, unsigned) override {
    const std::lock_guard guard(mutex_);
    return fails() ? -1 : 0;  // makes nothing durable
  }
  int mkdir(const char* path, mode_t mode) override {
    const std::lock_guard guard(mutex_);
    return fails() ? -1 : SystemCalls::mkdir(path, mode);
  }
  int rename(const char* from, const char* to) override {
    const std::lock_guard guard(mutex_);
    if (fails()) return -1;
    renames_.push_back({from, to, false});
    move_records(from, to);
    return SystemCalls::rename(from, to);
  }
  int exchange(const char* first, const char* second) override {
    const std::lock_guard guard(mutex_);
    if (fails()) return -1;
    if (no_exchange) {
      errno = EINVAL;
      return -1;
    }
    renames_.push_back({first, second, true});
    move_records(first, second);
    return SystemCalls::exchange(first, second);
  }
  int openat(int folder, const char* name, int flags) override {
    const std::lock_guard guard(mutex_);
    const int fd = SystemCalls::openat(folder, name, flags);
    if (fd != -1) path_of_[fd] = path_of_.at(folder) + "/" + name;
    return fd;
  }
  int unlinkat(int folder, const char* name, int flags) override {
    const std::lock_guard guard(mutex_);
    if (fails()) return -1;
    const std::string path = path_of_.at(folder) + "/" + name;
    unsynced_.erase(path);
    created_.erase(path);
    return SystemCalls::unlinkat(folder, name, flags);
  }

  bool no_exchange = false;  // like a file system without RENAME_EXCHANGE

 private:
  struct Rename {
    std::string from, to;
    bool exchanged;
  };

  static std::filesystem::path parent(const std::filesystem::path& path) {
    return path.parent_path();
  }

  bool fails() {
    ++calls_;
    if (fault_ == Fault::none || calls_ < at_) return false;
    if (fault_ == Fault::kill) ::_exit(exit_status);
    if (fault_ == Fault::power_loss) lose_power();
    if (fault_ == Fault::error && calls_ != at_) return false;
    errno = error_number_;
    return true;
  }

  // The worst state of a disk after a power failure: renames undone, new names lost, contents torn.
  [[noreturn]] void lose_power() {
    std::error_code ignored;
    for (const std::string& name : unsynced_) {
      const auto bytes = std::filesystem::file_size(name, ignored);
      if (!ignored) std::filesystem::resize_file(name, bytes / 2, ignored);
    }
    for (const std::string& name : created_) std::filesystem::remove(name, ignored);
    for (auto it = renames_.rbegin(); it != renames_.rend(); ++it) {
      if (it->exchanged) {
        SystemCalls::exchange(it->from.c_str(), it->to.c_str());
      } else if (::access(it->from.c_str(), F_OK) != 0) {
        SystemCalls::rename(it->to.c_str(), it->from.c_str());
      }
    }
    ::_exit(exit_status);
  }

  void move_records(const std::string& from, const std::string& to) {
    const auto moved = [&](const std::string& name) {
      return name == from || name.starts_with(from + "/") ? to + name.substr(from.size()) : name;
    };
    for (auto* names : {&unsynced_, &created_}) {
      std::set<std::string> changed;
      for (const std::string& name : *names) changed.insert(moved(name));
      *names = std::move(changed);
    }
  }

  std::mutex mutex_;
  Fault fault_;
  int at_;
  int error_number_;
  int calls_ = 0;
  std::map<int, std::string> path_of_;
  std::set<std::string> unsynced_;  // files written since their last fsync
  std::set<std::string> created_;   // names in folders without an fsync since
  std::vector<Rename> renames_;     // as for created_
};

// Runs the work in a process of its own, which `fault` ends at its k-th call, for every k up to
// `total`; `reset` runs before and `check` after each.
inline void die_at_every_call(Fault fault, int total, const std::function<void()>& reset,
                              const std::function<void(FaultyCalls&)>& work,
                              const std::function<void()>& check) {
  for (int k = 1; k <= total; ++k) {
    SCOPED_TRACE("call " + std::to_string(k) + " of " + std::to_string(total));
    reset();
    const pid_t child = ::fork();
    ASSERT_NE(child, -1);
    if (child == 0) {
      FaultyCalls calls(fault, k);
      work(calls);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), FaultyCalls::exit_status);
    check();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace tessera::checkpoint::testing
