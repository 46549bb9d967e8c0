// Processes and their signal masks, read in /proc.
#include "cli/listening_processes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace tessera::cli {
namespace {

bool bears(int signal, pid_t process) {
  std::ifstream status(fmt::format("/proc/{}/status", process));
  std::uint64_t borne = 0;
  for (std::string line; std::getline(status, line);) {
    for (const std::string_view field : {"SigBlk:\t", "SigIgn:\t", "SigCgt:\t"}) {
      if (!line.starts_with(field)) continue;
      std::uint64_t mask = 0;
      std::from_chars(line.data() + field.size(), line.data() + line.size(), mask, 16);
      borne |= mask;
    }
  }
  return (borne >> (signal - 1) & 1) != 0;
}

}  // namespace

std::vector<pid_t> processes_that_bear(int signal, pid_t group) {
  std::vector<pid_t> processes;
  std::error_code error;  // a process that ends meanwhile is no error
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

}  // namespace tessera::cli
