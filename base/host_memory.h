// The memory that a rank of this host may still take: free memory of the node, limits of its
// control groups, and the process's own limit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tessera {

struct FreeMemory {
  std::uint64_t bytes = 0;
  std::string place;    // "this machine", "the control group /jobs/7", ...
  bool of_host = true;  // other ranks of the host share it
};

// For all ranks of the host together: MemAvailable and free swap, or less if a control group of
// this process (version 1 or 2) has a limit. Page cache that a group can give up counts as free.
// Empty if the system does not report it. The files are read below `root`.
std::optional<FreeMemory> free_memory_of_host(const std::filesystem::path& root = "/");

// The part of that for each of the host's `ranks`. `in_process` of them are threads of this
// process, whose address space may have a limit of its own (RLIMIT_AS).
std::optional<FreeMemory> free_memory_of_rank(int ranks, int in_process,
                                              const std::filesystem::path& root = "/");

// The peak resident memory of this process so far.
std::int64_t peak_resident_bytes();

}  // namespace tessera
