// A file that is made from the rows of others and kept beside them, so that it is made once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tasks/columnar/table_files.h"

namespace tessera::tasks {

// Its name is _FIRST.<purpose>.<stamp>.<checksum><ending> in the folder of the first file FIRST;
// other programs pass over names with an underscore. The purpose says what was made from which
// files (names and partitions), the stamp their sizes, times and inodes: when a file changes,
// another one is made, and the old one is removed. Opening it reads it once: a file that does not
// have its checksum is made again, with a line on stderr. One process of a machine makes it while
// the others wait. If the folder cannot be written, the file is in an own folder of this process,
// which no other user can enter, in the folder for temporary files, and ends with this object.
class DerivedFile {
 public:
  // `make` writes the file under the name that it gets, and gives it that name when it is whole.
  DerivedFile(const std::vector<TableFile>& files, std::uint64_t purpose, const std::string& ending,
              const std::function<void(const std::filesystem::path&)>& make);
  ~DerivedFile();
  DerivedFile(const DerivedFile&) = delete;
  DerivedFile& operator=(const DerivedFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::filesystem::path passing_folder_;  // empty: the file is kept
};

// A file under a passing name, which its destructor removes, until publish(). Throws Error when the
// disk is full, or the folder cannot be written.
class PassingFile {
 public:
  explicit PassingFile(const std::filesystem::path& path);
  ~PassingFile();
  PassingFile(const PassingFile&) = delete;
  PassingFile& operator=(const PassingFile&) = delete;

  void write(std::string_view bytes) const;
  // Gives the file its name once its bytes are on the disk.
  void publish();

 private:
  void check(bool succeeded, const char* call, ErrorCode otherwise) const;

  std::filesystem::path path_;
  std::string partial_;
  int descriptor_ = -1;
};

// Mixes a text into a number.
std::uint64_t mix_text(std::uint64_t hash, std::string_view text);

}  // namespace tessera::tasks
