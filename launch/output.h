// What ranks print: whole lines, with the rank's number on the terminal and in a file for each.
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

namespace tessera::cli {

struct OutputOptions {
  std::string folder;          // of rank-N.log; empty: no files
  std::map<int, int> streams;  // by rank, what is printed with its number: 1 stdout, 2 stderr, 3
  int every_rank = 0;          // the same of ranks that are not named

  [[nodiscard]] int of(int rank) const {
    const auto found = streams.find(rank);
    return found == streams.end() ? every_rank : found->second;
  }
};

// torchrun's spelling: "3" for every rank, "0:1,1:2" by rank. Error(usage) for anything else.
OutputOptions parse_tee(const std::string& text);

// The pipes between ranks and the launcher. Without files and numbers there are none: the ranks
// have the launcher's own output.
class RankOutput {
 public:
  // `append`: behind what the ranks wrote before a restart. Throws Error(configuration) when a file
  // cannot be written.
  // The ranks are numbered from `first_rank`; options count those of this host.
  RankOutput(const OutputOptions& options, int ranks, int first_rank, bool append);
  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;

  // What a rank has as stdout and stderr; -1: the launcher's.
  [[nodiscard]] std::array<int, 2> ends_of(int local_rank) const;
  // The ranks have theirs.
  void close_ends();

  // To be waited for.
  [[nodiscard]] std::vector<pollfd> waited_for() const;
  // Passes on what has come; does not wait for a terminal or a pager that takes nothing now. A rank
  // whose lines wait there waits as well, once they are many. Where a pager has ended, its pipe ends
  // for the ranks too, as without --tee; lines that go to a file as well are still read.
  void pass_on();
  // And what ended without a line's end: the ranks print no more. To be called until all of it
  // is_passed_on().
  void finish();
  // After finish(): nothing waits for a terminal or a pager.
  [[nodiscard]] bool is_passed_on() const;
  // Whether something was not kept or not printed for want of room.
  [[nodiscard]] bool lacked_room() const { return lacked_room_; }

 private:
  struct Stream {
    int local_rank = 0;
    int rank = 0;
    int number = 1;        // stdout or stderr
    bool printed = false;  // with the rank's number
    int file = -1;         // of files_
    comm::FileDescriptor ours, theirs;
    std::string line;  // that has not ended yet
  };

  // The launcher's stdout or stderr.
  class Printer {
   public:
    explicit Printer(int descriptor);
    void print(std::string_view text) {
      if (!failed_) waiting_ += text;
    }
    // Writes what is taken without waiting. The errno of a write that fails, once; else 0.
    int push();
    [[nodiscard]] bool failed() const { return failed_; }
    [[nodiscard]] std::size_t waiting() const { return waiting_.size(); }
    [[nodiscard]] int descriptor() const { return own_.get() >= 0 ? own_.get() : descriptor_; }

   private:
    int descriptor_;
    // The same terminal or pipe, so that whoever else has it open does not find it nonblocking.
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

}  // namespace tessera::cli
