// Writes a file, or runs of it, front to back, and computes checksums from memory meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/io/checksum.h"
#include "checkpoint/io/file.h"

namespace tessera::checkpoint {

// Used by one thread. Small pieces are gathered into one write. The disk starts writing while more
// is added, so that the file's sync() has little left to wait for and no call takes long.
class SpanWriter {
 public:
  // `file` must outlive it. Checksums are of chunks of `chunk_bytes`.
  SpanWriter(File& file, std::uint64_t chunk_bytes);

  // The next bytes go to `offset`, where a new chunk begins.
  void begin(std::uint64_t offset);
  void put(const void* data, std::size_t bytes);
  [[nodiscard]] std::uint64_t offset() const { return offset_ + gathered_.size(); }
  // The checksums of all chunks, in the order in which they were written.
  [[nodiscard]] std::vector<std::uint64_t> finish();

 private:
  void write(const std::byte* data, std::size_t bytes);
  void flush();
  void write_behind();

  File& file_;
  ChunkHasher hasher_;
  std::uint64_t offset_ = 0;  // of the bytes not yet written
  std::vector<std::byte> gathered_;
  // The range of the last writeback, and the one of the next.
  std::uint64_t told_ = 0, told_end_ = 0;
  std::uint64_t untold_ = 0, untold_bytes_ = 0;
};

}  // namespace tessera::checkpoint
