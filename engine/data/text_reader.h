// A text that is read from its beginning to its end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/data/compression/decompressor.h"

namespace tessera {

// What files hold whose first bytes no text has.
enum class Container : std::uint8_t { parquet, arrow, tar, other };

// By the first 512 bytes, decompressed; none for what may be a text.
std::optional<Container> container_of(std::string_view beginning);

// A regular file, or standard input, which may be a pipe. Text that is compressed by gzip or
// Zstandard is decompressed (make_decompressor()). Errors are Error(data) that begin with name().
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
  // After the first append() or require_text().
  [[nodiscard]] bool decompresses() const { return decompressor_ != nullptr; }
  // Throws Error(data) for what is not a text but a file of another kind, by its first bytes:
  // Parquet, Arrow, Avro, ORC, HDF5, NumPy, SQLite, tar, and what is compressed twice. Called
  // before append(). Of standard input it looks at what is there.
  void require_text();
  // Appends up to `bytes` bytes; false at the end.
  [[nodiscard]] bool append(std::string& text, std::int64_t bytes);

 private:
  TextReader(int file, std::string name, std::function<void()> waiting);
  void wait() const;
  [[nodiscard]] bool is_idle() const;
  [[nodiscard]] std::size_t read(char* out, std::size_t bytes) const;
  void begin();
  [[nodiscard]] bool append_more(std::string& text, std::int64_t bytes);
  [[nodiscard]] bool decompress(std::string& text, std::size_t bytes);

  int file_ = -1;
  std::string name_;
  std::function<void()> waiting_;
  bool begun_ = false;
  std::string seen_;   // that require_text() has read, and append() has not handed out
  std::string input_;  // that has been read, and from used_ on not been handed out
  std::size_t used_ = 0;
  bool is_full_ = false;  // the decompressor may hold more than it has written
  std::unique_ptr<Decompressor> decompressor_;
};

// True if the regular file begins as one that TextReader decompresses. False for other kinds of
// files. Throws as make_decompressor() and TextReader::require_text().
[[nodiscard]] bool is_compressed_text(const std::filesystem::path& path);

}  // namespace tessera
