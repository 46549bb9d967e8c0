// The values of some rows of a column, copied out of a batch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/columnar/arrow/arrow_batch.h"
#include "tasks/columnar/arrow/arrow_schema.h"

namespace tessera::tasks {

class ArrowValues {
 public:
  // The values of each dictionary by its number.
  using Dictionaries = std::map<std::int64_t, ArrowValues>;

  // Reads `count` values from `first` on. `field` and `dictionaries` must outlive the result.
  // Throws Error(data) that begins with the batch's what(): a type that is not read, sizes that do
  // not fit.
  static ArrowValues read(const ArrowBatch& batch, const ArrowColumn& column, std::int64_t first,
                          std::int64_t count, const Dictionaries& dictionaries);
  // How many rows from `first` on, at most `count` and at least one, have at most so many bytes of
  // texts or of lists, whose values take 8 bytes each. Texts of a dictionary do not count: see
  // rows_of_texts().
  static std::int64_t fitting_rows(const ArrowBatch& batch, const ArrowColumn& column,
                                   std::int64_t first, std::int64_t count, std::int64_t most);

  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] bool is_null(std::int64_t i) const;
  // The text of a row. The column is one of texts.
  [[nodiscard]] std::string_view text(std::int64_t i) const;
  // How many rows, from the first on, have texts of at most so many bytes. The column is one of
  // texts.
  [[nodiscard]] std::int64_t rows_of_texts(std::int64_t most) const;
  // The list of a row. The column is one of lists of whole numbers.
  [[nodiscard]] std::span<const std::int64_t> integers(std::int64_t i) const;
  [[nodiscard]] bool has_null_items(std::int64_t i) const;
  // Any value; a struct is an object with its fields in their order. A text may be no UTF-8.
  [[nodiscard]] nlohmann::ordered_json json(std::int64_t i) const;
  // Appends the values of a dictionary's further batch.
  void append(const ArrowValues& other);

 private:
  void read_validity(const ArrowBatch& batch, std::size_t node, std::size_t buffer,
                     std::int64_t first);
  void read_integers(const ArrowBatch& batch, std::size_t buffer, int bits, bool is_signed,
                     std::int64_t first);
  void read_floats(const ArrowBatch& batch, std::size_t buffer, std::int64_t first);
  void read_bits(const ArrowBatch& batch, std::size_t buffer, std::int64_t first);
  void read_text(const ArrowBatch& batch, std::size_t buffer, std::int64_t first);
  void read_views(const ArrowBatch& batch, const ArrowColumn& column, std::int64_t first);
  void read_list(const ArrowBatch& batch, const ArrowColumn& column, std::int64_t first,
                 const Dictionaries& dictionaries);
  void read_list_views(const ArrowBatch& batch, const ArrowColumn& column, std::int64_t first,
                       const Dictionaries& dictionaries);
  void read_fields(const ArrowBatch& batch, const ArrowColumn& column, std::int64_t first,
                   const Dictionaries& dictionaries);
  // The places of a row's list in items_.
  struct Items {
    std::int64_t begin, end;
  };
  [[nodiscard]] Items items(std::int64_t i) const;
  void check_indices(const ArrowBatch& batch) const;

  const ArrowField* field_ = nullptr;
  const ArrowValues* dictionary_ = nullptr;  // integers_ are indices into it
  std::int64_t count_ = 0;
  std::vector<bool> null_;             // empty: none
  std::vector<std::int64_t> offsets_;  // of texts and lists, from 0; count + 1, or count of views
  std::vector<std::int64_t> ends_;     // of views of lists
  std::string text_;
  std::vector<std::int64_t> integers_;  // of booleans as well
  std::vector<double> floats_;
  std::unique_ptr<ArrowValues> items_;  // of lists
  std::vector<ArrowValues> fields_;     // of structs
};

bool has_only_nulls(const ArrowField& field);
// True for a type that ArrowValues reads and, if it is a list or a struct, those of its values.
// Fields of a struct may be of nulls only, or lists of them.
bool is_readable(const ArrowField& field);

}  // namespace tessera::tasks
