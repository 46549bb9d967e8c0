// Reads with read(), through interruptions.
#include "engine/data/text_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

using namespace std::string_view_literals;

struct ContainerMark {
  std::string_view mark;
  std::size_t place;
  Container kind;
  const char* name;
  std::string_view ending = "";  // of the names of such files, where a text could begin so
};
constexpr ContainerMark container_marks[] = {
    {"PAR1", 0, Container::parquet, "Parquet"},
    {"ARROW1", 0, Container::arrow, "Arrow"},
    {"\xff\xff\xff\xff"sv, 0, Container::arrow, "an Arrow stream"},  // it begins with a message
    {"ustar", 257, Container::tar, "a tar archive"},
    {"Obj\x01"sv, 0, Container::other, "Avro"},
    {"ORC", 0, Container::other, "ORC", ".orc"},
    {"\x89HDF\r\n"sv, 0, Container::other, "HDF5"},
    {"\x93NUMPY"sv, 0, Container::other, "a NumPy array"},
    {"SQLite format 3\0"sv, 0, Container::other, "an SQLite database"},
};

// `name`: of the file, in lower case.
const ContainerMark* mark_of(std::string_view beginning, std::string_view name) {
  for (const ContainerMark& one : container_marks) {
    const bool found =
        beginning.size() > one.place && beginning.substr(one.place).starts_with(one.mark);
    if (found && name.ends_with(one.ending)) return &one;
  }
  return nullptr;
}

}  // namespace

std::optional<Container> container_of(std::string_view beginning) {
  const ContainerMark* const mark = mark_of(beginning, "");
  return mark == nullptr ? std::nullopt : std::optional(mark->kind);
}

TextReader::TextReader(const std::filesystem::path& path)
    : name_(fmt::format("text {}", path.string())) {
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  TESSERA_CHECK(file_ >= 0, ErrorCode::data, "{} cannot be opened: {}", name_,
                describe_errno("open", errno));
  struct stat status {};
  const bool regular = ::fstat(file_, &status) == 0 && S_ISREG(status.st_mode);
  if (!regular) ::close(file_);
  TESSERA_CHECK(regular, ErrorCode::data, "{} is not a regular file", name_);
}

TextReader::TextReader(int file, std::string name, std::function<void()> waiting)
    : file_(file), name_(std::move(name)), waiting_(std::move(waiting)) {}

TextReader TextReader::standard_input(std::function<void()> waiting) {
  return {STDIN_FILENO, "standard input", std::move(waiting)};
}

TextReader::~TextReader() {
  if (file_ != STDIN_FILENO) ::close(file_);
}

// Standard input may also be set to O_NONBLOCK by a program that shares it.
void TextReader::wait() const {
  if (file_ != STDIN_FILENO) return;
  constexpr int tenth_of_a_second = 100;
  pollfd ready{file_, POLLIN, 0};
  while (::poll(&ready, 1, tenth_of_a_second) <= 0) {
    if (waiting_) waiting_();
  }
}

// True if standard input has nothing to read now.
bool TextReader::is_idle() const {
  pollfd ready{file_, POLLIN, 0};
  return file_ == STDIN_FILENO && ::poll(&ready, 1, 0) == 0;
}

std::size_t TextReader::read(char* out, std::size_t bytes) const {
  ssize_t got = 0;
  do {
    wait();
    got = ::read(file_, out, bytes);
  } while (got < 0 && (errno == EINTR || errno == EAGAIN));
  TESSERA_CHECK(got >= 0, ErrorCode::data, "{} cannot be read: {}", name_,
                describe_errno("read", errno));
  return static_cast<std::size_t>(got);
}

void TextReader::begin() {
  begun_ = true;
  input_.resize(compression_mark_bytes);
  std::size_t held = 0;
  while (held < input_.size()) {
    const std::size_t got = read(input_.data() + held, input_.size() - held);
    if (got == 0) break;
    held += got;
  }
  input_.resize(held);
  decompressor_ = make_decompressor(input_, name_);
}

void TextReader::require_text() {
  constexpr std::size_t wanted = 512;
  while (seen_.size() < wanted && (seen_.empty() || !is_idle()) && append_more(seen_, wanted)) {
  }
  if (const ContainerMark* const mark = mark_of(seen_, name_without_compression(name_))) {
    fail(ErrorCode::data, "{} holds {}{}, and not a text; {}", name_, mark->name,
         decompressor_ ? ", compressed" : "",
         mark->kind == Container::other
             ? "write it as Parquet, Arrow or JSON lines"
             : "give it as a file or in a folder, and with its own name");
  }
  const std::string_view beginning = std::string_view(seen_).substr(0, compression_mark_bytes);
  TESSERA_CHECK(!decompressor_ || !make_decompressor(beginning, name_ + ": what is in it"),
                ErrorCode::data, "{} is compressed twice; decompress it once", name_);
}

bool TextReader::append(std::string& text, std::int64_t bytes) {
  if (seen_.empty()) return append_more(text, bytes);
  const std::size_t before = text.size();
  text.append(seen_, 0, static_cast<std::size_t>(bytes));
  seen_.erase(0, text.size() - before);
  return true;
}

bool TextReader::append_more(std::string& text, std::int64_t bytes) {
  if (!begun_) begin();
  const std::size_t before = text.size();
  const auto wanted = static_cast<std::size_t>(bytes);
  if (decompressor_) return decompress(text, wanted);
  if (used_ < input_.size()) {
    text.append(input_, used_, wanted);
    used_ += text.size() - before;
    return true;
  }
  text.resize(before + wanted);
  text.resize(before + read(text.data() + before, wanted));
  return text.size() > before;
}

// Parts that are compressed by themselves may be small: one call reads many.
bool TextReader::decompress(std::string& text, std::size_t bytes) {
  constexpr std::size_t block = std::size_t{256} << 10;
  const std::size_t before = text.size();
  text.resize(before + bytes);
  std::size_t made = 0;
  while (made < bytes) {
    if (used_ == input_.size() && !is_full_) {
      if (made > 0) break;
      input_.resize(block);
      input_.resize(read(input_.data(), block));
      used_ = 0;
      if (input_.empty()) break;
    }
    const std::span<const char> in = std::span(input_).subspan(used_);
    const std::span<char> out(text.data() + before + made, bytes - made);
    const auto step = decompressor_->run(in, out);
    used_ += step.read;
    made += step.written;
    is_full_ = step.written == out.size();
  }
  text.resize(before + made);
  TESSERA_CHECK(made > 0 || decompressor_->may_end(), ErrorCode::data,
                "{} ends within its compressed data; the file is truncated", name_);
  return made > 0;
}

bool is_compressed_text(const std::filesystem::path& path) {
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown)) return false;
  TextReader reader(path);
  reader.require_text();
  return reader.decompresses();
}

}  // namespace tessera
