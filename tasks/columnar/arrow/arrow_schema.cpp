// Types of Arrow, and the places of columns in a batch.
#include "tasks/columnar/arrow/arrow_schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>

#include "base/error.h"

namespace tessera::tasks {
namespace {

constexpr int deepest_field = 32;
constexpr std::size_t most_fields = 100'000;  // tables may be shared, so bytes do not limit them

// The numbers of the union Type of Schema.fbs.
enum class FlatType : std::uint8_t {
  null = 1,
  integer = 2,
  floating = 3,
  binary = 4,
  utf8 = 5,
  boolean = 6,
  decimal = 7,
  date = 8,
  time = 9,
  timestamp = 10,
  interval = 11,
  list = 12,
  structure = 13,
  sum = 14,
  fixed_binary = 15,
  fixed_list = 16,
  map = 17,
  duration = 18,
  large_binary = 19,
  large_utf8 = 20,
  large_list = 21,
  run_end = 22,
  binary_view = 23,
  utf8_view = 24,
  list_view = 25,
  large_list_view = 26,
};

// Types that differ in nothing else.
struct PlainType {
  FlatType type;
  ArrowKind kind;
  const char* name;
  std::size_t buffers;
  bool wide = false;
  bool view = false;
};
constexpr PlainType plain_types[] = {
    {FlatType::null, ArrowKind::other, "null", 0},
    {FlatType::binary, ArrowKind::text, "binary", 3},
    {FlatType::utf8, ArrowKind::text, "string", 3},
    {FlatType::boolean, ArrowKind::boolean, "bool", 2},
    {FlatType::decimal, ArrowKind::other, "decimal", 2},
    {FlatType::date, ArrowKind::other, "date", 2},
    {FlatType::time, ArrowKind::other, "time", 2},
    {FlatType::timestamp, ArrowKind::other, "timestamp", 2},
    {FlatType::interval, ArrowKind::other, "interval", 2},
    {FlatType::list, ArrowKind::list, "list", 2},
    {FlatType::structure, ArrowKind::structure, "struct", 1},
    {FlatType::fixed_binary, ArrowKind::other, "fixed_size_binary", 2},
    {FlatType::fixed_list, ArrowKind::fixed_list, "fixed_size_list", 1},
    {FlatType::map, ArrowKind::other, "map", 2},
    {FlatType::duration, ArrowKind::other, "duration", 2},
    {FlatType::large_binary, ArrowKind::text, "large_binary", 3, true},
    {FlatType::large_utf8, ArrowKind::text, "large_string", 3, true},
    {FlatType::large_list, ArrowKind::list, "large_list", 2, true},
    {FlatType::run_end, ArrowKind::other, "run_end_encoded", 0},
    {FlatType::binary_view, ArrowKind::text, "binary_view", 2, false, true},
    {FlatType::utf8_view, ArrowKind::text, "string_view", 2, false, true},
    {FlatType::list_view, ArrowKind::list, "list_view", 3, false, true},
    {FlatType::large_list_view, ArrowKind::list, "large_list_view", 3, true, true},
};

class SchemaReader {
 public:
  explicit SchemaReader(const std::string& what) : what_(what) {}

  std::vector<ArrowField> fields(const FlatTable& parent, std::size_t field, int depth) {
    const FlatVector tables = parent.vector(field, 4);
    TESSERA_CHECK(depth <= deepest_field && tables.count <= most_fields - seen_, ErrorCode::data,
                  "{}: more than {} columns, or columns nested deeper than {}", what_, most_fields,
                  deepest_field);
    seen_ += tables.count;
    std::vector<ArrowField> fields;
    for (std::size_t i = 0; i < tables.count; ++i) {
      fields.push_back(this->field(parent.element(tables, i), depth));
    }
    return fields;
  }

 private:
  ArrowField field(const FlatTable& table, int depth) {
    ArrowField field;
    field.name = table.text(0);
    field.children = fields(table, 5, depth + 1);
    set_type(field, static_cast<FlatType>(table.number<std::uint8_t>(2, 0)), table.table(3));
    const std::size_t children = field.children.size();
    const bool list = field.kind == ArrowKind::list || field.kind == ArrowKind::fixed_list;
    const bool sound = list ? children == 1 : field.kind != ArrowKind::text || children == 0;
    TESSERA_CHECK(sound, ErrorCode::data, "{}: column {} of type {} has {} columns inside", what_,
                  field.name, field.type, children);
    if (list) field.type += "<" + field.children.front().type + ">";
    if (const auto dictionary = table.table(4)) {
      field.index = ArrowIndex{dictionary->number<std::int64_t>(0, 0)};
      if (const auto index = dictionary->table(1)) {
        field.index->bits = index->number<std::int32_t>(0, 0);
        field.index->is_signed = index->number<std::uint8_t>(1, 0) != 0;
        check_bits(field.index->bits);
      }
    }
    return field;
  }

  void check_bits(int bits) const {
    TESSERA_CHECK(bits == 8 || bits == 16 || bits == 32 || bits == 64, ErrorCode::data,
                  "{}: a number of {} bits", what_, bits);
  }

  void set_type(ArrowField& field, FlatType type, const std::optional<FlatTable>& details) {
    if (type == FlatType::integer && details) {
      field.kind = ArrowKind::integer;
      field.bits = details->number<std::int32_t>(0, 0);
      field.is_signed = details->number<std::uint8_t>(1, 0) != 0;
      field.buffers = 2;
      check_bits(field.bits);
      field.type = fmt::format("{}int{}", field.is_signed ? "" : "u", field.bits);
      return;
    }
    if (type == FlatType::floating && details) {
      const auto precision = details->number<std::int16_t>(0, 0);
      TESSERA_CHECK(precision >= 0 && precision <= 2, ErrorCode::data,
                    "{}: floating-point numbers of precision {}", what_, precision);
      field.kind = ArrowKind::floating;
      field.bits = 16 << precision;
      field.buffers = 2;
      field.type = fmt::format("float{}", field.bits);
      return;
    }
    if (type == FlatType::sum && details) {
      field.type = "union";
      field.buffers = details->number<std::int16_t>(0, 0) == 0 ? 1 : 2;  // sparse, dense
      return;
    }
    for (const PlainType& plain : plain_types) {
      if (plain.type != type) continue;
      field.kind = plain.kind;
      field.type = plain.name;
      field.buffers = plain.buffers;
      field.wide = plain.wide;
      field.view = plain.view;
      if (type == FlatType::fixed_list && details) {
        field.list_size = details->number<std::int32_t>(0, 0);
        TESSERA_CHECK(field.list_size >= 0, ErrorCode::data, "{}: lists of {} values", what_,
                      field.list_size);
      }
      return;
    }
    fail(ErrorCode::data, "{}: column {} has the type number {}, which this version does not know",
         what_, field.name, static_cast<int>(type));
  }

  const std::string& what_;
  std::size_t seen_ = 0;
};

// Goes over a column and those inside it.
void pass(const ArrowField& field, ArrowColumn& at) {
  ++at.node;
  if (field.index) {
    at.buffer += 2;
    return;
  }
  at.buffer += field.buffers;
  at.views += field.kind == ArrowKind::text && field.view ? 1 : 0;
  for (const ArrowField& child : field.children) pass(child, at);
}

std::optional<ArrowColumn> find_from(const std::vector<ArrowField>& fields, std::string_view path,
                                     ArrowColumn at) {
  // A name may have dots itself, so a whole name goes first.
  ArrowColumn place = at;
  for (const ArrowField& field : fields) {
    if (field.name == path) {
      place.field = &field;
      return place;
    }
    pass(field, place);
  }
  for (const ArrowField& field : fields) {
    const bool inside = field.kind == ArrowKind::structure && !field.index &&
                        path.size() > field.name.size() && path.starts_with(field.name) &&
                        path[field.name.size()] == '.';
    if (inside) {
      ArrowColumn inner = at;
      inner.field = &field;
      inner.parents.clear();
      ArrowColumn next = at;
      next.parents.push_back(inner);
      ++next.node;
      next.buffer += field.buffers;
      auto found = find_from(field.children, path.substr(field.name.size() + 1), next);
      if (found) return found;
    }
    pass(field, at);
  }
  return std::nullopt;
}

}  // namespace

ArrowSchema read_arrow_schema(const FlatTable& schema, const std::string& what) {
  TESSERA_CHECK(schema.number<std::int16_t>(0, 0) == 0, ErrorCode::data,
                "{} is big endian; write it on a little-endian machine", what);
  return {SchemaReader(what).fields(schema, 1, 0)};
}

std::optional<ArrowColumn> find_column(const std::vector<ArrowField>& fields,
                                       std::string_view path) {
  return find_from(fields, path, {});
}

std::string column_names(const ArrowSchema& schema) {
  constexpr std::size_t most = 20;
  std::vector<std::string> names;
  for (const ArrowField& field : schema.fields) {
    if (names.size() == most) {
      names.emplace_back("...");
      break;
    }
    names.push_back(field.name);
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

bool has_structs(const ArrowField& field) {
  return field.kind == ArrowKind::structure ||
         std::any_of(field.children.begin(), field.children.end(), has_structs);
}

std::vector<ArrowColumn> fields_of(const ArrowColumn& column) {
  ArrowColumn place = column;
  place.parents.clear();
  ++place.node;
  place.buffer += column.field->buffers;
  std::vector<ArrowColumn> fields;
  for (const ArrowField& field : column.field->children) {
    place.field = &field;
    fields.push_back(place);
    pass(field, place);
  }
  return fields;
}

ArrowColumn items_of(const ArrowColumn& column) {
  ArrowColumn items = column;
  items.parents.clear();
  items.field = &column.field->children.front();
  ++items.node;
  items.buffer += column.field->buffers;
  return items;
}

}  // namespace tessera::tasks
