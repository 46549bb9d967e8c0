// Where the bytes of an Arrow IPC stream come from: a file, or a pipe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace tessera::tasks {

// Bytes that can be read in any order. Safe to use from several threads.
class ArrowBytes {
 public:
  virtual ~ArrowBytes() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  // The caller keeps to size().
  virtual void read(std::int64_t first, void* out, std::size_t bytes) const = 0;
};

// A stream that is read once, from its beginning.
class ArrowInput {
 public:
  virtual ~ArrowInput() = default;
  // Reads up to so many bytes; fewer only at the end.
  virtual std::size_t read(void* out, std::size_t bytes) = 0;
  // The next bytes: a place of a file, or a copy of what came through the pipe. Error(data) if
  // there are fewer.
  virtual std::unique_ptr<ArrowBytes> take(std::int64_t bytes) = 0;
};

// A file of the stream format or of the file format, whose beginning is a stream. Throws
// Error(data) if the file cannot be opened or is not a regular file, or if its end is missing.
std::unique_ptr<ArrowInput> open_arrow_file(const std::filesystem::path& path);

// Reads from a descriptor, which the caller keeps open. `what` begins the messages.
std::unique_ptr<ArrowInput> read_arrow_pipe(int descriptor, const std::string& what);

}  // namespace tessera::tasks
