// Limits the memory of a test's own process.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <fstream>
#include <string>

namespace tessera::testing {

// A row of /proc/self/status: "VmData", "VmRSS".
inline std::size_t status_kib(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::size_t value = 0;
    if (word == name + ":" && status >> value) return value;
  }
  return 0;
}

// After this call the process may take at most so much more anonymous memory. A sanitizer itself
// takes more.
inline void limit_memory(std::size_t more) {
  const rlim_t bytes = status_kib("VmData") * 1024 + more;
  const rlimit limit{bytes, bytes};
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
}

}  // namespace tessera::testing
