// A small window of memory for work on large state in files: piece by piece, with reads ahead and
// writes behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/storage/element_range.h"
#include "engine/storage/state_file.h"

namespace tessera {

// Memory for direct transfers from the calling thread's pool; it begins at a block boundary.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  AlignedMemory(std::size_t bytes_needed, MemoryKind kind, Device device);
  // Bytes to allocate for it.
  static std::size_t bytes(std::size_t needed) { return needed + StateFile::alignment; }
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::shared_ptr<std::byte> block_;
  std::byte* data_ = nullptr;
};

// A window of a file, which must outlive it. One thread uses it. Its memory counts as the kind of
// memory that the file holds.
class FileWindow {
 public:
  // One piece is in use while the next ones are read and the previous one is written.
  static constexpr int pieces = 4;

  // For ranges of at most `largest` bytes of the file.
  FileWindow(StateFile& file, std::size_t largest);
  ~FileWindow();  // waits for its transfers
  FileWindow(const FileWindow&) = delete;
  FileWindow& operator=(const FileWindow&) = delete;
  // Bytes that such a window needs.
  static std::size_t bytes(std::size_t piece_bytes, std::size_t largest);
  static std::size_t bytes_of_piece(std::size_t piece_bytes, std::size_t largest);

  [[nodiscard]] StateFile& file() const { return file_; }
  [[nodiscard]] std::size_t piece_bytes() const { return piece_bytes_; }
  [[nodiscard]] std::byte* piece(std::size_t index) const;

 private:
  StateFile& file_;
  std::size_t piece_bytes_;
  AlignedMemory memory_;
};

// An array in a file that is processed together with others, element by element.
struct StreamedArray {
  FileWindow* window = nullptr;
  std::uint64_t offset = 0;  // of element 0 in the file
  std::size_t element = 4;   // bytes
  bool changes = false;  // is written back; `offset` must then be aligned like `grid` (see below)
};

// Calls work(range, addresses of each array's `range`) for the elements `all`, in order and in
// pieces that fit every window. `grid` is the number of element 0 on a grid with block boundaries
// at multiples of the block size; pieces begin at such boundaries. Returns when all writes are
// done.
void stream_arrays(
    std::span<const StreamedArray> arrays, ElementRange all, std::int64_t grid,
    const std::function<void(ElementRange range, std::span<std::byte* const> where)>& work);

}  // namespace tessera
