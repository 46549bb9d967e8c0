// A file that a run appends to, and continues when the run is resumed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace tessera::logs {

// Thrown when the reader of a pipe has ended.
struct LostReader final : Error {
  using Error::Error;
};

class LogFile {
 public:
  // Opens the file and makes its folder; `kept` returns the number of bytes to keep. `key` is the
  // recipe's key, for messages. Throws Error(configuration) if the file cannot be written, or if
  // another process has it open as its log, and the errors of `kept`. Before begin() the file is
  // not changed, and a new file is removed again.
  LogFile(std::string key, const std::filesystem::path& path,
          const std::function<std::int64_t(const std::filesystem::path&)>& kept);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // Removes the bytes that are not kept; the first append() does this as well. A file from which
  // nothing is kept belongs to another run: it is renamed, and the log begins in a new file.
  void begin();
  // The new name of another run's file, or nothing.
  [[nodiscard]] const std::filesystem::path& set_aside() const { return set_aside_; }
  // Written to the system at once, so that a reader finds everything, also after a crash. Throws an
  // Error of full_disk_or_runtime() if the file system refuses, and LostReader for a pipe whose
  // reader has ended.
  void append(std::string_view bytes, std::int64_t step);
  // Truncates the file if that is possible.
  void cut(std::int64_t bytes);

  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_regular() const { return is_regular_; }

 private:
  void open_file();
  bool open_read_pipe();
  void look_for_reader();
  void lock() const;
  void rename_aside();

  std::string key_;
  std::filesystem::path path_;
  std::filesystem::path set_aside_;
  int file_ = -1;
  bool is_regular_ = false;
  bool is_new_ = false;
  bool begun_ = false;
  bool awaits_reader_ = false;  // of a pipe
  std::int64_t bytes_ = 0;
};

// The number of bytes to keep at the beginning of a file of lines: whole lines for which `stays` is
// true, up to the first for which it is not. A last line that a crash cut off is removed as well.
// `stays` gets the line's number, from 1. Throws Error(configuration) if the only line was cut off
// and does not begin like a line of the log (`begins`).
std::int64_t bytes_of_lines(
    const std::string& key, const std::filesystem::path& path,
    const std::function<bool(std::string_view line)>& begins,
    const std::function<bool(const std::string& line, std::int64_t number)>& stays);

// Throws Error(configuration) if `path` cannot be written, or is a file that does not have `mark`
// near its beginning. Leaves only folders behind.
void check_output_file(const std::string& key, const std::filesystem::path& path,
                       std::string_view mark);

}  // namespace tessera::logs
