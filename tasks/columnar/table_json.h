// The rows of Parquet, Arrow and tar files, and of compressed texts, as a plain file, in which rows
// are found quickly. It is kept beside the data (DerivedFile).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tasks/columnar/derived_file.h"
#include "tasks/columnar/table_files.h"

namespace tessera::tasks {

// An object in each line, with these columns (names, paths with dots, or numbers from 1) under the
// names that are given here. Error(data) with file and row for a null and for a text that is not
// UTF-8.
std::unique_ptr<DerivedFile> make_json_lines(const std::vector<TableFile>& files,
                                             const std::vector<std::string>& columns);

// The text of a compressed file (engine/data/text_reader.h), under the ending of its name.
std::unique_ptr<DerivedFile> decompress_file(const std::string& path);

}  // namespace tessera::tasks
