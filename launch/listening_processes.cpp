// Processes and their signal masks, read in /proc.
#include "launch/listening_processes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

namespace tessera::launcher {
namespace {

// Signals as bits of a mask; 0 for a process that has ended.
struct SignalMasks {
  std::uint64_t blocked = 0, ignored = 0, caught = 0;
};

SignalMasks masks_of(pid_t process) {
  SignalMasks masks;
  std::ifstream status(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(status, line);) {
    const auto read = [&line](std::string_view field, std::uint64_t& mask) {
      if (!line.starts_with(field)) return;
      std::from_chars(line.data() + field.size(), line.data() + line.size(), mask, 16);
    };
    read("SigBlk:\t", masks.blocked);
    read("SigIgn:\t", masks.ignored);
    read("SigCgt:\t", masks.caught);
  }
  return masks;
}

// Shells and the C library block all signals for a moment while they start a process, and a signal
// that comes then ends them a moment later. A process that blocks on purpose, for sigwait(), blocks
// for longer.
bool keeps_blocking(std::uint64_t bit, pid_t process) {
  constexpr int looks = 25;
  for (int look = 0; look < looks; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if ((masks_of(process).blocked & bit) == 0) return false;
  }
  return true;
}

bool bears(int signal, pid_t process) {
  const std::uint64_t bit = std::uint64_t{1} << (signal - 1);
  const SignalMasks masks = masks_of(process);
  if (((masks.ignored | masks.caught) & bit) != 0) return true;
  if ((masks.blocked & bit) == 0) return false;
  return keeps_blocking(bit, process);
}

}  // namespace

std::vector<pid_t> processes_that_bear(int signal, pid_t group) {
  std::vector<pid_t> processes;
  std::error_code error;  // a process that ends meanwhile is not an error
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t process = 0;
    const auto [rest, wrong] = std::from_chars(name.data(), name.data() + name.size(), process);
    if (wrong != std::errc{} || rest != name.data() + name.size()) continue;
    if (::getpgid(process) == group && bears(signal, process)) processes.push_back(process);
  }
  return processes;
}

}  // namespace tessera::launcher
