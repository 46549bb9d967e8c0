// The columns that an Arrow IPC message of the kind Schema describes.
// Source: format/Schema.fbs and "Columnar Format" of https://arrow.apache.org/docs/format/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/columnar/arrow/flat_table.h"

namespace tessera::tasks {

enum class ArrowKind : std::uint8_t {
  integer,
  floating,
  boolean,
  text,        // utf8, and binary of any bytes
  list,        // with offsets
  fixed_list,  // list_size values each
  structure,
  other,  // a type that is not read, but has a known number of buffers
};

// A column's values are indices into a dictionary that comes in a message of its own.
struct ArrowIndex {
  std::int64_t dictionary = 0;
  int bits = 32;
  bool is_signed = true;
};

struct ArrowField {
  std::string name;
  ArrowKind kind = ArrowKind::other;
  std::string type;  // "list<int32>", for messages
  int bits = 0;      // of an integer or a floating-point number
  bool is_signed = false;
  bool wide = false;  // offsets of 64 bits
  bool view = false;  // of a text: views into several buffers; of a list: lengths beside offsets
  std::int64_t list_size = 0;
  std::size_t buffers = 0;          // of its own in a batch
  std::optional<ArrowIndex> index;  // all else describes the values of the dictionary
  std::vector<ArrowField> children;
};

// A column in the flat lists of a batch.
struct ArrowColumn {
  const ArrowField* field = nullptr;
  std::size_t node = 0;
  std::size_t buffer = 0;            // without the buffers of the texts of views before it
  std::size_t views = 0;             // the number of text views before it
  std::vector<ArrowColumn> parents;  // structs around it, whose nulls are nulls of the column
};

struct ArrowSchema {
  std::vector<ArrowField> fields;
};

// Throws Error(data) that begins with `what`: damaged, big endian, too deep.
ArrowSchema read_arrow_schema(const FlatTable& schema, const std::string& what);

// A column by its name, or by the path of names of structs around it with dots: "meta.text". None
// if there is no such column.
std::optional<ArrowColumn> find_column(const std::vector<ArrowField>& fields,
                                       std::string_view path);
// The names of all columns, for messages.
std::string column_names(const ArrowSchema& schema);

// True for a struct, and for a list of them.
bool has_structs(const ArrowField& field);
// The place of a list's values. `column` is a list.
ArrowColumn items_of(const ArrowColumn& column);
// The places of a struct's fields. `column` is a struct.
std::vector<ArrowColumn> fields_of(const ArrowColumn& column);
}  // namespace tessera::tasks
