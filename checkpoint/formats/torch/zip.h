// Zip archives of stored records, as torch.save writes them. The reader uses the central directory
// alone; the writer places every record's data on a multiple of 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/io/file.h"
#include "checkpoint/safetensors/safetensors.h"

namespace tessera::checkpoint::formats {

struct ZipRecord {
  std::string name;
  std::uint64_t offset = 0;  // of its data, from the archive's start
  std::uint64_t bytes = 0;   // as they are stored
  std::uint32_t crc = 0;     // of its data, uncompressed; 0: the archive has none
  bool compressed = false;   // the reader does not take it apart
};

// The directory of an archive that is `bytes` long, a file or a part of one. Refuses these with an
// Error(checkpoint) that begins with `source`: encryption, records outside of the archive, records
// that share bytes, a name twice, names with NUL, backslash or "..".
class ZipDirectory {
 public:
  ZipDirectory(const ReadBytes& read, std::uint64_t bytes, const std::string& source);
  [[nodiscard]] const std::vector<ZipRecord>& records() const { return records_; }  // by name
  [[nodiscard]] const ZipRecord* find(std::string_view name) const;

 private:
  std::vector<ZipRecord> records_;
};

// The stated size of the directory, which is read at once.
std::uint64_t zip_directory_bytes(const ReadBytes& read, std::uint64_t bytes,
                                  const std::string& source);

// A record to be written, whose size is known before its data.
struct ZipPlan {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // set by plan_zip: of its data, from the archive's start
};

// Places the records of an archive; returns the archive's size.
std::uint64_t plan_zip(std::vector<ZipPlan>& records);

// Writes a planned archive at `base` of a file, with its records in order.
class ZipWriter {
 public:
  ZipWriter(File& file, std::uint64_t base, std::vector<ZipPlan> records);
  // Appends the next bytes of the current record; the next record begins when it is complete.
  void append(const void* data, std::size_t bytes);
  void append(std::string_view data) { append(data.data(), data.size()); }
  // Bytes that the current record still lacks; 0 after the last.
  [[nodiscard]] std::uint64_t missing() const;
  void finish();

 private:
  void skip_complete();
  File* file_;
  std::uint64_t base_;
  std::vector<ZipPlan> records_;
  std::vector<std::uint32_t> crcs_;
  std::size_t current_ = 0;
  std::uint64_t written_ = 0;  // of the current record
};

}  // namespace tessera::checkpoint::formats
