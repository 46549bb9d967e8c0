// The pipeline between source and sink, and the comparison of the written target.
#include "checkpoint/convert/stream.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/parallel.h"
#include "base/xxh3.h"
#include "checkpoint/io/file.h"
#include "checkpoint/state/transfer.h"
#include "checkpoint/steps/manifest.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {

namespace {

constexpr std::size_t most_block = std::size_t{4} << 20;
constexpr std::size_t least_block = std::size_t{256} << 10;
constexpr std::size_t blocks = 4;  // three between the threads, one before a change of dtype
// Buffers of the sources and sinks, stacks, and memory that the allocator keeps.
constexpr std::uint64_t reserve = std::uint64_t{16} << 20;

struct FreeHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};
using Hash = std::unique_ptr<XXH3_state_t, FreeHash>;

Hash make_hash() {
  Hash hash(XXH3_createState());
  if (hash == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(hash.get());
  return hash;
}

// A part of a tensor on its way.
struct Block {
  std::vector<std::byte> memory;
  std::size_t tensor = 0;
  std::int64_t count = 0;
};

// A queue between the two threads. Either side may end it.
class BlockQueue {
 public:
  BlockQueue(std::size_t number, std::size_t bytes) {
    for (std::size_t i = 0; i < number; ++i) {
      free_.emplace_back();
      free_.back().memory.resize(bytes);
    }
  }
  // False: the other side has ended.
  bool take_free(Block& block) { return take(free_, block, false); }
  void give_full(Block block) { give(full_, std::move(block)); }
  bool take_full(Block& block) { return take(full_, block, true); }
  void give_free(Block block) { give(free_, std::move(block)); }
  // No more blocks come; full blocks are still taken.
  void end() {
    const std::lock_guard guard(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

 private:
  bool take(std::deque<Block>& from, Block& block, bool to_the_last) {
    std::unique_lock guard(mutex_);
    changed_.wait(guard, [&] { return !from.empty() || ended_; });
    if (from.empty() || (ended_ && !to_the_last)) return false;
    block = std::move(from.front());
    from.pop_front();
    return true;
  }
  void give(std::deque<Block>& to, Block block) {
    const std::lock_guard guard(mutex_);
    to.push_back(std::move(block));
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Block> free_, full_;
  bool ended_ = false;
};

template <std::uint16_t infinity>
std::int64_t infinities16(const std::byte* data, std::int64_t count) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, data + i * 2, sizeof bits);
    found += (bits & 0x7fff) == infinity ? 1 : 0;
  }
  return found;
}

template <class Float>
std::int64_t infinities_of(const std::byte* data, std::int64_t count) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Float value = 0;
    std::memcpy(&value, data + static_cast<std::size_t>(i) * sizeof value, sizeof value);
    found += value == std::numeric_limits<Float>::infinity() ||
                     value == -std::numeric_limits<Float>::infinity()
                 ? 1
                 : 0;
  }
  return found;
}

std::int64_t infinities(const std::byte* data, std::int64_t count, DType dtype) {
  switch (dtype) {
    case DType::float16:
      return infinities16<0x7c00>(data, count);
    case DType::bfloat16:
      return infinities16<0x7f80>(data, count);
    case DType::float32:
      return infinities_of<float>(data, count);
    case DType::float64:
      return infinities_of<double>(data, count);
    default:
      return 0;
  }
}

// True if each finite value of `narrow` is finite in `wide`.
bool holds_all_of(DType wide, DType narrow) {
  return wide == DType::float64 || (wide == DType::float32 && narrow != DType::float64) ||
         (wide == DType::bfloat16 && narrow == DType::float16);
}

std::int64_t elements_of(const formats::TensorInfo& tensor) {
  return element_count(tensor.shape, tensor.name);
}

// One compute thread for this thread. The reader changes dtypes of a block in a millisecond, and
// threads of a pool that wait for its next block would take the processor from the writer.
class OneReader {
 public:
  OneReader() : previous_(compute_threads()) { set_compute_threads(1); }
  ~OneReader() { set_compute_threads(previous_); }
  OneReader(const OneReader&) = delete;
  OneReader& operator=(const OneReader&) = delete;

 private:
  int previous_;
};

class TensorStream {
 public:
  TensorStream(formats::Source& source, formats::Sink& sink, const ConversionPlan& plan,
               const ConvertOptions& options, std::size_t block_bytes)
      : source_(source),
        sink_(sink),
        plan_(plan),
        options_(options),
        block_bytes_(block_bytes),
        queue_(blocks - 1, block_bytes) {}

  std::vector<ConvertedTensor> run(std::vector<std::string>& notes) {
    SystemCalls& calls = system_calls();
    auto written = std::async(std::launch::async, [&] {
      const ScopedSystemCalls same_calls(calls);
      // A writer that fails must not leave the reader waiting for blocks.
      struct End {
        BlockQueue& queue;
        ~End() { queue.end(); }
      } end{queue_};
      write();
    });
    std::exception_ptr failure;
    try {
      const OneReader one_thread;
      read_all(notes);
    } catch (...) {
      failure = std::current_exception();
    }
    queue_.end();
    written.get();  // the writer's own error comes first: it is why the reader was stopped
    if (failure) std::rethrow_exception(failure);
    return std::move(sent_);
  }

 private:
  void read_all(std::vector<std::string>& notes) {
    std::uint64_t done = 0;
    for (std::size_t i = 0; i < plan_.contents.tensors.size(); ++i) {
      overflowed_ = 0;
      if (!read_tensor(i, done)) return;
      if (overflowed_ > 0) {
        notes.push_back(fmt::format("{} elements of '{}' are too large for {} and became infinite",
                                    overflowed_, plan_.contents.tensors[i].name,
                                    plan_.contents.tensors[i].stored->name));
      }
    }
  }

  // False: the writer has ended.
  bool read_tensor(std::size_t index, std::uint64_t& done) {
    const formats::TensorInfo& target = plan_.contents.tensors[index];
    const std::size_t from = plan_.source_of[index];
    const formats::TensorInfo& origin = source_.contents().tensors[from];
    const bool casts = origin.stored != target.stored;
    const std::size_t size = std::max(origin.stored->bits, target.stored->bits) / 8;
    const auto most = static_cast<std::int64_t>(block_bytes_ / size);
    const std::int64_t elements = elements_of(target);
    std::int64_t first = 0;
    do {
      if (options_.stop && options_.stop()) {
        fail(ErrorCode::runtime, "stopped; nothing was changed at the target");
      }
      Block block;
      if (!queue_.take_free(block)) return false;
      block.tensor = index;
      block.count = std::min(most, elements - first);
      if (casts) {
        convert_block(from, first, *origin.stored->dtype, *target.stored->dtype, block);
      } else if (block.count > 0) {
        source_.read(from, first, block.count, block.memory.data());
      }
      first += block.count;
      done += static_cast<std::uint64_t>(block.count) * origin.stored->bits / 8;
      queue_.give_full(std::move(block));
      if (options_.progress) options_.progress({"converting", done, plan_.bytes_read});
    } while (first < elements);
    return true;
  }

  void convert_block(std::size_t from, std::int64_t first, DType origin, DType target,
                     Block& block) {
    before_.resize(block_bytes_);
    if (block.count == 0) return;
    source_.read(from, first, block.count, before_.data());
    kernels::cpu::cast({.in = before_.data(),
                        .out = block.memory.data(),
                        .n = block.count,
                        .in_dtype = origin,
                        .out_dtype = target});
    if (holds_all_of(target, origin)) return;
    const std::int64_t after = infinities(block.memory.data(), block.count, target);
    if (after > 0) overflowed_ += after - infinities(before_.data(), block.count, origin);
  }

  // The elements as a reader of the result gets them.
  void add_to_hash(Hash& hash, const std::byte* data, std::size_t bytes) {
    if (const auto rounded = sink_.read_back()) {
      XXH3_64bits_update(hash.get(), rounded->data(), rounded->size());
    } else {
      XXH3_64bits_update(hash.get(), data, bytes);
    }
  }

  void write() {
    const bool hashes = options_.checksums || options_.verify;
    Block block;
    Hash hash = make_hash();
    std::int64_t done = 0;
    while (queue_.take_full(block)) {
      const formats::TensorInfo& tensor = plan_.contents.tensors[block.tensor];
      const auto bytes = static_cast<std::size_t>(block.count) * tensor.stored->bits / 8;
      if (block.count > 0) {
        sink_.append(block.tensor, block.memory.data(), block.count);
        if (hashes) add_to_hash(hash, block.memory.data(), bytes);
      }
      done += block.count;
      if (done == elements_of(tensor)) {
        sent_.push_back({tensor.part, tensor.name, tensor.stored, tensor.shape, bytes_of(tensor),
                         hashes ? XXH3_64bits_digest(hash.get()) : 0});
        XXH3_64bits_reset(hash.get());
        done = 0;
      }
      queue_.give_free(std::move(block));
    }
  }

  formats::Source& source_;
  formats::Sink& sink_;
  const ConversionPlan& plan_;
  const ConvertOptions& options_;
  std::size_t block_bytes_;
  BlockQueue queue_;
  std::vector<std::byte> before_;  // a block in the source's dtype
  std::int64_t overflowed_ = 0;
  std::vector<ConvertedTensor> sent_;
};

}  // namespace

ResidentBytes resident_memory() {
  ResidentBytes result;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (std::FILE* file = std::fopen("/proc/self/statm", "re"); file != nullptr) {
    unsigned long long total = 0;
    unsigned long long resident = 0;
    if (std::fscanf(file, "%llu %llu", &total, &resident) == 2) result.now = resident * page;
    std::fclose(file);
  }
  result.peak = std::max(result.now, static_cast<std::uint64_t>(peak_resident_bytes()));
  return result;
}

std::size_t block_bytes_for(std::uint64_t max_memory, std::uint64_t before,
                            const formats::Source& source, const ConversionPlan& plan) {
  const std::uint64_t now = resident_memory().now;
  const std::uint64_t taken = (now > before ? now - before : 0) + reserve;
  const std::uint64_t least = taken + blocks * least_block;
  TESSERA_CHECK(max_memory >= least, ErrorCode::out_of_memory,
                "--max-memory: {} bytes are too few: the program and the list of tensors alone "
                "need {}; allow {} or more",
                max_memory, taken, least);
  const auto block = static_cast<std::size_t>((max_memory - taken) / blocks);
  std::uint64_t largest = 4096;
  for (std::size_t i = 0; i < plan.source_of.size(); ++i) {
    largest = std::max({largest, bytes_of(plan.contents.tensors[i]),
                        bytes_of(source.contents().tensors[plan.source_of[i]])});
  }
  const auto useful = static_cast<std::size_t>(std::min<std::uint64_t>(largest, most_block));
  return std::min(useful, block / least_block * least_block);
}

std::vector<ConvertedTensor> stream_tensors(formats::Source& source, formats::Sink& sink,
                                            const ConversionPlan& plan,
                                            const ConvertOptions& options, std::size_t block_bytes,
                                            std::vector<std::string>& notes) {
  return TensorStream(source, sink, plan, options, block_bytes).run(notes);
}

void compare_tensors(formats::Source& written, const std::vector<ConvertedTensor>& sent,
                     const ConvertOptions& options, std::size_t block_bytes) {
  std::map<std::pair<formats::Part, std::string>, std::size_t> places;
  const auto& tensors = written.contents().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) places[{tensors[i].part, tensors[i].name}] = i;
  std::uint64_t total = 0;
  for (const ConvertedTensor& tensor : sent) total += tensor.bytes;
  std::vector<std::byte> block(block_bytes);
  Hash hash = make_hash();
  std::uint64_t done = 0;
  for (const ConvertedTensor& tensor : sent) {
    const auto place = places.find({tensor.part, tensor.name});
    TESSERA_CHECK(place != places.end(), ErrorCode::checkpoint,
                  "the result has no tensor '{}'; nothing was changed at the target", tensor.name);
    const formats::TensorInfo& found = tensors[place->second];
    TESSERA_CHECK(found.stored == tensor.stored && found.shape == tensor.shape,
                  ErrorCode::checkpoint,
                  "the result has tensor '{}' as {} {}, not {} {}; nothing was changed at "
                  "the target",
                  tensor.name, found.stored->name, describe_shape(found.shape), tensor.stored->name,
                  describe_shape(tensor.shape));
    XXH3_64bits_reset(hash.get());
    const std::size_t size = found.stored->bits / 8;
    const auto most = static_cast<std::int64_t>(block.size() / size);
    const std::int64_t elements = elements_of(found);
    for (std::int64_t first = 0; first < elements; first += most) {
      if (options.stop && options.stop()) {
        fail(ErrorCode::runtime, "stopped; nothing was changed at the target");
      }
      const std::int64_t count = std::min(most, elements - first);
      written.read(place->second, first, count, block.data());
      XXH3_64bits_update(hash.get(), block.data(), static_cast<std::size_t>(count) * size);
      done += static_cast<std::uint64_t>(count) * size;
      if (options.progress) options.progress({"verifying", done, total});
    }
    TESSERA_CHECK(XXH3_64bits_digest(hash.get()) == tensor.xxh3, ErrorCode::checkpoint,
                  "tensor '{}' was read back with other contents than were written; nothing was "
                  "changed at the target",
                  tensor.name);
  }
}

}  // namespace tessera::checkpoint
