// Rows as JSON, published when the file is whole.
#include "tasks/columnar/table_json.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/write_failure.h"
#include "checkpoint/io/removal.h"
#include "tasks/columnar/table_reader.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

// A file under a passing name until publish().
class LinesFile {
 public:
  explicit LinesFile(const fs::path& path)
      : path_(path),
        partial_(fmt::format("{}.partial-{:08x}", path.string(), std::random_device()())) {
    constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    descriptor_ = ::open(partial_.c_str(), flags, 0666);  // less the umask
    check(descriptor_ >= 0, "open", ErrorCode::configuration);
  }
  ~LinesFile() {
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    checkpoint::try_remove_tree(partial_);
  }
  LinesFile(const LinesFile&) = delete;
  LinesFile& operator=(const LinesFile&) = delete;

  void write(const std::string& bytes) const {
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t wrote = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      check(wrote > 0, "write", ErrorCode::runtime);
      done += static_cast<std::size_t>(wrote);
    }
  }

  void publish() {
    check(::fsync(descriptor_) == 0, "fsync", ErrorCode::runtime);
    check(::rename(partial_.c_str(), path_.c_str()) == 0, "rename", ErrorCode::runtime);
    ::close(descriptor_);
    descriptor_ = -1;
  }

 private:
  void check(bool succeeded, const char* call, ErrorCode otherwise) const {
    const int reason = errno;
    TESSERA_CHECK(succeeded, full_disk_or(reason, otherwise),
                  "the rows of the data files cannot be kept in {}: {}", path_.string(),
                  describe_errno(call, reason));
  }

  fs::path path_;
  std::string partial_;
  int descriptor_ = -1;
};

void append_row(const TableChunk& chunk, std::int64_t row, std::string& lines) {
  nlohmann::json object = nlohmann::json::object();
  for (const TableChunk::Column& column : chunk.columns) {
    TESSERA_CHECK(column.field == nullptr || !has_structs(*column.field), ErrorCode::data,
                  "data file {}: column {} is of the type {}; texts, numbers and lists of them are "
                  "read here",
                  chunk.file->path, column.name, column.field->type);
    nlohmann::json value(column.json(row));
    TESSERA_CHECK(!value.is_null(), ErrorCode::data, "{}: column {} is null; leave such rows out",
                  chunk.place(row), column.name);
    object[column.name] = std::move(value);
  }
  try {
    lines += object.dump();
  } catch (const nlohmann::json::type_error&) {
    fail(ErrorCode::data, "{}: a text is not UTF-8", chunk.place(row));
  }
  lines += '\n';
}

void write_json_lines(const std::vector<TableFile>& files, const std::vector<std::string>& columns,
                      const fs::path& path) {
  LinesFile file(path);
  std::string lines;
  read_table(
      files, [&](const ArrowSchema&, const TableFile&) { return columns; },
      [&](const TableChunk& chunk) {
        lines.clear();
        for (std::int64_t i = 0; i < chunk.rows; ++i) append_row(chunk, i, lines);
        file.write(lines);
      });
  file.publish();
}

}  // namespace

std::unique_ptr<DerivedFile> make_json_lines(const std::vector<TableFile>& files,
                                             const std::vector<std::string>& columns) {
  std::uint64_t purpose = columns.size();
  for (const std::string& column : columns) purpose = mix_text(purpose, column);
  return std::make_unique<DerivedFile>(files, purpose, ".jsonl", [&](const fs::path& path) {
    write_json_lines(files, columns, path);
  });
}

}  // namespace tessera::tasks
