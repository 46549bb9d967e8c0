// Blocks of the system's heap.
#include "engine/cpu/heap.h"

#include <sys/mman.h>

#include <cstdlib>

namespace tessera {
namespace {

constexpr std::size_t small_alignment = 64;
constexpr std::size_t large_block = std::size_t{1} << 20;  // from here on, blocks are whole pages
constexpr std::size_t page = 4096;
constexpr std::size_t huge_page = std::size_t{2} << 20;

}  // namespace

std::size_t Heap::granularity(std::size_t bytes) const {
  return bytes >= large_block ? page : small_alignment;
}

std::byte* Heap::take(std::size_t bytes) {
  void* block = std::aligned_alloc(granularity(bytes), bytes);
  // Advice only: without huge pages the memory works the same.
  if (block != nullptr && bytes >= 2 * huge_page) madvise(block, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(block);
}

void Heap::give_back(std::byte* block, std::size_t) {
  std::free(block);
}

}  // namespace tessera
