// Reads with read(), through interruptions.
#include "engine/data/text_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

bool TextReader::append(std::string& text, std::int64_t bytes) {
  const std::size_t before = text.size();
  text.resize(before + static_cast<std::size_t>(bytes));
  ssize_t got = 0;
  do {
    wait();
    got = ::read(file_, text.data() + before, static_cast<std::size_t>(bytes));
  } while (got < 0 && (errno == EINTR || errno == EAGAIN));
  const int error = errno;
  text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  TESSERA_CHECK(got >= 0, ErrorCode::data, "{} cannot be read: {}", name_,
                describe_errno("read", error));
  return got > 0;
}

}  // namespace tessera
