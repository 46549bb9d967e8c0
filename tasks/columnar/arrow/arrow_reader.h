// The messages of an Arrow IPC stream: the columns, then dictionaries and batches of rows.
// Source: format/Message.fbs and "Serialization and Interprocess Communication" of
// https://arrow.apache.org/docs/format/Columnar.html.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tasks/columnar/arrow/arrow_batch.h"
#include "tasks/columnar/arrow/arrow_input.h"
#include "tasks/columnar/arrow/arrow_schema.h"
#include "tasks/columnar/arrow/arrow_values.h"

namespace tessera::tasks {

// Reads one stream, up to its end mark. All errors are Error(data) and begin with `what`.
class ArrowReader {
 public:
  // `input` must outlive the reader. With needs_end, an input that ends without the mark is
  // damaged; the mark is optional in files.
  ArrowReader(ArrowInput& input, std::string what, bool needs_end);

  [[nodiscard]] const ArrowSchema& schema() const { return schema_; }
  // The columns whose values will be read: only their dictionaries are kept.
  void choose(const std::vector<ArrowColumn>& columns);
  // Goes to the next batch of rows; false at the end. Values of the batch before must not be used
  // any more.
  bool next();
  [[nodiscard]] const ArrowBatch& batch() const { return *batch_; }
  [[nodiscard]] const ArrowValues::Dictionaries& dictionaries() const { return dictionaries_; }

 private:
  struct Message;
  [[nodiscard]] bool read_message(Message& message);
  void keep_dictionaries_of(const ArrowField& field);
  void take_dictionary(const FlatTable& header, std::unique_ptr<ArrowBytes> body);

  ArrowInput& input_;
  std::string what_;
  bool needs_end_;
  ArrowSchema schema_;
  std::map<std::int64_t, ArrowField> dictionary_fields_;
  ArrowValues::Dictionaries dictionaries_;
  std::optional<ArrowBatch> batch_;
};

}  // namespace tessera::tasks
