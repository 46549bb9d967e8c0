// Unnamed files: reservation of space, transfers that bypass the page cache, error messages.
#include "engine/storage/state_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "base/error.h"
#include "base/write_failure.h"
#include "engine/device/memory.h"
#include "engine/planned/backend.h"
#include "engine/storage/file_window.h"

namespace tessera {
namespace {

constexpr mode_t owner_only = 0600;
constexpr std::size_t unaligned_piece = std::size_t{1} << 20;

struct Freed {
  void operator()(std::byte* block) const { std::free(block); }
};
using AlignedBlock = std::unique_ptr<std::byte[], Freed>;

AlignedBlock aligned_block(std::size_t bytes) {
  auto* block = static_cast<std::byte*>(std::aligned_alloc(StateFile::alignment, bytes));
  TESSERA_CHECK(block != nullptr, ErrorCode::out_of_memory,
                "out of memory: {} bytes for a transfer from or to a file of offloaded state",
                bytes);
  return AlignedBlock(block);
}

bool is_aligned(std::uint64_t value) {
  return value % StateFile::alignment == 0;
}

// Repeats a call while a signal interrupts it.
template <class Call>
auto while_interrupted(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

std::uint64_t available_bytes(const std::string& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) == -1) return 0;
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

}  // namespace

struct StateFile::Holders {
  std::mutex mutex;
  std::condition_variable gone;
  int count = 0;
  std::atomic<bool> any{false};
};

std::shared_ptr<void> StateFile::hold() {
  {
    const std::lock_guard lock(holders_->mutex);
    ++holders_->count;
    holders_->any.store(true);
  }
  return {static_cast<void*>(nullptr), [holders = holders_](void*) {
            const std::lock_guard lock(holders->mutex);
            if (--holders->count > 0) return;
            holders->any.store(false);
            holders->gone.notify_all();
          }};
}

void StateFile::await_holders() {
  if (!holders_->any.load()) return;
  std::unique_lock lock(holders_->mutex);
  holders_->gone.wait(lock, [this] { return holders_->count == 0; });
}

void StateFile::note_planned(LoggedWork::Kind kind, std::size_t bytes) const {
  WorkLog* const log = work_log();
  if (log == nullptr || bytes == 0) return;
  LoggedWork work;
  work.kind = kind;
  work.lane = planned_lane(folder_.device);
  work.bytes = static_cast<double>(bytes);
  log->add(work);
}

StateFile::StateFile(const StateFolder& folder, std::string what, MemoryKind kind,
                     std::size_t bytes)
    : folder_(folder),
      what_(std::move(what)),
      kind_(kind),
      bytes_(bytes),
      holders_(std::make_shared<Holders>()),
      counted_(MemoryPool::current(folder.device)),
      transfers_("offload", folder.device) {
  TESSERA_REQUIRE(folder_.piece_bytes > 0 && folder_.piece_bytes % (2 * alignment) == 0,
                  "pieces of {} bytes are not a multiple of {}", folder_.piece_bytes,
                  2 * alignment);
  if (folder_.device.is_planned()) return;
  open();
  reserve();
  direct_ = folder_.direct && takes_direct_transfers();
}

StateFile::~StateFile() {
  counted_->uncount_file(kind_, taken_);
}

StateFile::Descriptor::~Descriptor() {
  if (fd != -1) ::close(fd);  // the contents are no longer needed, so errors do not matter
}

void StateFile::open() {
  std::error_code error;
  std::filesystem::create_directories(folder_.path, error);
  TESSERA_CHECK(!error || std::filesystem::is_directory(folder_.path),
                full_disk_or(error.value(), ErrorCode::configuration),
                "the offload folder '{}' cannot be made: {}; choose one that this user may write",
                folder_.path, error.message());
  file_.fd = while_interrupted(
      [&] { return ::open(folder_.path.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, owner_only); });
  if (file_.fd != -1) return;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL) {
    fail_use("open");
  }
  // For a file system without unnamed files: unlinks the name before anything is written.
  std::string name = folder_.path + "/tessera-XXXXXX";
  file_.fd = while_interrupted([&] { return ::mkostemp(name.data(), O_CLOEXEC); });
  if (file_.fd == -1) fail_use("mkostemp");
  if (::unlink(name.c_str()) == -1) fail_use("unlink");
}

void StateFile::reserve() {
  if (bytes_ == 0) return;
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(file_.fd, 0, static_cast<off_t>(bytes_));
  if (error == 0) return;
  if (full_disk_or_runtime(error) == ErrorCode::checkpoint) {
    fail(ErrorCode::checkpoint,
         "the offload folder '{}' has no room for {} of {}: {} bytes are needed and {} available "
         "({}); make room, choose another folder, or offload less",
         folder_.path, what_, folder_.owner, bytes_, available_bytes(folder_.path),
         describe_errno("posix_fallocate", error));
  }
  errno = error;
  fail_use("posix_fallocate");
}

// Some file systems accept the flag but refuse the transfer, so this tries the first block.
bool StateFile::takes_direct_transfers() const {
  if (bytes_ < alignment) return false;
  const int flags = ::fcntl(file_.fd, F_GETFL);
  if (flags == -1 || ::fcntl(file_.fd, F_SETFL, flags | O_DIRECT) == -1) return false;
  const AlignedBlock block = aligned_block(alignment);
  std::memset(block.get(), 0, alignment);
  const auto whole = static_cast<ssize_t>(alignment);
  if (while_interrupted([&] { return ::pwrite(file_.fd, block.get(), alignment, 0); }) == whole &&
      while_interrupted([&] { return ::pread(file_.fd, block.get(), alignment, 0); }) == whole) {
    return true;
  }
  (void)::fcntl(file_.fd, F_SETFL, flags);
  return false;
}

std::uint64_t StateFile::take(std::size_t bytes) {
  const std::uint64_t offset = end_;
  TESSERA_REQUIRE(offset + round_up(bytes) <= bytes_, "{} of {}: {} bytes were reserved, not {}",
                  what_, folder_.owner, bytes_, offset + round_up(bytes));
  end_ = offset + round_up(bytes);
  taken_ += bytes;
  counted_->count_file(kind_, bytes);
  return offset;
}

bool StateFile::goes_direct(std::uint64_t offset, const void* data, std::size_t bytes) const {
  return is_aligned(offset) && is_aligned(bytes) &&
         is_aligned(reinterpret_cast<std::uintptr_t>(data));
}

void StateFile::read(std::uint64_t offset, std::byte* data, std::size_t bytes) const {
  if (file_.fd == -1) return note_planned(LoggedWork::Kind::file_read, bytes);
  if (bytes == 0) return;
  if (!direct_ || goes_direct(offset, data, bytes)) return read_blocks(offset, data, bytes);
  // Reads the surrounding blocks through aligned memory.
  const AlignedBlock block = aligned_block(std::min(unaligned_piece, round_up(bytes) + alignment));
  while (bytes > 0) {
    const std::uint64_t begin = offset / alignment * alignment;
    const auto skipped = static_cast<std::size_t>(offset - begin);
    const std::size_t count = std::min(bytes, unaligned_piece - skipped);
    read_blocks(begin, block.get(), round_up(skipped + count));
    std::memcpy(data, block.get() + skipped, count);
    offset += count;
    data += count;
    bytes -= count;
  }
}

void StateFile::write(std::uint64_t offset, const std::byte* data, std::size_t bytes) {
  if (file_.fd == -1) return note_planned(LoggedWork::Kind::file_write, bytes);
  if (bytes == 0) return;
  await_holders();
  if (!direct_ || goes_direct(offset, data, bytes)) return write_blocks(offset, data, bytes);
  const AlignedBlock block = aligned_block(std::min(unaligned_piece, round_up(bytes) + alignment));
  while (bytes > 0) {
    const std::uint64_t begin = offset / alignment * alignment;
    const auto skipped = static_cast<std::size_t>(offset - begin);
    const std::size_t count = std::min(bytes, unaligned_piece - skipped);
    const std::size_t whole = round_up(skipped + count);
    // Keeps the bytes around the range.
    if (skipped > 0) read_blocks(begin, block.get(), alignment);
    if (whole > skipped + count && (whole > alignment || skipped == 0)) {
      read_blocks(begin + whole - alignment, block.get() + whole - alignment, alignment);
    }
    std::memcpy(block.get() + skipped, data, count);
    write_blocks(begin, block.get(), whole);
    offset += count;
    data += count;
    bytes -= count;
  }
}

// For a transfer that ended early: the bytes after which the next transfer can continue.
std::size_t StateFile::whole_blocks(std::size_t done, std::size_t wanted) const {
  if (!direct_ || done == wanted) return done;
  TESSERA_CHECK(done >= alignment, ErrorCode::runtime,
                "{} of {}: '{}' transferred {} bytes where it was to transfer {}", what_,
                folder_.owner, folder_.path, done, wanted);
  return done / alignment * alignment;
}

void StateFile::read_blocks(std::uint64_t offset, std::byte* data, std::size_t bytes) const {
  const std::uint64_t begin = offset;
  const std::size_t all = bytes;
  while (bytes > 0) {
    const ssize_t got = while_interrupted(
        [&] { return ::pread(file_.fd, data, bytes, static_cast<off_t>(offset)); });
    if (got == -1) fail_transfer("read", offset, "pread");
    TESSERA_CHECK(got > 0, ErrorCode::runtime, "{} of {}: the file in '{}' ends at byte {}", what_,
                  folder_.owner, folder_.path, offset);
    const std::size_t done = whole_blocks(static_cast<std::size_t>(got), bytes);
    offset += done;
    data += done;
    bytes -= done;
  }
  drop_cached(begin, all, false);
}

void StateFile::write_blocks(std::uint64_t offset, const std::byte* data, std::size_t bytes) const {
  const std::uint64_t begin = offset;
  const std::size_t all = bytes;
  while (bytes > 0) {
    const ssize_t put = while_interrupted(
        [&] { return ::pwrite(file_.fd, data, bytes, static_cast<off_t>(offset)); });
    if (put == -1) fail_transfer("write", offset, "pwrite");
    TESSERA_CHECK(put > 0, ErrorCode::runtime, "{} of {}: '{}' took none of the bytes at {}", what_,
                  folder_.owner, folder_.path, offset);
    const std::size_t done = whole_blocks(static_cast<std::size_t>(put), bytes);
    offset += done;
    data += done;
    bytes -= done;
  }
  drop_cached(begin, all, true);
}

// Without direct transfers the page cache would keep everything, and dirty pages could not be
// dropped. A limit on the process's memory counts them.
void StateFile::drop_cached(std::uint64_t offset, std::size_t bytes, bool written) const {
  if (direct_) return;
  const auto at = static_cast<off_t>(offset);
  const auto count = static_cast<off_t>(bytes);
  if (written) {
    const int result = while_interrupted([&] {
      return ::sync_file_range(
          file_.fd, at, count,
          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    });
    if (result == -1 && errno != ESPIPE && errno != EINVAL && errno != ENOSYS) {
      fail_transfer("write", offset, "sync_file_range");
    }
  }
  (void)::posix_fadvise(file_.fd, at, count, POSIX_FADV_DONTNEED);  // advice
}

void StateFile::make_window(std::size_t largest) {
  window_ = std::make_unique<FileWindow>(*this, largest);
}

std::shared_ptr<std::byte> StateFile::map(std::uint64_t offset, std::size_t bytes) const {
  TESSERA_REQUIRE(file_.fd != -1, "{} of {} are planned and have no values", what_, folder_.owner);
  const std::size_t whole = round_up(std::max<std::size_t>(bytes, 1));
  void* const address = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file_.fd,
                               static_cast<off_t>(offset));
  if (address == MAP_FAILED) fail_transfer("map", offset, "mmap");
  return {static_cast<std::byte*>(address),
          [whole](std::byte* mapped) { ::munmap(mapped, whole); }};
}

void StateFile::fail_use(const char* call) const {
  fail(full_disk_or(errno, ErrorCode::configuration),
       "the offload folder '{}' cannot hold {} of {}: {}; choose a folder on a disk of this host "
       "that this user may write",
       folder_.path, what_, folder_.owner, describe_errno(call, errno));
}

void StateFile::fail_transfer(const char* action, std::uint64_t offset, const char* call) const {
  fail(full_disk_or_runtime(errno),
       "cannot {} byte {} of {} of {} in the offload folder '{}': {}; resume from the last "
       "checkpoint with another folder",
       action, offset, what_, folder_.owner, folder_.path, describe_errno(call, errno));
}

}  // namespace tessera
