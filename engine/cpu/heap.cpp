// Blocks of system memory: small ones come from the heap, large ones are mapped separately. A heap
// keeps the holes between freed blocks, and the construction of a model leaves large ones: a tenth
// of a rank's memory that no tensor uses. A mapped block that the pool gives back is returned
// completely.
#include "engine/cpu/heap.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace tessera {
namespace {

constexpr std::size_t small_alignment = 64;
constexpr std::size_t large_block = std::size_t{1} << 20;  // from this size on: whole pages
constexpr std::size_t page = 4096;
constexpr std::size_t huge_page = std::size_t{2} << 20;

// The address sanitizer checks the ends of heap blocks, not of mappings.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool maps_large_blocks = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool maps_large_blocks = false;
#else
constexpr bool maps_large_blocks = true;
#endif
#else
constexpr bool maps_large_blocks = true;
#endif

bool is_mapped(std::size_t bytes) {
  return maps_large_blocks && bytes >= large_block;
}

// Maps whole pages of zeros. From the size of a huge page on, the block begins at a huge page, so
// all of it except the end can be huge pages. Null if no memory is left.
std::byte* map_pages(std::size_t bytes) {
  const std::size_t alignment = bytes >= huge_page ? huge_page : page;
  const std::size_t slack = alignment - page;
  void* const mapping =
      ::mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* const start = static_cast<std::byte*>(mapping);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(start) % alignment;
  const std::size_t before = past == 0 ? 0 : alignment - past;
  if (before > 0) ::munmap(start, before);
  if (before < slack) ::munmap(start + before + bytes, slack - before);
  return start + before;
}

}  // namespace

std::size_t Heap::granularity(std::size_t bytes) const {
  return bytes >= large_block ? page : small_alignment;
}

std::byte* Heap::take(std::size_t bytes) {
  auto* const block = is_mapped(bytes)
                          ? map_pages(bytes)
                          : static_cast<std::byte*>(std::aligned_alloc(granularity(bytes), bytes));
  // Only advice: the memory also works without huge pages.
  if (block != nullptr && bytes >= huge_page) ::madvise(block, bytes, MADV_HUGEPAGE);
  return block;
}

void Heap::give_back(std::byte* block, std::size_t bytes) {
  if (is_mapped(bytes)) {
    ::munmap(block, bytes);
  } else {
    std::free(block);
  }
}

bool Heap::discard(std::byte* block, std::size_t bytes) {
  return bytes >= smallest_discarded && ::madvise(block, bytes, MADV_DONTNEED) == 0;
}

void Heap::populate(std::byte* block, std::size_t bytes) {
  (void)::madvise(block, bytes, MADV_POPULATE_WRITE);  // before Linux 5.14: pages at first write
}

// Small blocks leave whole pages free between others.
void Heap::give_back_holes() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace tessera
