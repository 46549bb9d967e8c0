// One pass over the bytes, in blocks that stay in the cache.
#include "engine/data/file_checksum.h"

#include <new>
#include <vector>

#include "base/xxh3.h"
#include "engine/data/data_file.h"

namespace tessera {

struct RunningChecksum::State {
  State() : xxh3(XXH3_createState()) {
    if (xxh3 == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(xxh3);
  }
  ~State() { XXH3_freeState(xxh3); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  XXH3_state_t* xxh3;
};

RunningChecksum::RunningChecksum() : state_(std::make_unique<State>()) {}

RunningChecksum::~RunningChecksum() = default;

void RunningChecksum::update(const void* data, std::size_t bytes) {
  XXH3_64bits_update(state_->xxh3, data, bytes);
}

std::uint64_t RunningChecksum::value() const {
  return XXH3_64bits_digest(state_->xxh3);
}

std::uint64_t checksum_of_file(const std::filesystem::path& path, std::int64_t first) {
  constexpr std::size_t block_bytes = std::size_t{512} << 10;
  const DataFile file(path.string());
  std::vector<std::byte> block(block_bytes);
  RunningChecksum sum;
  for (;;) {
    const std::size_t got = file.read_to_end(first, block.data(), block.size());
    if (got == 0) return sum.value();
    sum.update(block.data(), got);
    first += static_cast<std::int64_t>(got);
  }
}

}  // namespace tessera
