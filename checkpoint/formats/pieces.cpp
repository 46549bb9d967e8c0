// Reads ranges of tensors from pieces. A range is a few boxes of the tensor; the intersection of a
// box and a piece is copied in the order of the file.
#include "checkpoint/formats/pieces.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/low_precision.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/io/crc32.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::size_t open_files_limit = 128;
constexpr std::int64_t window_bytes = std::int64_t{1} << 20;
constexpr std::int64_t sparsest = 8;  // reads a window if one in so many elements is needed

std::int64_t volume(const std::vector<std::int64_t>& sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return count;
}

void check_crc(const StoredRecord& stored, std::uint32_t crc, const FileTable& files) {
  TESSERA_CHECK(crc == stored.crc, ErrorCode::checkpoint,
                "'{}' is damaged: the checksum of {} at byte {} differs from its contents'",
                files.path(stored.file).string(), shown(stored.name), stored.offset);
}

// The row-major range [first, first + count) as boxes, in order; each is a run of rows.
void for_each_box(const std::vector<std::int64_t>& shape, std::int64_t first, std::int64_t count,
                  const std::function<void(const Box&)>& visit) {
  const std::vector<std::int64_t> strides = row_major_strides(shape);
  while (count > 0) {
    Box box{std::vector<std::int64_t>(shape.size()), std::vector<std::int64_t>(shape.size(), 1)};
    std::int64_t rest = first;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      box.offsets[d] = rest / strides[d];
      rest %= strides[d];
    }
    // The outermost dimension along which whole rows fit.
    std::size_t d = shape.size();
    while (d > 0 && strides[d - 1] <= count && first % strides[d - 1] == 0) --d;
    std::int64_t taken = 1;
    if (d < shape.size()) {
      box.sizes[d] = std::min(count / strides[d], shape[d] - box.offsets[d]);
      for (std::size_t k = d + 1; k < shape.size(); ++k) box.sizes[k] = shape[k];
      taken = box.sizes[d] * strides[d];
    }
    visit(box);
    first += taken;
    count -= taken;
  }
}

// The intersection of two boxes; false when it is empty.
bool intersect(const Box& a, const Box& b, Box& shared) {
  shared.offsets.resize(a.offsets.size());
  shared.sizes.resize(a.offsets.size());
  for (std::size_t d = 0; d < a.offsets.size(); ++d) {
    const std::int64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const std::int64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    if (begin >= end) return false;
    shared.offsets[d] = begin;
    shared.sizes[d] = end - begin;
  }
  return true;
}

// The highest element that a view reaches, or none when it has no elements; false on overflow.
bool reach(const Piece& piece, std::int64_t& last) {
  last = piece.first;
  for (std::size_t d = 0; d < piece.box.sizes.size(); ++d) {
    std::int64_t step = 0;
    if (piece.strides[d] < 0 ||
        __builtin_mul_overflow(piece.box.sizes[d] - 1, piece.strides[d], &step) ||
        __builtin_add_overflow(last, step, &last)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::size_t FileTable::add(const std::filesystem::path& path) {
  const auto [known, fresh] = numbers_.try_emplace(path, paths_.size());
  if (fresh) paths_.push_back(path);
  return known->second;
}

File& FileTable::open(std::size_t file) {
  const auto found = std::find_if(open_.begin(), open_.end(),
                                  [&](const auto& entry) { return entry.first == file; });
  if (found != open_.end()) {
    open_.splice(open_.begin(), open_, found);
  } else {
    open_.emplace_front(file, File::open_for_reading(paths_[file]));
    if (open_.size() > open_files_limit) open_.pop_back();
  }
  return open_.front().second;
}

std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d > 1; --d) strides[d - 2] = strides[d - 1] * shape[d - 1];
  return strides;
}

std::size_t PieceStore::add_record(StoredRecord record) {
  const auto [known, fresh] = by_place_.try_emplace({record.file, record.offset}, records_.size());
  if (!fresh) return known->second;
  records_.push_back(std::move(record));
  sequences_.emplace_back();
  return records_.size() - 1;
}

std::size_t PieceStore::add_tensor(PiecedTensor tensor, const std::string& what) {
  const auto check = [&](bool condition, const std::string& problem) {
    TESSERA_CHECK(condition, ErrorCode::checkpoint, "{}: {}", what, problem);
  };
  element_count(tensor.shape, what);
  std::vector<Box> boxes;
  boxes.reserve(tensor.pieces.size());
  for (const Piece& piece : tensor.pieces) boxes.push_back(piece.box);
  const std::string problem = cover_problem(tensor.shape, boxes);
  check(problem.empty(), problem);
  check(tensor.stored->bits % 8 == 0, "elements of less than a byte are not supported");
  std::erase_if(tensor.pieces, [](const Piece& piece) { return volume(piece.box.sizes) == 0; });
  for (const Piece& piece : tensor.pieces) {
    check(piece.strides.size() == piece.box.sizes.size(), "its strides do not fit its shape");
    std::int64_t last = 0;
    const auto elements = records_[piece.record].bytes / (tensor.stored->bits / 8);
    check(piece.first >= 0 && reach(piece, last) && static_cast<std::uint64_t>(last) < elements,
          fmt::format("it reaches out of its record {} of {} bytes",
                      shown(records_[piece.record].name), records_[piece.record].bytes));
  }
  tensors_.push_back(std::move(tensor));
  return tensors_.size() - 1;
}

std::string PieceStore::where(std::size_t tensor) const {
  const auto& pieces = tensors_[tensor].pieces;
  if (pieces.empty()) return "nowhere: it has no elements";
  const StoredRecord& first = records_[pieces.front().record];
  const bool plain = std::all_of(first.name.begin(), first.name.end(),
                                 [](char c) { return c >= ' ' && c <= '~'; });
  std::string text = fmt::format("{}: {}", files_.path(first.file).filename().string(),
                                 plain ? first.name : shown(first.name));
  if (pieces.size() > 1) text += fmt::format(", and {} more", pieces.size() - 1);
  return text;
}

void PieceStore::read_record(std::size_t record, std::uint64_t offset, void* data,
                             std::size_t bytes) {
  const StoredRecord& stored = records_[record];
  files_.read(stored.file, stored.offset + offset, data, bytes);
  Sequence& sequence = sequences_[record];
  if (stored.crc == 0 || sequence.compared) return;
  if (offset == 0) sequence = {};
  if (offset != sequence.next) return compare_record(record);
  sequence.crc = crc32(sequence.crc, data, bytes);
  sequence.next += bytes;
  if (sequence.next != stored.bytes) return;
  check_crc(stored, sequence.crc, files_);
  sequence.compared = true;
}

// For a record that is read out of order: once from its beginning to its end.
void PieceStore::compare_record(std::size_t record) {
  const StoredRecord& stored = records_[record];
  std::vector<std::byte> part(static_cast<std::size_t>(
      std::min<std::uint64_t>(stored.bytes, static_cast<std::uint64_t>(window_bytes))));
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < stored.bytes;) {
    const auto bytes =
        static_cast<std::size_t>(std::min<std::uint64_t>(stored.bytes - at, part.size()));
    files_.read(stored.file, stored.offset + at, part.data(), bytes);
    crc = crc32(crc, part.data(), bytes);
    at += bytes;
  }
  check_crc(stored, crc, files_);
  sequences_[record].compared = true;
}

// A box to copy. Its dimensions are in the order of the record, the largest step first.
struct PieceStore::Copy {
  struct Dimension {
    std::int64_t size = 1, source = 0, target = 0;  // steps in elements
    std::int64_t count = 1, span = 1;               // of this dimension and those inside it
  };
  std::size_t record = 0;
  std::int64_t element = 1;  // bytes
  std::vector<Dimension> dimensions;

  void add(std::int64_t size, std::int64_t source, std::int64_t target) {
    if (size > 1) dimensions.push_back({size, source, target, 1, 1});
  }
  void prepare() {
    std::stable_sort(dimensions.begin(), dimensions.end(),
                     [](const Dimension& a, const Dimension& b) { return a.source > b.source; });
    std::vector<Dimension> merged;
    for (const Dimension& next : dimensions) {
      if (!merged.empty() && merged.back().source == next.source * next.size &&
          merged.back().target == next.target * next.size) {
        merged.back() = {merged.back().size * next.size, next.source, next.target, 1, 1};
      } else {
        merged.push_back(next);
      }
    }
    dimensions = std::move(merged);
    std::int64_t count = 1;
    std::int64_t span = 1;
    for (auto d = dimensions.rbegin(); d != dimensions.rend(); ++d) {
      count *= d->size;
      span += (d->size - 1) * d->source;
      d->count = count;
      d->span = span;
    }
  }
  // Copies from memory that holds the span of dimension `d` and those inside it.
  void scatter(std::size_t d, const std::byte* source, std::byte* target) const {
    const auto size = static_cast<std::size_t>(element);
    if (d == dimensions.size()) {
      std::memcpy(target, source, size);
      return;
    }
    const Dimension& dimension = dimensions[d];
    if (d + 1 == dimensions.size() && dimension.source == 1 && dimension.target == 1) {
      std::memcpy(target, source, size * static_cast<std::size_t>(dimension.size));
      return;
    }
    for (std::int64_t i = 0; i < dimension.size; ++i) {
      scatter(d + 1, source + i * dimension.source * element,
              target + i * dimension.target * element);
    }
  }
};

void PieceStore::copy(Copy& plan, std::size_t d, std::int64_t source, std::byte* data) {
  const auto read = [&](std::int64_t elements, std::byte* to) {
    read_record(plan.record, static_cast<std::uint64_t>(source * plan.element), to,
                static_cast<std::size_t>(elements * plan.element));
  };
  if (d == plan.dimensions.size()) return read(1, data);
  const Copy::Dimension& dimension = plan.dimensions[d];
  const bool innermost = d + 1 == plan.dimensions.size();
  if (innermost && dimension.source == 1 && dimension.target == 1) {
    return read(dimension.size, data);
  }
  if (dimension.span * plan.element <= window_bytes &&
      dimension.span <= sparsest * dimension.count) {
    window_.resize(static_cast<std::size_t>(window_bytes));
    read(dimension.span, window_.data());
    return plan.scatter(d, window_.data(), data);
  }
  if (innermost && dimension.source <= sparsest) {  // too long for one window
    const std::int64_t step =
        std::max<std::int64_t>(1, window_bytes / (plan.element * (dimension.source + 1)));
    Copy part = plan;
    for (std::int64_t i = 0; i < dimension.size; i += step) {
      Copy::Dimension& piece = part.dimensions[d];
      piece.size = piece.count = std::min(step, dimension.size - i);
      piece.span = (piece.size - 1) * piece.source + 1;
      copy(part, d, source + i * dimension.source, data + i * dimension.target * plan.element);
    }
    return;
  }
  for (std::int64_t i = 0; i < dimension.size; ++i) {
    copy(plan, d + 1, source + i * dimension.source, data + i * dimension.target * plan.element);
  }
}

void PieceStore::copy_box(const PiecedTensor& tensor, const Box& box, std::byte* data) {
  const std::vector<std::int64_t> targets = row_major_strides(box.sizes);
  Box shared;
  for (const Piece& piece : tensor.pieces) {
    if (!intersect(box, piece.box, shared)) continue;
    Copy plan{piece.record, tensor.stored->bits / 8, {}};
    std::int64_t source = piece.first;
    std::int64_t target = 0;
    for (std::size_t d = 0; d < box.sizes.size(); ++d) {
      source += (shared.offsets[d] - piece.box.offsets[d]) * piece.strides[d];
      target += (shared.offsets[d] - box.offsets[d]) * targets[d];
      plan.add(shared.sizes[d], piece.strides[d], targets[d]);
    }
    plan.prepare();
    copy(plan, 0, source, data + target * plan.element);
  }
}

void PieceStore::read(std::size_t tensor, std::int64_t first, std::int64_t count, std::byte* data) {
  const PiecedTensor& from = tensors_[tensor];
  const std::int64_t all = volume(from.shape);
  TESSERA_REQUIRE(first >= 0 && count >= 0 && first <= all && count <= all - first,
                  "elements [{}, {}) are not in a tensor of {}", first, first + count, all);
  const auto element = static_cast<std::int64_t>(from.stored->bits / 8);
  for_each_box(from.shape, first, count, [&](const Box& box) {
    copy_box(from, box, data);
    data += volume(box.sizes) * element;
  });
}

double PieceStore::number(std::size_t tensor) {
  const PiecedTensor& from = tensors_[tensor];
  TESSERA_CHECK(volume(from.shape) == 1 && from.stored->dtype.has_value(), ErrorCode::checkpoint,
                "{}: a number has the shape {} and dtype {}", where(tensor),
                describe_shape(from.shape), from.stored->name);
  alignas(8) std::byte raw[8] = {};
  read(tensor, 0, 1, raw);
  const auto as = [&](auto value) {
    std::memcpy(&value, raw, sizeof value);
    return value;
  };
  switch (*from.stored->dtype) {
    case DType::float32:
      return as(float{});
    case DType::float64:
      return as(double{});
    case DType::bfloat16:
      return to_float(as(BFloat16{}));
    case DType::float16:
      return to_float(as(Float16{}));
    case DType::int32:
      return as(std::int32_t{});
    case DType::int64:
      return static_cast<double>(as(std::int64_t{}));
    case DType::uint8:
    case DType::boolean:
      return as(std::uint8_t{});
  }
  return 0;
}

std::vector<std::string> PieceStore::verify(const std::vector<TensorInfo>& names,
                                            const std::vector<std::size_t>& tensors,
                                            const std::function<void(std::uint64_t)>& progress) {
  std::vector<std::string> damage;
  std::vector<std::string> holds(records_.size());  // the tensor in each record, for the message
  std::vector<bool> used(records_.size(), false);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (const Piece& piece : tensors_[tensors[i]].pieces) {
      used[piece.record] = true;
      if (holds[piece.record].empty()) holds[piece.record] = names[i].name;
    }
  }
  window_.resize(static_cast<std::size_t>(window_bytes));
  for (std::size_t r = 0; r < records_.size(); ++r) {
    if (!used[r]) continue;
    const StoredRecord& record = records_[r];
    std::uint32_t crc = 0;
    try {
      for (std::uint64_t at = 0; at < record.bytes;) {
        const auto bytes = static_cast<std::size_t>(
            std::min<std::uint64_t>(record.bytes - at, static_cast<std::uint64_t>(window_bytes)));
        files_.read(record.file, record.offset + at, window_.data(), bytes);
        crc = crc32(crc, window_.data(), bytes);
        at += bytes;
        if (progress) progress(bytes);
      }
    } catch (const Error& error) {
      damage.push_back(fmt::format("{} (tensor {})", error.what(), shown(holds[r])));
      continue;
    }
    if (record.crc != 0 && record.crc != crc) {
      damage.push_back(fmt::format(
          "'{}': bytes {} to {}, record {} of tensor {}: the checksum is "
          "{:08x}, not {:08x}",
          files_.path(record.file).string(), record.offset, record.offset + record.bytes,
          shown(record.name), shown(holds[r]), crc, record.crc));
    }
  }
  return damage;
}

PiecedSource::PiecedSource(PieceStore store, Contents contents, std::vector<std::size_t> order)
    : store_(std::move(store)), contents_(std::move(contents)), order_(std::move(order)) {
  for (std::size_t i = 0; i < order_.size(); ++i) {
    contents_.tensors[i].where = store_.where(order_[i]);
  }
}

void PiecedSource::read(std::size_t tensor, std::int64_t first, std::int64_t count,
                        std::byte* data) {
  store_.read(order_.at(tensor), first, count, data);
}

std::vector<std::string> PiecedSource::verify(const std::function<void(std::uint64_t)>& progress) {
  return store_.verify(contents_.tensors, order_, progress);
}

}  // namespace tessera::checkpoint::formats
