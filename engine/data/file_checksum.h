// Checksums of files that are made once and read by later runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace tessera {

// The XXH3 checksum of bytes that come one after another.
class RunningChecksum {
 public:
  RunningChecksum();
  ~RunningChecksum();
  RunningChecksum(const RunningChecksum&) = delete;
  RunningChecksum& operator=(const RunningChecksum&) = delete;

  void update(const void* data, std::size_t bytes);
  [[nodiscard]] std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The checksum of the bytes of a file from `first` on. Error(data) with the path.
std::uint64_t checksum_of_file(const std::filesystem::path& path, std::int64_t first = 0);

}  // namespace tessera
