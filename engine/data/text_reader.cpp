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
#include <utility>

#include "base/error.h"

namespace tessera {

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

bool TextReader::append(std::string& text, std::int64_t bytes) {
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

bool TextReader::decompress(std::string& text, std::size_t bytes) {
  constexpr std::size_t block = std::size_t{256} << 10;
  const std::size_t before = text.size();
  text.resize(before + bytes);
  for (;;) {
    if (used_ == input_.size() && !is_full_) {
      input_.resize(block);
      input_.resize(read(input_.data(), block));
      used_ = 0;
      if (input_.empty()) break;
    }
    const std::span<const char> in = std::span(input_).subspan(used_);
    const auto step = decompressor_->run(in, {text.data() + before, bytes});
    used_ += step.read;
    is_full_ = step.written == bytes;
    if (step.written == 0) continue;
    text.resize(before + step.written);
    return true;
  }
  text.resize(before);
  TESSERA_CHECK(decompressor_->may_end(), ErrorCode::data,
                "{} ends within its compressed data; the file is truncated", name_);
  return false;
}

bool is_compressed_text(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return false;
  std::string beginning(compression_mark_bytes, '\0');
  const ssize_t got = ::pread(file, beginning.data(), beginning.size(), 0);
  ::close(file);
  beginning.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return make_decompressor(beginning, fmt::format("text {}", path.string())) != nullptr;
}

}  // namespace tessera
