// A file that a run adds to as it goes, and goes on with when it is resumed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace tessera::cli {

class LogFile {
 public:
  // Opens the file, of which `kept` says how many bytes stay, and makes its folder. `key` is the
  // recipe's, for messages. Throws Error(configuration) when it cannot be written, or another
  // process has it open as its log, and what `kept` throws. Until begin() nothing of it is changed,
  // and a file that was not there goes again.
  LogFile(std::string key, const std::filesystem::path& path,
          const std::function<std::int64_t(const std::filesystem::path&)>& kept);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // Removes what does not stay; the first append() does it, too. A file of which nothing stays is
  // another run's: it is renamed, and the log begins in a new one.
  void begin();
  // The name that the file of another run was given, or nothing.
  [[nodiscard]] const std::filesystem::path& set_aside() const { return set_aside_; }
  // Handed to the system at once, so that a reader, or a crash, finds all that was written. Throws
  // an Error of full_disk_or_runtime() when the file system refuses.
  void append(std::string_view bytes, std::int64_t step);
  // Cuts the file off, where it is one that can be.
  void cut(std::int64_t bytes);

  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_regular() const { return is_regular_; }

 private:
  void open_file();
  void lock() const;
  void rename_aside();

  std::string key_;
  std::filesystem::path path_;
  std::filesystem::path set_aside_;
  int file_ = -1;
  bool is_regular_ = false;
  bool is_new_ = false;
  bool begun_ = false;
  std::int64_t bytes_ = 0;
};

// Of a file of lines, the bytes at the beginning that stay: whole lines for which `stays`, up to
// the first for which not. A last line that a crash cut off goes as well. `stays` is given the
// line's number, from 1. Throws Error(configuration) where the only line was cut off and does not
// begin as one of the log's: `begins`.
std::int64_t bytes_of_lines(
    const std::string& key, const std::filesystem::path& path,
    const std::function<bool(std::string_view line)>& begins,
    const std::function<bool(const std::string& line, std::int64_t number)>& stays);

// Throws Error(configuration) where `path` cannot be written, or is a file in whose beginning
// `mark` is not. Leaves nothing behind but folders.
void check_output_file(const std::string& key, const std::filesystem::path& path,
                       std::string_view mark);

}  // namespace tessera::cli
