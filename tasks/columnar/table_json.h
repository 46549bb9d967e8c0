// The rows of Parquet and Arrow files as a file of JSON lines, in which rows are found quickly.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tasks/columnar/derived_file.h"
#include "tasks/columnar/table_files.h"

namespace tessera::tasks {

// An object in each line, with these columns (names, paths with dots, or numbers from 1) under the
// names that are given here. Error(data) with file and row for a null and for a text that is not
// UTF-8. The file is kept beside the data (DerivedFile).
std::unique_ptr<DerivedFile> make_json_lines(const std::vector<TableFile>& files,
                                             const std::vector<std::string>& columns);

}  // namespace tessera::tasks
