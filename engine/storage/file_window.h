// A little memory through which large state in files is worked on: piece by piece, read ahead and
// written behind.
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

// Memory of the calling thread's pool for direct transfers, which begins a block.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  AlignedMemory(std::size_t bytes_needed, MemoryKind kind, Device device);
  // What it takes.
  static std::size_t bytes(std::size_t needed) { return needed + StateFile::alignment; }
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::shared_ptr<std::byte> block_;
  std::byte* data_ = nullptr;
};

// Of a file that lives longer. Used by one thread; counted as the kind of memory that the file
// holds.
class FileWindow {
 public:
  // One piece is worked on while the next ones are read and the one before is written.
  static constexpr int pieces = 4;

  // For ranges of at most `largest` bytes of the file.
  FileWindow(StateFile& file, std::size_t largest);
  ~FileWindow();  // waits for transfers from and to it
  FileWindow(const FileWindow&) = delete;
  FileWindow& operator=(const FileWindow&) = delete;
  // Bytes that such a window takes.
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

// An array in a file that is worked on with others, element by element.
struct StreamedArray {
  FileWindow* window = nullptr;
  std::uint64_t offset = 0;  // in the file, of element 0
  std::size_t element = 4;   // bytes
  bool changes = false;      // is written back; then `offset` lies in its block as others' do
};

// Calls work(range, where each array's `range` is) for elements `all`, in order and in pieces that
// every window has room for. A piece begins where `grid`, the number of element 0 on a line on
// which blocks begin at multiples of their size, says that a block begins. Returns when all is
// written.
void stream_arrays(
    std::span<const StreamedArray> arrays, ElementRange all, std::int64_t grid,
    const std::function<void(ElementRange range, std::span<std::byte* const> where)>& work);

}  // namespace tessera
