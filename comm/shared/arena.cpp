// Arenas over anonymous memory and over a memfd.
#include "comm/shared/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace tessera::comm {
namespace {

constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

// An allocation larger than the machine's memory would start the kernel's out-of-memory killer
// instead of failing.
void check_against_machine(std::size_t bytes) {
  struct sysinfo machine {};
  TESSERA_SYSTEM(sysinfo(&machine));
  const std::uint64_t total = (machine.totalram + machine.totalswap) * machine.mem_unit;
  TESSERA_CHECK(bytes <= total, ErrorCode::out_of_memory,
                "collectives need {} bytes of memory, and this host has {} in all; use "
                "smaller units or a "
                "strategy that shards more",
                bytes, total);
}

// Faults the pages in for writing. Before Linux 5.14, which lacks this call, the first use faults
// them in: slower, otherwise the same.
void populate(std::byte* memory, std::size_t bytes) {
  if (bytes == 0) return;
  int result = 0;
  do {
    result = madvise(memory, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  TESSERA_CHECK(result == 0 || errno == EINVAL, ErrorCode::out_of_memory,
                "cannot get {} bytes of memory for collectives: {}; use smaller units "
                "or a strategy "
                "that shards more",
                bytes, describe_errno("madvise(MADV_POPULATE_WRITE)", errno));
}

class AnonymousArena final : public Arena {
 public:
  std::uint64_t reserve(std::size_t bytes) override {
    check_against_machine(bytes);
    // Large ranges start on a huge page, so that all of it except the ends can be huge pages.
    const std::size_t alignment = bytes >= huge_page_bytes ? huge_page_bytes : page_bytes;
    const std::size_t slack = alignment - page_bytes;
    void* mapping = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TESSERA_CHECK(mapping != MAP_FAILED, ErrorCode::out_of_memory,
                  "cannot reserve {} bytes of address space for collectives: {}", bytes,
                  describe_errno("mmap", errno));
    const auto start = reinterpret_cast<std::uintptr_t>(mapping);
    const std::uintptr_t first = round_up(start, alignment);
    if (first > start) munmap(mapping, first - start);
    if (first - start < slack) {
      munmap(reinterpret_cast<void*>(first + bytes), slack - (first - start));
    }
    // Only advice: when huge pages are switched off, small ones serve. With huge pages, allocation
    // takes half the time and writing a tenth less; the kernel has no such advice for a memfd.
    if (alignment == huge_page_bytes) {
      madvise(reinterpret_cast<void*>(first), bytes, MADV_HUGEPAGE);
    }
    return first;
  }

  std::byte* map(std::uint64_t where, std::size_t) override {
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(where));
  }

  void commit(std::uint64_t where, std::size_t offset, std::size_t bytes) override {
    populate(map(where, bytes) + offset, bytes);
  }

  void prefault(std::byte*, std::size_t) override {
  }  // threads share the page table, so commit() has done it
  void unmap(std::byte*, std::size_t) noexcept override {}
  void discard(std::uint64_t where, std::size_t bytes) noexcept override {
    munmap(map(where, bytes), bytes);
  }
  [[nodiscard]] bool between_processes() const override { return false; }
};

class FileArena final : public Arena {
 public:
  FileArena(int descriptor, std::atomic<std::uint64_t>& next_free)
      : descriptor_(descriptor), next_free_(next_free) {}
  ~FileArena() override { close(descriptor_); }
  FileArena(const FileArena&) = delete;
  FileArena& operator=(const FileArena&) = delete;

  std::uint64_t reserve(std::size_t bytes) override {
    check_against_machine(bytes);
    return next_free_.fetch_add(round_up(bytes, page_bytes), std::memory_order_relaxed);
  }

  std::byte* map(std::uint64_t where, std::size_t bytes) override {
    void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_,
                         static_cast<off_t>(where));
    TESSERA_CHECK(mapping != MAP_FAILED, ErrorCode::out_of_memory,
                  "cannot map {} bytes of shared memory for collectives: {}", bytes,
                  describe_errno("mmap", errno));
    return static_cast<std::byte*>(mapping);
  }

  void commit(std::uint64_t where, std::size_t offset, std::size_t bytes) override {
    commit_file_range(descriptor_, where + offset, bytes);
  }

  void prefault(std::byte* memory, std::size_t bytes) override { populate(memory, bytes); }
  void unmap(std::byte* memory, std::size_t bytes) noexcept override { munmap(memory, bytes); }
  void discard(std::uint64_t where, std::size_t bytes) noexcept override {
    fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(where),
              static_cast<off_t>(bytes));
  }
  [[nodiscard]] bool between_processes() const override { return true; }

 private:
  int descriptor_;
  std::atomic<std::uint64_t>& next_free_;
};

}  // namespace

std::unique_ptr<Arena> make_anonymous_arena() {
  return std::make_unique<AnonymousArena>();
}

std::unique_ptr<Arena> make_file_arena(int descriptor, std::atomic<std::uint64_t>& next_free) {
  return std::make_unique<FileArena>(descriptor, next_free);
}

void commit_file_range(int descriptor, std::uint64_t offset, std::size_t bytes) {
  if (bytes == 0) return;
  int result = 0;
  do {
    result = fallocate(descriptor, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  TESSERA_CHECK(result == 0, ErrorCode::out_of_memory,
                "cannot get {} bytes of shared memory for collectives: {}; use smaller "
                "units or a "
                "strategy that shards more",
                bytes, describe_errno("fallocate", errno));
}

Segment::~Segment() {
  auto& header = *reinterpret_cast<SegmentHeader*>(memory_);
  const bool last = header.holders.fetch_sub(1, std::memory_order_acq_rel) == 1;
  arena_->unmap(memory_, bytes_);
  if (last) arena_->discard(where_, bytes_);
}

}  // namespace tessera::comm
