// A file of data that is read at places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera {

// An open regular file. Several threads may read it. Errors are Error(data) with the path: a file
// that cannot be opened or read, that is not regular, or that became shorter.
class DataFile {
 public:
  explicit DataFile(std::string path);
  ~DataFile();
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::int64_t size() const { return size_; }  // when it was opened
  // All bytes from `first` on.
  void read(std::int64_t first, void* out, std::size_t bytes) const;
  // The same up to the end of the file; returns their number.
  [[nodiscard]] std::size_t read_to_end(std::int64_t first, void* out, std::size_t bytes) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

}  // namespace tessera
