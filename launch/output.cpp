// Lines are assembled per stream, so that lines of two ranks never mix.
#include "launch/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/write_failure.h"
#include "engine/storage/output_file.h"

namespace tessera::launcher {
namespace {

constexpr std::size_t longest_line = std::size_t{1} << 16;  // longer ones are passed on in pieces
constexpr std::size_t most_waiting = std::size_t{1} << 20;  // for a terminal or a pager

// Returns false, with errno, if the file cannot take the text.
bool write_fully(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      pollfd full{file, POLLOUT, 0};
      ::poll(&full, 1, -1);
      continue;
    }
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

std::optional<int> small_number(std::string_view text) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace

OutputOptions parse_tee(const std::string& text) {
  OutputOptions options;
  const auto check = [&](const std::optional<int>& value, int most) {
    TESSERA_CHECK(value && *value <= most, ErrorCode::usage,
                  "--tee {}: must be 1 (stdout), 2 (stderr), 3 (both) or 0, or a list by rank as "
                  "0:1,1:2",
                  text);
    return *value;
  };
  std::string_view rest = text;
  if (rest.find(':') == std::string_view::npos) {
    options.every_rank = check(small_number(rest), 3);
    return options;
  }
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t colon = item.find(':');
    check(colon == std::string_view::npos ? std::nullopt : std::optional(0), 0);
    const int rank = check(small_number(item.substr(0, colon)), 4096);
    options.streams[rank] = check(small_number(item.substr(colon + 1)), 3);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  return options;
}

RankOutput::RankOutput(const OutputOptions& options, int ranks, int first_rank, bool append) {
  const bool files = !options.folder.empty();
  if (files) {
    std::error_code error;
    std::filesystem::create_directories(options.folder, error);
    TESSERA_CHECK(!error, full_disk_or(error.value(), ErrorCode::configuration),
                  "--log-dir {} cannot be created: {}", options.folder, error.message());
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (files) {
      const std::string path = fmt::format("{}/rank-{}.log", options.folder, first_rank + rank);
      const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | (append ? 0 : O_TRUNC);
      files_.push_back({path, comm::FileDescriptor(open_output(path, flags))});
      TESSERA_CHECK(files_.back().file.get() >= 0, full_disk_or(errno, ErrorCode::configuration),
                    "--log-dir: {} cannot be written: {}", path, describe_errno("open", errno));
    }
    for (const int number : {STDOUT_FILENO, STDERR_FILENO}) {
      const bool printed = (options.of(rank) & number) != 0;
      if (!files && !printed) continue;
      int ends[2];
      TESSERA_SYSTEM(::pipe2(ends, O_CLOEXEC));
      Stream& stream = streams_.emplace_back();
      stream.local_rank = rank;
      stream.rank = first_rank + rank;
      stream.number = number;
      stream.printed = printed;
      stream.file = files ? rank : -1;
      stream.ours = comm::FileDescriptor(ends[0]);
      stream.theirs = comm::FileDescriptor(ends[1]);
      ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    }
  }
}

std::array<int, 2> RankOutput::ends_of(int local_rank) const {
  std::array<int, 2> ends = {-1, -1};
  for (const Stream& stream : streams_) {
    if (stream.local_rank == local_rank)
      ends[stream.number == STDOUT_FILENO ? 0 : 1] = stream.theirs.get();
  }
  return ends;
}

void RankOutput::close_ends() {
  for (Stream& stream : streams_) stream.theirs.reset();
}

RankOutput::Printer::Printer(int descriptor) : descriptor_(descriptor) {
  struct stat status {};
  const bool can_stop =
      ::fstat(descriptor, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode));
  if (!can_stop) return;
  // If that is not allowed, the given descriptor is used, in small pieces.
  own_ = comm::FileDescriptor(::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(),
                                     O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

int RankOutput::Printer::push() {
  std::size_t done = 0;
  while (done < waiting_.size()) {
    pollfd wanted{descriptor(), POLLOUT, 0};
    if (::poll(&wanted, 1, 0) <= 0) break;
    const std::size_t piece = own_.get() >= 0 ? waiting_.size() : std::size_t{PIPE_BUF};
    const ssize_t written =
        ::write(descriptor(), waiting_.data() + done, std::min(piece, waiting_.size() - done));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) break;
    if (written < 0) {
      const int reason = errno;
      failed_ = true;
      waiting_.clear();
      return reason;
    }
    if (written == 0) break;
    done += static_cast<std::size_t>(written);
  }
  waiting_.erase(0, done);
  return 0;
}

void RankOutput::push_printers() {
  for (std::size_t i = 0; i < printers_.size(); ++i) {
    if (const int reason = printers_[i].push(); reason != 0) stop_printing(i, reason);
  }
}

// The ranks' lines are not shown there from now on. If the launcher read on, a rank could print for
// ever; with its pipe closed it gets SIGPIPE, as it would on the launcher's own output. A program
// that ignores the signal, as tessera train does, goes on.
void RankOutput::stop_printing(std::size_t printer, int reason) {
  lacked_room_ = lacked_room_ || full_disk_or_runtime(reason) == ErrorCode::checkpoint;
  const char* const name = printer == 0 ? "standard output" : "standard error";
  printers_[1].print(fmt::format(
      "tessera: {} {}; the output of the ranks is not shown there from here on\n", name,
      reason == EPIPE ? "is closed"
                      : fmt::format("cannot be written: {}", describe_errno("write", reason))));
  for (Stream& stream : streams_) {
    if (stream.printed && printer_of(stream) == printer && stream.file < 0) stream.ours.reset();
  }
}

bool RankOutput::is_held_up(const Stream& stream) const {
  return stream.printed && printers_[printer_of(stream)].waiting() >= most_waiting;
}

std::vector<pollfd> RankOutput::waited_for() const {
  std::vector<pollfd> descriptors;
  for (const Stream& stream : streams_) {
    if (stream.ours.get() >= 0 && !is_held_up(stream)) {
      descriptors.push_back({stream.ours.get(), POLLIN, 0});
    }
  }
  for (const Printer& printer : printers_) {
    if (printer.waiting() > 0) descriptors.push_back({printer.descriptor(), POLLOUT, 0});
  }
  return descriptors;
}

void RankOutput::pass_on() {
  for (Stream& stream : streams_) take(stream);
  push_printers();
}

void RankOutput::finish() {
  for (Stream& stream : streams_) {
    take(stream);
    if (is_held_up(stream)) continue;  // the pipe may have more
    lines(stream, true);
    stream.ours.reset();
  }
  push_printers();
}

bool RankOutput::is_passed_on() const {
  return std::all_of(printers_.begin(), printers_.end(),
                     [](const Printer& printer) { return printer.waiting() == 0; }) &&
         std::all_of(streams_.begin(), streams_.end(),
                     [](const Stream& stream) { return stream.ours.get() < 0; });
}

// A rank that prints without end must not keep the launcher from the other ranks.
void RankOutput::take(Stream& stream) {
  constexpr int most_blocks = 16;
  char block[16384];
  for (int i = 0; i < most_blocks && stream.ours.get() >= 0 && !is_held_up(stream); ++i) {
    const ssize_t got = ::read(stream.ours.get(), block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      lines(stream, true);
      stream.ours.reset();
      return;
    }
    stream.line.append(block, static_cast<std::size_t>(got));
    lines(stream, stream.line.size() > longest_line);
  }
}

// Passes on the lines that have ended, or everything.
void RankOutput::lines(Stream& stream, bool all) {
  std::size_t end = stream.line.rfind('\n');
  end = all ? stream.line.size() : end == std::string::npos ? 0 : end + 1;
  if (end == 0) return;
  std::string text = stream.line.substr(0, end);
  stream.line.erase(0, end);
  keep(stream, text);
  if (!stream.printed) return;
  if (text.back() != '\n') text += '\n';
  std::string numbered;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t stop = text.find('\n', begin) + 1;
    numbered += fmt::format("[rank {}]: {}", stream.rank, text.substr(begin, stop - begin));
    begin = stop;
  }
  printers_[printer_of(stream)].print(numbered);
}

// The file holds the rank's output to the byte. If it cannot be written (a full disk), the ranks go
// on, and the user sees one message.
void RankOutput::keep(Stream& stream, std::string_view text) {
  if (stream.file < 0) return;
  LogFile& log = files_[static_cast<std::size_t>(stream.file)];
  if (log.file.get() < 0 || write_fully(log.file.get(), text)) return;
  const int reason = errno;
  lacked_room_ = lacked_room_ || full_disk_or_runtime(reason) == ErrorCode::checkpoint;
  printers_[1].print(
      fmt::format("tessera: --log-dir: {}: the output of rank {} is not kept from here on: {}\n",
                  log.path, stream.rank, describe_errno("write", reason)));
  log.file.reset();
}

}  // namespace tessera::launcher
