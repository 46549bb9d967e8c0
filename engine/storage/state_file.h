// State of a rank in a file instead of in memory: masters, reduced gradients, moments.
//
// The file has no name, so nothing stays in the folder however the process ends. Its space is
// reserved before anything is written, so a folder without room is refused at once. Transfers
// bypass the page cache if the file system can (O_DIRECT); otherwise data is dropped from the
// cache. The state uses no memory except its windows (engine/storage/file_window.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/device/memory_kind.h"
#include "engine/device/stream.h"
#include "engine/planned/work_log.h"
#include "engine/storage/file_place.h"

namespace tessera {

class FileWindow;
class MemoryPool;

class StateFile {
 public:
  // Ranges, memory and sizes that are multiples of this bypass the page cache.
  static constexpr std::size_t alignment = 4096;
  static constexpr std::size_t round_up(std::size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  // Reserves `bytes` of `kind` (the ranges taken, each rounded up to the alignment), which read as
  // zeros. `what` describes them: "the master parameters". Makes the folder if it does not exist.
  // Throws Error(configuration) if the folder is not usable or has no room.
  StateFile(const StateFolder& folder, std::string what, MemoryKind kind, std::size_t bytes);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  // Takes the next `bytes` of the reservation and returns their offset.
  std::uint64_t take(std::size_t bytes);

  // Thread-safe for ranges that do not share a block of the alignment. Throws Error(runtime) with
  // `what`, place and reason.
  void read(std::uint64_t offset, std::byte* data, std::size_t bytes) const;
  void write(std::uint64_t offset, const std::byte* data, std::size_t bytes);
  // Writes wait while any returned handle is alive: a save can read the file while training goes
  // on. Thread-safe; may outlive the file.
  [[nodiscard]] std::shared_ptr<void> hold();
  void await_holders();
  // Maps the range to memory, for access to a few of its values. Later read() and write() see
  // changes through it, and it sees theirs. A disk error here is a SIGBUS.
  [[nodiscard]] std::shared_ptr<std::byte> map(std::uint64_t offset, std::size_t bytes) const;

  // Makes the window through which steps work on the file, for ranges of at most `largest` bytes.
  // It belongs to the file's thread.
  void make_window(std::size_t largest);
  [[nodiscard]] FileWindow* window() const { return window_.get(); }

  // The stream for asynchronous transfers: one at a time, in order.
  [[nodiscard]] Stream& transfers() { return transfers_; }
  [[nodiscard]] const StateFolder& folder() const { return folder_; }
  [[nodiscard]] MemoryKind kind() const { return kind_; }
  [[nodiscard]] bool is_direct() const { return direct_; }
  // Bytes of the ranges taken.
  [[nodiscard]] std::size_t taken() const { return taken_; }

 private:
  void open();
  void reserve();
  void note_planned(LoggedWork::Kind kind, std::size_t bytes) const;
  [[nodiscard]] bool takes_direct_transfers() const;
  [[nodiscard]] bool goes_direct(std::uint64_t offset, const void* data, std::size_t bytes) const;
  [[nodiscard]] std::size_t whole_blocks(std::size_t done, std::size_t wanted) const;
  void read_blocks(std::uint64_t offset, std::byte* data, std::size_t bytes) const;
  void write_blocks(std::uint64_t offset, const std::byte* data, std::size_t bytes) const;
  void drop_cached(std::uint64_t offset, std::size_t bytes, bool written) const;
  [[noreturn]] void fail_use(const char* call) const;
  [[noreturn]] void fail_transfer(const char* action, std::uint64_t offset, const char* call) const;

  StateFolder folder_;
  std::string what_;
  MemoryKind kind_;
  std::size_t bytes_;
  std::size_t taken_ = 0;
  std::uint64_t end_ = 0;  // of the ranges taken
  struct Descriptor {
    int fd = -1;  // none on a planned device
    Descriptor() = default;
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
  };
  Descriptor file_;
  bool direct_ = false;
  struct Holders;
  std::shared_ptr<Holders> holders_;
  std::shared_ptr<MemoryPool> counted_;  // the pool that counts the data in the file
  Stream transfers_;                     // destroyed before everything that its thread uses
  std::unique_ptr<FileWindow> window_;
};

}  // namespace tessera
