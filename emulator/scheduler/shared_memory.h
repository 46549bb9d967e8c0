// A block's shared memory.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace tessera::emulator {

// The dynamic part and the variables of one block. Contents start as bytes 0xff, which every
// floating type reads as NaN. A gap that must not be touched follows each piece: the address
// sanitizer reports any access to it, and in every build check_gaps() finds writes to it.
class SharedMemory {
 public:
  // The size that the hardware gives a block (sm_90), and the part that variables may take.
  static constexpr std::size_t most = std::size_t{227} << 10;
  static constexpr std::size_t most_for_variables = std::size_t{48} << 10;

  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void begin_block(std::size_t dynamic_bytes);
  // Null, or an error: the block has written outside of its pieces.
  [[nodiscard]] const char* check_gaps() const;
  void end_block();

  [[nodiscard]] std::byte* dynamic() const { return memory_; }
  // The variable that `key` identifies, created at first use. Null: no room.
  std::byte* variable(const void* key, std::size_t bytes);
  // True if all of the bytes belong to one piece.
  [[nodiscard]] bool contains(const void* address, std::size_t bytes) const;

  // Addresses for ordering the block's threads (sanitizers.h). Each block gets new ones, so that
  // one block does not seem ordered with the next.
  [[nodiscard]] void* ordering(unsigned index) const;
  static constexpr unsigned orderings = 1 << 12;

 private:
  struct Piece {
    const void* key;  // null: the dynamic part
    std::size_t offset, bytes;
  };
  std::byte* add(const void* key, std::size_t bytes);
  void take_memory();

  std::byte* memory_ = nullptr;
  std::size_t used_ = 0;            // with gaps
  std::size_t variable_bytes_ = 0;  // without
  std::vector<Piece> pieces_;
};

}  // namespace tessera::emulator
