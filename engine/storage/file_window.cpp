// The pipeline: read, work, write.
#include "engine/storage/file_window.h"

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "engine/device/memory.h"

namespace tessera {
namespace {

// A multiple of this many elements is a block boundary for elements of 4 and of 8 bytes.
constexpr auto grid_elements = static_cast<std::int64_t>(StateFile::alignment / 4);

std::int64_t floor_to(std::int64_t value, std::int64_t unit) {
  return value / unit * unit;
}

// The blocks that contain a range of an array.
struct Cover {
  std::uint64_t begin = 0;
  std::size_t bytes = 0;
  std::size_t lead = 0;  // from the beginning of the first block to the range
};

Cover cover_of(const StreamedArray& array, ElementRange range) {
  const std::uint64_t first =
      array.offset + static_cast<std::uint64_t>(range.first) * array.element;
  Cover cover;
  cover.begin = first / StateFile::alignment * StateFile::alignment;
  cover.lead = static_cast<std::size_t>(first - cover.begin);
  cover.bytes =
      StateFile::round_up(cover.lead + static_cast<std::size_t>(range.count) * array.element);
  return cover;
}

class Pipeline {
 public:
  Pipeline(std::span<const StreamedArray> arrays, ElementRange all, std::int64_t grid)
      : arrays_(arrays), read_(arrays.size() * FileWindow::pieces), written_(arrays.size()) {
    std::int64_t step = std::max(all.count, grid_elements);
    for (const StreamedArray& array : arrays) {
      const auto on_grid = static_cast<std::uint64_t>(grid) * array.element;
      TESSERA_REQUIRE(!array.changes || (array.offset - on_grid) % StateFile::alignment == 0,
                      "an array that changes begins at byte {}, element {} of its blocks",
                      array.offset, grid);
      step = std::min(
          step, floor_to(static_cast<std::int64_t>(array.window->piece_bytes() / array.element),
                         grid_elements));
    }
    step = std::max(step, grid_elements);
    for (std::int64_t at = all.first; at < all.end();) {
      const std::int64_t next = std::min(all.end(), floor_to(grid + at, step) + step - grid);
      pieces_.push_back({at, next - at});
      at = next;
    }
  }

  void run(const std::function<void(ElementRange, std::span<std::byte* const>)>& work) {
    std::vector<std::byte*> where(arrays_.size());
    constexpr std::size_t ahead = FileWindow::pieces - 1;
    for (std::size_t i = 0; i < std::min(ahead, pieces_.size()); ++i) read(i);
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      for (std::size_t a = 0; a < arrays_.size(); ++a) {
        read_[slot(a, i)].wait();
        where[a] = arrays_[a].window->piece(i) + cover_of(arrays_[a], pieces_[i]).lead;
      }
      work(pieces_[i], where);
      write(i);
      if (i + ahead < pieces_.size()) read(i + ahead);
    }
    for (const Event& event : written_) event.wait();
  }

 private:
  [[nodiscard]] static std::size_t slot(std::size_t array, std::size_t piece) {
    return array * FileWindow::pieces + piece % FileWindow::pieces;
  }
  // Transfers of a file run in order: a piece's memory has been written out before the next read
  // into it.
  void read(std::size_t piece) {
    for (std::size_t a = 0; a < arrays_.size(); ++a) {
      const Cover cover = cover_of(arrays_[a], pieces_[piece]);
      StateFile& file = arrays_[a].window->file();
      read_[slot(a, piece)] =
          file.transfers().enqueue([&file, cover, memory = arrays_[a].window->piece(piece)] {
            file.read(cover.begin, memory, cover.bytes);
          });
    }
  }
  void write(std::size_t piece) {
    for (std::size_t a = 0; a < arrays_.size(); ++a) {
      if (!arrays_[a].changes) continue;
      const Cover cover = cover_of(arrays_[a], pieces_[piece]);
      StateFile& file = arrays_[a].window->file();
      written_[a] =
          file.transfers().enqueue([&file, cover, memory = arrays_[a].window->piece(piece)] {
            file.write(cover.begin, memory, cover.bytes);
          });
    }
  }

  std::span<const StreamedArray> arrays_;
  std::vector<ElementRange> pieces_;
  std::vector<Event> read_;     // by array and piece
  std::vector<Event> written_;  // by array: the last write
};

}  // namespace

AlignedMemory::AlignedMemory(std::size_t bytes_needed, MemoryKind kind, Device device) {
  const MemoryScope scope(kind);
  block_ = MemoryPool::current(device)->allocate(bytes(bytes_needed));
  const auto address = reinterpret_cast<std::uintptr_t>(block_.get());
  data_ =
      block_.get() + (StateFile::alignment - address % StateFile::alignment) % StateFile::alignment;
}

std::size_t FileWindow::bytes_of_piece(std::size_t piece_bytes, std::size_t largest) {
  return std::min(piece_bytes, (largest + 2 * StateFile::alignment - 1) /
                                   (2 * StateFile::alignment) * (2 * StateFile::alignment));
}

// A piece that begins inside a block touches one more block; the first piece begins at a block.
std::size_t FileWindow::bytes(std::size_t piece_bytes, std::size_t largest) {
  return AlignedMemory::bytes(pieces *
                              (bytes_of_piece(piece_bytes, largest) + StateFile::alignment));
}

FileWindow::FileWindow(StateFile& file, std::size_t largest)
    : file_(file),
      piece_bytes_(bytes_of_piece(file.folder().piece_bytes, largest)),
      memory_(pieces * (piece_bytes_ + StateFile::alignment), file.kind(), file.folder().device) {}

FileWindow::~FileWindow() {
  try {
    file_.transfers().synchronize();
  } catch (const std::exception&) {
    // The waiter has already received this transfer's error.
  }
}

std::byte* FileWindow::piece(std::size_t index) const {
  return memory_.data() + index % pieces * (piece_bytes_ + StateFile::alignment);
}

void stream_arrays(
    std::span<const StreamedArray> arrays, ElementRange all, std::int64_t grid,
    const std::function<void(ElementRange range, std::span<std::byte* const> where)>& work) {
  if (all.count == 0) return;
  Pipeline(arrays, all, grid).run(work);
}

}  // namespace tessera
