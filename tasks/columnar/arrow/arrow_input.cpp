// Files by pread, pipes by read.
#include "tasks/columnar/arrow/arrow_input.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "engine/data/data_file.h"

namespace tessera::tasks {
namespace {

constexpr std::string_view file_magic = "ARROW1";
constexpr std::int64_t file_beginning = 8;  // the magic, padded
constexpr std::int64_t file_end = 10;       // the footer's size and the magic
// A message of a pipe is held in memory.
constexpr std::int64_t longest_piped = std::int64_t{2} << 30;

class PlaceInFile final : public ArrowBytes {
 public:
  PlaceInFile(std::shared_ptr<const DataFile> file, std::int64_t begin, std::int64_t size)
      : file_(std::move(file)), begin_(begin), size_(size) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  void read(std::int64_t first, void* out, std::size_t bytes) const override {
    file_->read(begin_ + first, out, bytes);
  }

 private:
  std::shared_ptr<const DataFile> file_;
  std::int64_t begin_;
  std::int64_t size_;
};

class FileInput final : public ArrowInput {
 public:
  explicit FileInput(const std::string& path) : file_(std::make_shared<DataFile>(path)) {
    end_ = file_->size();
    char begin[6] = {};
    if (end_ >= static_cast<std::int64_t>(sizeof(begin))) file_->read(0, begin, sizeof(begin));
    if (std::string_view(begin, sizeof(begin)) != file_magic) return;
    // The footer repeats the places of the messages, which are read in their order here.
    std::uint32_t footer = 0;
    char magic[6] = {};
    if (end_ >= file_beginning + file_end) {
      file_->read(end_ - file_end, &footer, sizeof(footer));
      file_->read(end_ - static_cast<std::int64_t>(sizeof(magic)), magic, sizeof(magic));
    }
    TESSERA_CHECK(std::string_view(magic, sizeof(magic)) == file_magic &&
                      footer <= end_ - file_beginning - file_end,
                  ErrorCode::data,
                  "data file {} is cut off: an Arrow file ends with its table of contents", path);
    at_ = file_beginning;
    end_ -= file_end + footer;
  }

  std::size_t read(void* out, std::size_t bytes) override {
    const auto count = std::min(bytes, static_cast<std::size_t>(end_ - at_));
    file_->read(at_, out, count);
    at_ += static_cast<std::int64_t>(count);
    return count;
  }

  std::unique_ptr<ArrowBytes> take(std::int64_t bytes) override {
    TESSERA_CHECK(
        bytes <= end_ - at_, ErrorCode::data,
        "data file {} is cut off: a batch of {} bytes begins at byte {}, and it ends at {}",
        file_->path(), bytes, at_, end_);
    at_ += bytes;
    return std::make_unique<PlaceInFile>(file_, at_ - bytes, bytes);
  }

 private:
  std::shared_ptr<const DataFile> file_;
  std::int64_t at_ = 0;
  std::int64_t end_ = 0;
};

class HeldBytes final : public ArrowBytes {
 public:
  explicit HeldBytes(std::int64_t size)
      : bytes_(std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(size))),
        size_(size) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  void read(std::int64_t first, void* out, std::size_t bytes) const override {
    std::memcpy(out, bytes_.get() + first, bytes);
  }
  [[nodiscard]] char* data() { return bytes_.get(); }

 private:
  std::unique_ptr<char[]> bytes_;
  std::int64_t size_;
};

class PipeInput final : public ArrowInput {
 public:
  PipeInput(int descriptor, std::string what) : descriptor_(descriptor), what_(std::move(what)) {}

  std::size_t read(void* out, std::size_t bytes) override {
    std::size_t done = 0;
    while (done < bytes) {
      const ssize_t got = ::read(descriptor_, static_cast<char*>(out) + done, bytes - done);
      if (got < 0 && errno == EINTR) continue;
      TESSERA_CHECK(got >= 0, ErrorCode::data, "{} cannot be read: {}", what_,
                    describe_errno("read", errno));
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

  std::unique_ptr<ArrowBytes> take(std::int64_t bytes) override {
    TESSERA_CHECK(bytes <= longest_piped, ErrorCode::data,
                  "{}: a batch of {} bytes; a batch has at most {}", what_, bytes, longest_piped);
    auto held = std::make_unique<HeldBytes>(bytes);
    const std::size_t got = read(held->data(), static_cast<std::size_t>(bytes));
    TESSERA_CHECK(std::cmp_equal(got, bytes), ErrorCode::data, "{} ended within a batch", what_);
    return held;
  }

 private:
  int descriptor_;
  std::string what_;
};

}  // namespace

std::unique_ptr<ArrowInput> open_arrow_file(const std::filesystem::path& path) {
  return std::make_unique<FileInput>(path.string());
}

std::unique_ptr<ArrowInput> read_arrow_pipe(int descriptor, const std::string& what) {
  return std::make_unique<PipeInput>(descriptor, what);
}

}  // namespace tessera::tasks
