// Reads /proc and /sys/fs/cgroup.
#include "base/host_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The number after `name` at the beginning of a line: "MemAvailable:  1234 kB", "anon 1234".
std::optional<std::uint64_t> number_after(const fs::path& path, std::string_view name) {
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string first;
    std::uint64_t value = 0;
    if (words >> first && first == name && words >> value) return value;
  }
  return std::nullopt;
}

// The number that the file holds; empty if the file does not exist or contains "max".
std::optional<std::uint64_t> number_in(const fs::path& path) {
  std::ifstream stream(path);
  std::uint64_t value = 0;
  if (!(stream >> value)) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> meminfo(const fs::path& root, std::string_view name) {
  const auto kibibytes = number_after(root / "proc/meminfo", name);
  if (!kibibytes) return std::nullopt;
  return *kibibytes * 1024;
}

std::uint64_t difference(std::uint64_t a, std::uint64_t b) {
  return a > b ? a - b : 0;
}

// The files of one version of control groups.
struct GroupFiles {
  fs::path mount;
  const char *limit, *usage;
  std::vector<std::string_view> reclaimable;  // of memory.stat
};

// Free memory in one group; empty if it has no limit.
std::optional<std::uint64_t> free_in_group(const fs::path& group, const GroupFiles& files) {
  const auto limit = number_in(group / files.limit);
  const auto usage = number_in(group / files.usage);
  // Version 1 expresses "no limit" as a number near 2^63.
  if (!limit || !usage || *limit >= std::uint64_t{1} << 60) return std::nullopt;
  std::uint64_t reclaimable = 0;
  for (const std::string_view name : files.reclaimable) {
    reclaimable += number_after(group / "memory.stat", name).value_or(0);
  }
  return difference(*limit, difference(*usage, reclaimable));
}

// Visits the group of this process and the groups above it; the one with the least memory counts.
void look_at_groups(const fs::path& name, const GroupFiles& files, std::uint64_t swap,
                    FreeMemory& least) {
  fs::path group = name.relative_path();
  while (true) {
    if (const auto free = free_in_group(files.mount / group, files)) {
      const fs::path at = files.mount / group;
      std::uint64_t own_swap = swap;
      if (const auto limit = number_in(at / "memory.swap.max")) {
        const auto used = number_in(at / "memory.swap.current").value_or(0);
        own_swap = std::min(own_swap, difference(*limit, used));
      }
      if (*free + own_swap < least.bytes) {
        least = {*free + own_swap, fmt::format("the control group /{}", group.string())};
      }
    }
    if (group.empty()) return;
    group = group.parent_path();
  }
}

// Parses "0::/path" of version 2 and "5:cpu,memory:/path" of version 1.
void look_at_control_groups(const fs::path& root, std::uint64_t swap, FreeMemory& least) {
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream stream(root / "proc/self/cgroup");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const fs::path path = line.substr(second + 1);
    if (controllers == ",,") {
      look_at_groups(path,
                     {mount,
                      "memory.max",
                      "memory.current",
                      {"inactive_file", "active_file", "slab_reclaimable"}},
                     swap, least);
    } else if (controllers.find(",memory,") != std::string::npos) {
      look_at_groups(path,
                     {mount / "memory",
                      "memory.limit_in_bytes",
                      "memory.usage_in_bytes",
                      {"total_inactive_file", "total_active_file"}},
                     swap, least);
    }
  }
}

// The address space that RLIMIT_AS leaves this process; empty without a limit.
std::optional<std::uint64_t> free_address_space(const fs::path& root) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const auto kibibytes = number_after(root / "proc/self/status", "VmSize:");
  if (!kibibytes) return std::nullopt;
  return difference(limit.rlim_cur, *kibibytes * 1024);
}

}  // namespace

std::optional<FreeMemory> free_memory_of_host(const fs::path& root) {
  const std::uint64_t swap = meminfo(root, "SwapFree:").value_or(0);
  const auto available = meminfo(root, "MemAvailable:");
  constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
  FreeMemory least{available ? *available + swap : unknown, "this machine"};
  look_at_control_groups(root, swap, least);
  if (least.bytes == unknown) return std::nullopt;
  return least;
}

std::optional<FreeMemory> free_memory_of_rank(int ranks, int in_process, const fs::path& root) {
  std::optional<FreeMemory> least = free_memory_of_host(root);
  if (least) least->bytes /= static_cast<std::uint64_t>(ranks);
  if (const auto space = free_address_space(root)) {
    const std::uint64_t bytes = *space / static_cast<std::uint64_t>(in_process);
    if (!least || bytes < least->bytes) {
      least = {bytes, "the limit on this process's address space (ulimit -v)", false};
    }
  }
  return least;
}

std::int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name; std::getline(status, name)) {
    std::int64_t kibibytes = 0;
    if (name == "VmHWM:" && status >> kibibytes) return kibibytes * 1024;
  }
  // Some sandboxes do not report it. getrusage() also counts what the process held before exec: its
  // parent's memory after fork.
  rusage usage{};
  TESSERA_SYSTEM(::getrusage(RUSAGE_SELF, &usage));
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace tessera
