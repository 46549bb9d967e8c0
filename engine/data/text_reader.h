// A text that is read from its beginning to its end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace tessera {

// A regular file, or standard input, which may be a pipe. Errors are Error(data) that begin with
// name().
class TextReader {
 public:
  explicit TextReader(const std::filesystem::path& path);
  // Reads from where standard input is. `waiting` is called ten times a second while no bytes come,
  // and may throw to stop.
  [[nodiscard]] static TextReader standard_input(std::function<void()> waiting = {});
  ~TextReader();
  TextReader(const TextReader&) = delete;
  TextReader& operator=(const TextReader&) = delete;

  // "text lines.txt" or "standard input", for messages.
  [[nodiscard]] const std::string& name() const { return name_; }
  // Appends up to `bytes` bytes; false at the end.
  [[nodiscard]] bool append(std::string& text, std::int64_t bytes);

 private:
  TextReader(int file, std::string name, std::function<void()> waiting);
  void wait() const;

  int file_ = -1;
  std::string name_;
  std::function<void()> waiting_;
};

}  // namespace tessera
