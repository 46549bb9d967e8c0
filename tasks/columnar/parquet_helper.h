// A Python with pyarrow that reads Parquet files and sends their rows as Arrow IPC.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tasks/columnar/arrow/arrow_input.h"
#include "tasks/columnar/arrow/arrow_reader.h"

namespace tessera::tasks {

// The program of this environment variable, or python3 of the PATH.
inline constexpr const char* python_variable = "TESSERA_PYTHON";

// One process for any number of files, one after another. It decodes the next batch, of about 4
// MiB, while the last one is used. It ends with this object.
class ParquetHelper {
 public:
  ParquetHelper();
  ~ParquetHelper();
  ParquetHelper(const ParquetHelper&) = delete;
  ParquetHelper& operator=(const ParquetHelper&) = delete;

  // The columns of a file. Error(configuration) with the way out if there is no such Python, and
  // Error(data) with pyarrow's reason if it cannot read the file.
  ArrowSchema open(const std::filesystem::path& path);
  // The rows of the file that was opened last, with these columns (names, or paths with dots). The
  // reader is valid until the next call.
  ArrowReader& rows(const std::vector<std::string>& columns);
  // The reader's next(), with the helper's reason if it fails.
  bool next();

 private:
  void start();
  void stop();
  void send(const std::string& words);
  [[noreturn]] void explain(const std::string& otherwise);
  template <class Work>
  decltype(auto) explained(const Work& work);

  std::string python_;
  std::string path_;
  pid_t process_ = -1;
  int to_ = -1;
  int from_ = -1;
  int messages_ = -1;
  std::unique_ptr<ArrowInput> input_;
  std::unique_ptr<ArrowReader> reader_;
};

}  // namespace tessera::tasks
