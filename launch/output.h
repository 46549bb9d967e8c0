// The output of ranks: whole lines, with the rank's number on the terminal, and in one file per
// rank.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <array>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "comm/file_descriptor.h"

namespace tessera::launcher {

struct OutputOptions {
  std::string folder;          // for rank-N.log; empty: no files
  std::map<int, int> streams;  // by rank, streams with its number: 1 stdout, 2 stderr, 3 both
  int every_rank = 0;          // the same for ranks that are not listed

  [[nodiscard]] int of(int rank) const {
    const auto found = streams.find(rank);
    return found == streams.end() ? every_rank : found->second;
  }
};

// torchrun's spelling: "3" for every rank, "0:1,1:2" by rank. Error(usage) for anything else.
OutputOptions parse_tee(const std::string& text);

// The pipes between ranks and the launcher. Without files and numbers there are no pipes: the ranks
// inherit the launcher's own output.
class RankOutput {
 public:
  // `append`: add to the output from before a restart. Throws Error(configuration) if a file cannot
  // be written. The ranks are numbered from `first_rank`; the options count the ranks of this node.
  RankOutput(const OutputOptions& options, int ranks, int first_rank, bool append);
  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;

  // A rank's stdout and stderr; -1: the launcher's.
  [[nodiscard]] std::array<int, 2> ends_of(int local_rank) const;
  // Call it when all ranks have their ends.
  void close_ends();

  // The descriptors for poll().
  [[nodiscard]] std::vector<pollfd> waited_for() const;
  // Passes on the output that has come. It does not wait for a terminal or a pager that reads
  // nothing now. A rank with many waiting lines has to wait as well. When a pager has ended, the
  // pipe to it ends for the ranks too, as without --tee; lines that also go to a file are still
  // read.
  void pass_on();
  // Passes on the last lines without an end as well, after the ranks have ended. Call it until
  // is_passed_on().
  void finish();
  // After finish(): true when no output waits for a terminal or a pager.
  [[nodiscard]] bool is_passed_on() const;
  // Whether something was not kept or not printed for want of room.
  [[nodiscard]] bool lacked_room() const { return lacked_room_; }

 private:
  struct Stream {
    int local_rank = 0;
    int rank = 0;
    int number = 1;        // stdout or stderr
    bool printed = false;  // with the rank's number
    int file = -1;         // index into files_
    comm::FileDescriptor ours, theirs;
    std::string line;  // not ended yet
  };

  // The launcher's stdout or stderr.
  class Printer {
   public:
    explicit Printer(int descriptor);
    void print(std::string_view text) {
      if (!failed_) waiting_ += text;
    }
    // Writes as much as is possible without waiting. Returns the errno of a write that failed, else
    // 0.
    int push();
    [[nodiscard]] bool failed() const { return failed_; }
    [[nodiscard]] std::size_t waiting() const { return waiting_.size(); }
    [[nodiscard]] int descriptor() const { return own_.get() >= 0 ? own_.get() : descriptor_; }

   private:
    int descriptor_;
    // The same terminal or pipe, opened again, so that other programs that have it open do not find
    // it nonblocking.
    comm::FileDescriptor own_;
    std::string waiting_;
    bool failed_ = false;  // it takes nothing any more
  };
  struct LogFile {
    std::string path;
    comm::FileDescriptor file;
  };

  static std::size_t printer_of(const Stream& stream) {
    return stream.number == STDOUT_FILENO ? 0 : 1;
  }
  [[nodiscard]] bool is_held_up(const Stream& stream) const;
  void take(Stream& stream);
  void lines(Stream& stream, bool all);
  void keep(Stream& stream, std::string_view text);
  void push_printers();
  void stop_printing(std::size_t printer, int reason);

  std::array<Printer, 2> printers_{Printer(STDOUT_FILENO), Printer(STDERR_FILENO)};
  std::deque<Stream> streams_;
  std::vector<LogFile> files_;
  bool lacked_room_ = false;
};

}  // namespace tessera::launcher
