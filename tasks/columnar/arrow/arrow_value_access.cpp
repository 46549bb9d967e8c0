// The values of rows that have been read.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tasks/columnar/arrow/arrow_values.h"

namespace tessera::tasks {

bool ArrowValues::is_null(std::int64_t i) const {
  if (!null_.empty() && null_[static_cast<std::size_t>(i)]) return true;
  return dictionary_ != nullptr && dictionary_->is_null(integers_[static_cast<std::size_t>(i)]);
}

std::string_view ArrowValues::text(std::int64_t i) const {
  const auto at = static_cast<std::size_t>(i);
  if (dictionary_ != nullptr) return dictionary_->text(integers_[at]);
  const auto begin = static_cast<std::size_t>(offsets_[at]);
  return std::string_view(text_).substr(begin, static_cast<std::size_t>(offsets_[at + 1]) - begin);
}

std::int64_t ArrowValues::rows_of_texts(std::int64_t most) const {
  std::int64_t bytes = 0;
  std::int64_t rows = 0;
  while (rows < count_) {
    if (!is_null(rows)) bytes += static_cast<std::int64_t>(text(rows).size());
    if (bytes > most) break;
    ++rows;
  }
  return rows;
}

ArrowValues::Items ArrowValues::items(std::int64_t i) const {
  const auto at = static_cast<std::size_t>(i);
  return {offsets_[at], ends_.empty() ? offsets_[at + 1] : ends_[at]};
}

std::span<const std::int64_t> ArrowValues::integers(std::int64_t i) const {
  const Items list = items(i);
  return std::span(items_->integers_)
      .subspan(static_cast<std::size_t>(list.begin),
               static_cast<std::size_t>(list.end - list.begin));
}

bool ArrowValues::has_null_items(std::int64_t i) const {
  if (items_->null_.empty()) return false;
  const Items list = items(i);
  const auto begin = items_->null_.begin();
  const auto end = begin + static_cast<std::ptrdiff_t>(list.end);
  return std::find(begin + static_cast<std::ptrdiff_t>(list.begin), end, true) != end;
}

nlohmann::ordered_json ArrowValues::json(std::int64_t i) const {
  if (is_null(i)) return nullptr;
  const auto at = static_cast<std::size_t>(i);
  if (dictionary_ != nullptr) return dictionary_->json(integers_[at]);
  switch (field_->kind) {
    case ArrowKind::integer:
      return integers_[at];
    case ArrowKind::boolean:
      return integers_[at] != 0;
    case ArrowKind::floating:
      return floats_[at];
    case ArrowKind::text:
      return std::string(text(i));
    default:
      break;
  }
  if (field_->kind == ArrowKind::structure) {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (const ArrowValues& one : fields_) object[one.field_->name] = one.json(i);
    return object;
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  const Items places = items(i);
  for (std::int64_t k = places.begin; k < places.end; ++k) list.push_back(items_->json(k));
  return list;
}

void ArrowValues::append(const ArrowValues& other) {
  TESSERA_REQUIRE(items_ == nullptr && fields_.empty() && dictionary_ == nullptr &&
                      other.field_->kind == field_->kind,
                  "a dictionary of lists");
  if (!null_.empty() || !other.null_.empty()) {
    null_.resize(static_cast<std::size_t>(count_), false);
    for (std::int64_t i = 0; i < other.count_; ++i) null_.push_back(other.is_null(i));
  }
  count_ += other.count_;
  integers_.insert(integers_.end(), other.integers_.begin(), other.integers_.end());
  floats_.insert(floats_.end(), other.floats_.begin(), other.floats_.end());
  if (offsets_.empty()) return;
  const std::int64_t before = offsets_.back();
  for (std::size_t i = 1; i < other.offsets_.size(); ++i) {
    offsets_.push_back(before + other.offsets_[i]);
  }
  text_ += other.text_;
}

}  // namespace tessera::tasks
