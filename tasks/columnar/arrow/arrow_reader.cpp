// Frames of messages, and what each kind of message does.
#include "tasks/columnar/arrow/arrow_reader.h"

#include <utility>

#include "base/error.h"

namespace tessera::tasks {
namespace {

constexpr std::uint32_t message_mark = 0xffffffff;
constexpr std::int32_t longest_description = 64 << 20;
constexpr std::int16_t only_version = 4;  // V5, of Arrow 1.0 (2020)

// The union MessageHeader of Message.fbs.
constexpr std::uint8_t schema_header = 1;
constexpr std::uint8_t dictionary_header = 2;
constexpr std::uint8_t batch_header = 3;

}  // namespace

struct ArrowReader::Message {
  std::string bytes;
  std::uint8_t kind = 0;
  std::optional<FlatTable> header;
  std::unique_ptr<ArrowBytes> body;
};

ArrowReader::ArrowReader(ArrowInput& input, std::string what, bool needs_end)
    : input_(input), what_(std::move(what)), needs_end_(needs_end) {
  Message message;
  const bool any = read_message(message);
  TESSERA_CHECK(any && message.kind == schema_header, ErrorCode::data,
                "{} does not begin with its columns; it is not an Arrow file or stream", what_);
  schema_ = read_arrow_schema(*message.header, what_);
}

bool ArrowReader::read_message(Message& message) {
  std::uint32_t mark = 0;
  std::int32_t size = 0;
  const std::size_t got = input_.read(&mark, sizeof(mark));
  TESSERA_CHECK(got == sizeof(mark) || (got == 0 && !needs_end_), ErrorCode::data,
                "{} is cut off: it ends before its end mark", what_);
  if (got == 0) return false;
  TESSERA_CHECK(mark == message_mark, ErrorCode::data,
                "{}: no message of Arrow IPC where one must begin; the file is damaged, or was "
                "written before Arrow 0.15",
                what_);
  const bool whole = input_.read(&size, sizeof(size)) == sizeof(size);
  if (whole && size == 0) return false;
  TESSERA_CHECK(whole && size > 0 && size <= longest_description, ErrorCode::data,
                "{} is cut off, or a message of it is damaged", what_);
  message.bytes.resize(static_cast<std::size_t>(size));
  TESSERA_CHECK(input_.read(message.bytes.data(), message.bytes.size()) == message.bytes.size(),
                ErrorCode::data, "{} is cut off within the description of a batch", what_);
  const FlatTable table(message.bytes, what_);
  const auto version = table.number<std::int16_t>(0, 0);
  TESSERA_CHECK(version == only_version, ErrorCode::data,
                "{}: a message of Arrow's format V{}, and this version reads V5; write it again "
                "with Arrow 1.0 or newer",
                what_, version + 1);
  message.kind = table.number<std::uint8_t>(1, 0);
  message.header = table.table(2);
  const auto body = table.number<std::int64_t>(3, 0);
  TESSERA_CHECK(message.header && body >= 0, ErrorCode::data, "{}: a message is damaged", what_);
  message.body = input_.take(body);
  return true;
}

void ArrowReader::choose(const std::vector<ArrowColumn>& columns) {
  for (const ArrowColumn& column : columns) keep_dictionaries_of(*column.field);
}

void ArrowReader::keep_dictionaries_of(const ArrowField& field) {
  if (field.index) {
    ArrowField values = field;
    values.index.reset();
    dictionary_fields_.emplace(field.index->dictionary, std::move(values));
    return;
  }
  for (const ArrowField& child : field.children) keep_dictionaries_of(child);
}

void ArrowReader::take_dictionary(const FlatTable& header, std::unique_ptr<ArrowBytes> body) {
  const auto id = header.number<std::int64_t>(0, 0);
  const auto field = dictionary_fields_.find(id);
  if (field == dictionary_fields_.end()) return;
  const auto data = header.table(1);
  TESSERA_CHECK(data.has_value(), ErrorCode::data, "{}: a dictionary without values", what_);
  const ArrowBatch batch(*data, std::move(body), what_);
  ArrowColumn column;
  column.field = &field->second;
  ArrowValues values = ArrowValues::read(batch, column, 0, batch.rows(), {});
  const bool more = header.number<std::uint8_t>(2, 0) != 0;
  const auto known = dictionaries_.find(id);
  if (more && known != dictionaries_.end()) {
    known->second.append(values);
  } else {
    dictionaries_.insert_or_assign(id, std::move(values));
  }
}

bool ArrowReader::next() {
  for (;;) {
    Message message;
    if (!read_message(message)) return false;
    if (message.kind == dictionary_header) {
      take_dictionary(*message.header, std::move(message.body));
    } else if (message.kind == batch_header) {
      batch_.emplace(*message.header, std::move(message.body), what_);
      return true;
    } else {
      fail(ErrorCode::data, "{}: a message of the kind {} among its rows", what_, message.kind);
    }
  }
}

}  // namespace tessera::tasks
