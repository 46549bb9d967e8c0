// Tensors that lie in pieces in files, read in row-major ranges with bounded memory. Pieces may be
// cut in any way and have any strides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/formats/cover.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/io/file.h"

namespace tessera::checkpoint::formats {

// Files by number, opened when they are read; few are open at once.
class FileTable {
 public:
  std::size_t add(const std::filesystem::path& path);  // the same number for the same path
  [[nodiscard]] std::uint64_t size(std::size_t file) { return open(file).size(); }
  [[nodiscard]] const std::filesystem::path& path(std::size_t file) const { return paths_[file]; }
  void read(std::size_t file, std::uint64_t offset, void* data, std::size_t bytes) {
    open(file).read_at(offset, data, bytes);
  }
  [[nodiscard]] std::size_t count() const { return paths_.size(); }

 private:
  File& open(std::size_t file);
  std::vector<std::filesystem::path> paths_;
  std::map<std::filesystem::path, std::size_t> numbers_;
  std::list<std::pair<std::size_t, File>> open_;  // the last used first
};

// Bytes of a file with the checksum that its format has for them.
struct StoredRecord {
  std::size_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;  // CRC-32; 0: none
  std::string name;       // in the file, for messages
};

// A box of a tensor, and the strided view of a record that holds it.
struct Piece {
  Box box;
  std::size_t record = 0;
  std::int64_t first = 0;  // element of the record
  std::vector<std::int64_t> strides;
};

struct PiecedTensor {
  const StoredDType* stored = nullptr;
  // The shape that the boxes cut: the tensor's, or that of the same elements in one dimension.
  std::vector<std::int64_t> shape;
  std::vector<Piece> pieces;
};

std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& shape);

class PieceStore {
 public:
  FileTable& files() { return files_; }
  std::size_t add_record(StoredRecord record);  // the same number for the same place
  [[nodiscard]] const StoredRecord& record(std::size_t i) const { return records_[i]; }
  // Checks that every element lies in one piece, and every piece in its record. Otherwise throws an
  // Error that begins with `what`.
  std::size_t add_tensor(PiecedTensor tensor, const std::string& what);
  [[nodiscard]] const PiecedTensor& tensor(std::size_t i) const { return tensors_[i]; }
  [[nodiscard]] std::string where(std::size_t tensor) const;

  void read(std::size_t tensor, std::int64_t first, std::int64_t count, std::byte* data);
  // The element of a tensor that holds one number.
  double number(std::size_t tensor);
  std::vector<std::string> verify(const std::vector<TensorInfo>& names,
                                  const std::vector<std::size_t>& tensors,
                                  const std::function<void(std::uint64_t)>& progress);

 private:
  struct Copy;
  struct Sequence {  // bytes of a record that were read from its beginning
    std::uint64_t next = 0;
    std::uint32_t crc = 0;
    bool compared = false;  // the checksum of the whole record
  };
  void read_record(std::size_t record, std::uint64_t offset, void* data, std::size_t bytes);
  void compare_record(std::size_t record);
  void copy_box(const PiecedTensor& tensor, const Box& box, std::byte* data);
  void copy(Copy& plan, std::size_t dimension, std::int64_t source, std::byte* data);
  FileTable files_;
  std::vector<StoredRecord> records_;
  std::vector<Sequence> sequences_;
  std::map<std::pair<std::size_t, std::uint64_t>, std::size_t> by_place_;
  std::vector<PiecedTensor> tensors_;
  std::vector<std::byte> window_;
};

// A source over a PieceStore: contents().tensors[i] is the store's tensor `order[i]`.
class PiecedSource : public Source {
 public:
  PiecedSource(PieceStore store, Contents contents, std::vector<std::size_t> order);
  [[nodiscard]] const Contents& contents() const override { return contents_; }
  void read(std::size_t tensor, std::int64_t first, std::int64_t count, std::byte* data) override;
  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) override;

 private:
  PieceStore store_;
  Contents contents_;
  std::vector<std::size_t> order_;
};

}  // namespace tessera::checkpoint::formats
