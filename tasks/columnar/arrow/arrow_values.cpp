// Buffers of each type of column. All numbers of a buffer are untrusted.
#include "tasks/columnar/arrow/arrow_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/low_precision.h"

namespace tessera::tasks {
namespace {

// The values of a list, or the texts, of one row.
constexpr std::int64_t longest_value = std::int64_t{1} << 30;
constexpr std::int64_t farthest_place = std::int64_t{1} << 47;  // sums of places do not overflow

// `count` numbers of a buffer from `first` on.
template <class Number>
std::vector<Number> numbers_of(const ArrowBatch& batch, std::size_t buffer, std::int64_t first,
                               std::int64_t count) {
  constexpr auto size = static_cast<std::int64_t>(sizeof(Number));
  // Before the memory is taken: a damaged length must not ask for more than there is.
  const std::int64_t held = batch.bytes(buffer) / size;
  TESSERA_CHECK(first <= held && count <= held - first, ErrorCode::data,
                "{}: a column has fewer values than its batch has rows", batch.what());
  std::vector<Number> numbers(static_cast<std::size_t>(count));
  batch.read(buffer, first * size, numbers.data(), count * size);
  return numbers;
}

// Offsets and lengths have 32 bits, or 64.
std::vector<std::int64_t> signed_numbers_of(const ArrowBatch& batch, std::size_t buffer, bool wide,
                                            std::int64_t first, std::int64_t count) {
  if (wide) return numbers_of<std::int64_t>(batch, buffer, first, count);
  const auto narrow = numbers_of<std::int32_t>(batch, buffer, first, count);
  return {narrow.begin(), narrow.end()};
}

// Offsets `first` to `first + count`, count + 1 numbers that do not fall.
std::vector<std::int64_t> offsets_of(const ArrowBatch& batch, std::size_t buffer, bool wide,
                                     std::int64_t first, std::int64_t count) {
  if (batch.bytes(buffer) == 0 && first == 0 && count == 0) return {0};
  auto offsets = signed_numbers_of(batch, buffer, wide, first, count + 1);
  TESSERA_CHECK(offsets.front() >= 0 && std::is_sorted(offsets.begin(), offsets.end()),
                ErrorCode::data, "{}: the offsets of a column are damaged", batch.what());
  return offsets;
}

struct View {
  std::int32_t length;
  char rest[12];  // the text, or 4 letters of it, the number of a buffer and the place in it
};
static_assert(sizeof(View) == 16);
constexpr std::int32_t longest_inline = 12;

// How many lists have at most `most` values together and lie in a range of at most four times as
// many, which is read for them. Damaged numbers are found when they are read.
std::int64_t fitting_list_views(std::span<const std::int64_t> starts,
                                std::span<const std::int64_t> lengths, std::int64_t most) {
  std::int64_t values = 0, begin = 0, end = 0;
  std::size_t row = 0;
  for (; row < lengths.size(); ++row) {
    const std::int64_t length = std::clamp<std::int64_t>(lengths[row], 0, longest_value);
    if (length == 0) continue;
    const std::int64_t start = std::clamp<std::int64_t>(starts[row], 0, farthest_place);
    if (values == 0) begin = end = start;
    values += length;
    begin = std::min(begin, start);
    end = std::max(end, start + length);
    if (values > most || end - begin > 4 * most) break;
  }
  return static_cast<std::int64_t>(row);
}

void check_rows(const ArrowBatch& batch, std::size_t node, std::int64_t first, std::int64_t count) {
  const std::int64_t length = batch.length(node);
  TESSERA_CHECK(first >= 0 && count >= 0 && first <= length && count <= length - first,
                ErrorCode::data, "{}: a column has {} rows, less than its batch or its lists",
                batch.what(), length);
}

// The column's first buffer in this batch.
std::size_t first_buffer(const ArrowBatch& batch, const ArrowColumn& column) {
  std::size_t buffer = column.buffer;
  for (std::size_t view = 0; view < column.views; ++view) {
    buffer += static_cast<std::size_t>(batch.view_buffers(view));
  }
  return buffer;
}

}  // namespace

namespace {

// Lists of which no row has an item.
bool is_empty_list(const ArrowField& field) {
  return field.kind == ArrowKind::list && !field.index && has_only_nulls(field.children.front());
}

}  // namespace

// The type of what is never there, as members of messages that no row has.
bool has_only_nulls(const ArrowField& field) {
  return field.kind == ArrowKind::other && field.type == "null";
}

bool is_readable(const ArrowField& field) {
  switch (field.kind) {
    case ArrowKind::integer:
    case ArrowKind::floating:
    case ArrowKind::boolean:
    case ArrowKind::text:
      return true;
    case ArrowKind::list:
    case ArrowKind::fixed_list:
      if (field.kind == ArrowKind::fixed_list && field.list_size == 0) return false;
      return !field.index && is_readable(field.children.front());
    case ArrowKind::structure:
      return !field.index &&
             std::all_of(field.children.begin(), field.children.end(), [](const ArrowField& one) {
               return is_readable(one) || has_only_nulls(one) || is_empty_list(one);
             });
    case ArrowKind::other:
      break;
  }
  return false;
}

void ArrowValues::read_validity(const ArrowBatch& batch, std::size_t node, std::size_t buffer,
                                std::int64_t first) {
  check_rows(batch, node, first, count_);
  if (batch.bytes(buffer) == 0 || count_ == 0) return;  // no nulls
  const std::int64_t begin = first / 8;
  const auto bits =
      numbers_of<unsigned char>(batch, buffer, begin, (first + count_ - 1) / 8 - begin + 1);
  null_.resize(static_cast<std::size_t>(count_), false);
  for (std::int64_t i = 0; i < count_; ++i) {
    const std::int64_t bit = first + i;
    const bool valid = ((bits[static_cast<std::size_t>(bit / 8 - begin)] >> (bit % 8)) & 1) != 0;
    if (!valid) null_[static_cast<std::size_t>(i)] = true;
  }
}

void ArrowValues::read_integers(const ArrowBatch& batch, std::size_t buffer, int bits,
                                bool is_signed, std::int64_t first) {
  const auto take = [&]<class Number>(Number) {
    const auto numbers = numbers_of<Number>(batch, buffer, first, count_);
    if constexpr (std::is_same_v<Number, std::uint64_t>) {
      for (const Number number : numbers) {
        TESSERA_CHECK(std::in_range<std::int64_t>(number), ErrorCode::data,
                      "{}: the whole number {} is too large", batch.what(), number);
      }
    }
    integers_.assign(numbers.begin(), numbers.end());
  };
  if (bits == 8) return is_signed ? take(std::int8_t{}) : take(std::uint8_t{});
  if (bits == 16) return is_signed ? take(std::int16_t{}) : take(std::uint16_t{});
  if (bits == 32) return is_signed ? take(std::int32_t{}) : take(std::uint32_t{});
  return is_signed ? take(std::int64_t{}) : take(std::uint64_t{});
}

void ArrowValues::read_floats(const ArrowBatch& batch, std::size_t buffer, std::int64_t first) {
  if (field_->bits == 64) {
    floats_ = numbers_of<double>(batch, buffer, first, count_);
  } else if (field_->bits == 32) {
    const auto numbers = numbers_of<float>(batch, buffer, first, count_);
    floats_.assign(numbers.begin(), numbers.end());
  } else {
    for (const std::uint16_t bits : numbers_of<std::uint16_t>(batch, buffer, first, count_)) {
      floats_.push_back(static_cast<double>(to_float(Float16{bits})));
    }
  }
}

void ArrowValues::read_bits(const ArrowBatch& batch, std::size_t buffer, std::int64_t first) {
  if (count_ == 0) return;
  const std::int64_t begin = first / 8;
  const auto bits =
      numbers_of<unsigned char>(batch, buffer, begin, (first + count_ - 1) / 8 - begin + 1);
  for (std::int64_t bit = first; bit < first + count_; ++bit) {
    integers_.push_back((bits[static_cast<std::size_t>(bit / 8 - begin)] >> (bit % 8)) & 1);
  }
}

void ArrowValues::read_text(const ArrowBatch& batch, std::size_t buffer, std::int64_t first) {
  offsets_ = offsets_of(batch, buffer, field_->wide, first, count_);
  const std::int64_t begin = offsets_.front();
  const std::int64_t bytes = offsets_.back() - begin;
  TESSERA_CHECK(offsets_.back() <= batch.bytes(buffer + 1), ErrorCode::data,
                "{}: a text ends behind its buffer", batch.what());
  text_.resize(static_cast<std::size_t>(bytes));
  batch.read(buffer + 1, begin, text_.data(), bytes);
  for (std::int64_t& offset : offsets_) offset -= begin;
}

void ArrowValues::read_views(const ArrowBatch& batch, const ArrowColumn& column,
                             std::int64_t first) {
  const std::int64_t buffers = batch.view_buffers(column.views);
  const std::size_t at = first_buffer(batch, column) + 1;
  const auto views = numbers_of<View>(batch, at, first, count_);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (!is_null(static_cast<std::int64_t>(i))) bytes += views[i].length;
    TESSERA_CHECK(views[i].length >= 0, ErrorCode::data, "{}: a text of {} bytes", batch.what(),
                  views[i].length);
  }
  // Before the memory is taken: many views may share the bytes of a small file.
  TESSERA_CHECK(bytes <= longest_value, ErrorCode::data,
                "{}: texts of views have {} bytes together, and at most {} are read", batch.what(),
                bytes, longest_value);
  offsets_.push_back(0);
  for (const View& view : views) {
    if (is_null(static_cast<std::int64_t>(offsets_.size()) - 1)) {
      // The view of a null has undefined contents.
    } else if (view.length <= longest_inline) {
      text_.append(view.rest, static_cast<std::size_t>(view.length));
    } else {
      std::int32_t place[2];
      std::memcpy(place, view.rest + 4, sizeof(place));
      TESSERA_CHECK(place[0] >= 0 && place[0] < buffers && place[1] >= 0, ErrorCode::data,
                    "{}: a text is in a buffer that its column does not have", batch.what());
      const std::size_t buffer = at + 1 + static_cast<std::size_t>(place[0]);
      TESSERA_CHECK(
          place[1] <= batch.bytes(buffer) && view.length <= batch.bytes(buffer) - place[1],
          ErrorCode::data, "{}: a text ends behind its buffer", batch.what());
      const std::size_t held = text_.size();
      text_.resize(held + static_cast<std::size_t>(view.length));
      batch.read(buffer, place[1], text_.data() + held, view.length);
    }
    offsets_.push_back(static_cast<std::int64_t>(text_.size()));
  }
}

void ArrowValues::read_list(const ArrowBatch& batch, const ArrowColumn& column, std::int64_t first,
                            const Dictionaries& dictionaries) {
  const bool fixed = field_->kind == ArrowKind::fixed_list;
  const std::int64_t size = field_->list_size;
  if (!fixed) {
    const std::size_t buffer = first_buffer(batch, column) + 1;
    offsets_ = offsets_of(batch, buffer, field_->wide, first, count_);
  }
  TESSERA_CHECK(!fixed || first + count_ <= std::numeric_limits<std::int64_t>::max() / size - 1,
                ErrorCode::data, "{}: lists of {} values", batch.what(), size);
  const std::int64_t begin = fixed ? first * size : offsets_.front();
  const std::int64_t items = fixed ? count_ * size : offsets_.back() - begin;
  // This checks that there are so many values, before memory is taken for the places of lists.
  items_ = std::make_unique<ArrowValues>(read(batch, items_of(column), begin, items, dictionaries));
  for (std::int64_t i = 0; fixed && i <= count_; ++i) offsets_.push_back(begin + i * size);
  for (std::int64_t& offset : offsets_) offset -= begin;
}

// The lists of rows may lie in any order, overlap, or leave values out.
void ArrowValues::read_list_views(const ArrowBatch& batch, const ArrowColumn& column,
                                  std::int64_t first, const Dictionaries& dictionaries) {
  const std::size_t buffer = first_buffer(batch, column) + 1;
  offsets_ = signed_numbers_of(batch, buffer, field_->wide, first, count_);
  ends_ = signed_numbers_of(batch, buffer + 1, field_->wide, first, count_);
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  std::int64_t end = 0;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    // The list of a null may have any place, and so may an empty one.
    if (is_null(static_cast<std::int64_t>(i)) || ends_[i] == 0) offsets_[i] = ends_[i] = 0;
    TESSERA_CHECK(offsets_[i] >= 0 && ends_[i] >= 0 &&
                      ends_[i] <= std::numeric_limits<std::int64_t>::max() - offsets_[i],
                  ErrorCode::data, "{}: the offsets of a column are damaged", batch.what());
    if (ends_[i] == 0) continue;
    ends_[i] += offsets_[i];
    begin = std::min(begin, offsets_[i]);
    end = std::max(end, ends_[i]);
  }
  begin = std::min(begin, end);
  TESSERA_CHECK(end - begin <= longest_value, ErrorCode::data,
                "{}: lists of views lie in a range of {} values, and at most {} are read",
                batch.what(), end - begin, longest_value);
  items_ = std::make_unique<ArrowValues>(
      read(batch, items_of(column), begin, end - begin, dictionaries));
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    if (ends_[i] == 0) continue;
    offsets_[i] -= begin;
    ends_[i] -= begin;
  }
}

void ArrowValues::read_fields(const ArrowBatch& batch, const ArrowColumn& column,
                              std::int64_t first, const Dictionaries& dictionaries) {
  for (const ArrowColumn& one : fields_of(column)) {
    fields_.push_back(read(batch, one, first, count_, dictionaries));
  }
}

void ArrowValues::check_indices(const ArrowBatch& batch) const {
  for (std::int64_t i = 0; i < count_; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t index = integers_[at];
    const bool null = !null_.empty() && null_[at];
    TESSERA_CHECK(null || (index >= 0 && index < dictionary_->count()), ErrorCode::data,
                  "{}: the index {} of a dictionary of {}", batch.what(), index,
                  dictionary_->count());
  }
}

ArrowValues ArrowValues::read(const ArrowBatch& batch, const ArrowColumn& column,
                              std::int64_t first, std::int64_t count,
                              const Dictionaries& dictionaries) {
  ArrowValues values;
  values.field_ = column.field;
  values.count_ = count;
  if (has_only_nulls(*column.field)) {  // without a buffer, not even for what is there
    check_rows(batch, column.node, first, count);
    values.null_.assign(static_cast<std::size_t>(count), true);
    return values;
  }
  const std::size_t buffer = first_buffer(batch, column);
  values.read_validity(batch, column.node, buffer, first);
  for (const ArrowColumn& parent : column.parents) {
    ArrowValues around;
    around.count_ = count;
    around.read_validity(batch, parent.node, first_buffer(batch, parent), first);
    if (around.null_.empty()) continue;
    values.null_.resize(static_cast<std::size_t>(count), false);
    for (std::size_t i = 0; i < around.null_.size(); ++i) {
      if (around.null_[i]) values.null_[i] = true;
    }
  }
  const ArrowField& field = *column.field;
  if (field.index) {
    const auto known = dictionaries.find(field.index->dictionary);
    TESSERA_CHECK(known != dictionaries.end(), ErrorCode::data,
                  "{}: column {} comes before its dictionary", batch.what(), field.name);
    values.dictionary_ = &known->second;
    values.read_integers(batch, buffer + 1, field.index->bits, field.index->is_signed, first);
    values.check_indices(batch);
    return values;
  }
  switch (field.kind) {
    case ArrowKind::integer:
      values.read_integers(batch, buffer + 1, field.bits, field.is_signed, first);
      break;
    case ArrowKind::floating:
      values.read_floats(batch, buffer + 1, first);
      break;
    case ArrowKind::boolean:
      values.read_bits(batch, buffer + 1, first);
      break;
    case ArrowKind::text:
      if (field.view) {
        values.read_views(batch, column, first);
      } else {
        values.read_text(batch, buffer + 1, first);
      }
      break;
    case ArrowKind::list:
    case ArrowKind::fixed_list:
      if (field.view) {
        values.read_list_views(batch, column, first, dictionaries);
      } else {
        values.read_list(batch, column, first, dictionaries);
      }
      break;
    case ArrowKind::structure:
      values.read_fields(batch, column, first, dictionaries);
      break;
    case ArrowKind::other:
      fail(ErrorCode::data, "{}: column {} is of the type {}, which is not read", batch.what(),
           field.name, field.type);
  }
  return values;
}

std::int64_t ArrowValues::fitting_rows(const ArrowBatch& batch, const ArrowColumn& column,
                                       std::int64_t first, std::int64_t count, std::int64_t most) {
  const ArrowField& field = *column.field;
  check_rows(batch, column.node, first, count);
  if (field.index) return std::max<std::int64_t>(count, 1);
  const std::size_t buffer = first_buffer(batch, column);
  if (field.kind == ArrowKind::list || field.kind == ArrowKind::fixed_list) {
    most /= static_cast<std::int64_t>(sizeof(std::int64_t));
  }
  const bool has_offsets =
      (field.kind == ArrowKind::list || field.kind == ArrowKind::text) && !field.view;
  std::int64_t fitting = count;
  std::int64_t largest = 0;  // of the first row
  if (has_offsets && count > 0) {
    const auto offsets = offsets_of(batch, buffer + 1, field.wide, first, count);
    const auto behind = std::upper_bound(
        offsets.begin(), offsets.end(), most,
        [&](std::int64_t bytes, std::int64_t offset) { return bytes < offset - offsets.front(); });
    fitting = behind - offsets.begin() - 1;
    largest = offsets[1] - offsets[0];
  } else if (field.kind == ArrowKind::fixed_list) {
    fitting = most / std::max<std::int64_t>(field.list_size, 1);
    largest = field.list_size;
  } else if (field.view && field.kind == ArrowKind::list && count > 0) {
    const auto starts = signed_numbers_of(batch, buffer + 1, field.wide, first, count);
    const auto lengths = signed_numbers_of(batch, buffer + 2, field.wide, first, count);
    fitting = fitting_list_views(starts, lengths, most);
    largest = lengths.front();
  } else if (field.view && count > 0) {
    const auto views = numbers_of<View>(batch, buffer + 1, first, count);
    const auto behind = std::find_if(views.begin(), views.end(), [&](const View& view) {
      most -= std::max(view.length, 0);
      return most < 0;
    });
    fitting = behind - views.begin();
  }
  TESSERA_CHECK(largest <= longest_value, ErrorCode::data,
                "{}: a row of column {} has {} bytes or values; a row has at most {}", batch.what(),
                field.name, largest, longest_value);
  return std::clamp<std::int64_t>(fitting, 1, std::max<std::int64_t>(count, 1));
}

}  // namespace tessera::tasks
