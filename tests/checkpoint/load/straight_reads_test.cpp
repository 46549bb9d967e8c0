// A load makes no extra copies: it reads each byte of a checkpoint once, directly into the tensor,
// also where a checksum's chunk spans several tensors.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/io/file.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

constexpr int two_ranks = 2;
constexpr std::int64_t tensor_count = 7;
constexpr std::int64_t tensor_elements = 600'001;  // 2.3 MiB; a rank has half

// A rank's halves of the tensors, with a different number in each tensor.
struct Halves {
  explicit Halves(int rank, bool filled) {
    const std::int64_t part = (tensor_elements + two_ranks - 1) / two_ranks;
    const std::int64_t first = part * rank;
    const std::int64_t count = std::min(part, tensor_elements - first);
    memory.assign(static_cast<std::size_t>(count * tensor_count), -1.0f);
    for (std::int64_t t = 0; t < tensor_count; ++t) {
      float* const values = memory.data() + t * count;
      for (std::int64_t i = 0; filled && i < count; ++i) {
        values[i] = static_cast<float>(t * tensor_elements + first + i);
      }
      state.model.push_back({"layer." + std::to_string(t),
                             DType::float32,
                             {tensor_elements},
                             {{first, count, reinterpret_cast<std::byte*>(values)}}});
    }
    if (filled) state.scalars.set("step", 1);
  }
  State state;
  std::vector<float> memory;
};

// Counts the bytes that are read, and those that do not go into a tensor.
class WatchedReads final : public SystemCalls {
 public:
  explicit WatchedReads(const std::vector<float>& memory)
      : begin_(reinterpret_cast<const std::byte*>(memory.data())),
        end_(begin_ + memory.size() * sizeof(float)) {}
  ssize_t pread(int fd, void* data, std::size_t bytes, off_t offset) override {
    const ssize_t got = SystemCalls::pread(fd, data, bytes, offset);
    if (got > 0) {
      const auto* const to = static_cast<const std::byte*>(data);
      all += static_cast<std::size_t>(got);
      if (to < begin_ || to >= end_) elsewhere += static_cast<std::size_t>(got);
    }
    return got;
  }
  std::atomic<std::size_t> all{0}, elsewhere{0};

 private:
  const std::byte *begin_, *end_;
};

class StraightReads : public ::testing::TestWithParam<StateDictType> {};

TEST_P(StraightReads, EachByteOnceAndIntoItsTensor) {
  const TemporaryFolder folder;
  comm::run_local(two_ranks, [&](const auto& communicator) {
    const Halves saved(communicator->rank(), true);
    save(*communicator, folder.path(), 1, saved.state, {.type = GetParam()});
    Halves loaded(communicator->rank(), false);
    WatchedReads reads(loaded.memory);
    {
      const ScopedSystemCalls scope(reads);
      load(*communicator, folder.path() / "step-1", loaded.state);
    }
    EXPECT_EQ(loaded.memory, saved.memory);
    // The manifest, and in each file the chunk that contains the header.
    const std::size_t own = saved.memory.size() * sizeof(float);
    const std::size_t chunk = chunk_bytes_of(own);
    EXPECT_LE(reads.elsewhere, 2 * chunk + (std::size_t{64} << 10));
    EXPECT_LE(reads.all, own + 2 * chunk + (std::size_t{64} << 10));
  });
}

TEST_P(StraightReads, ADamagedByteIsFoundInAnyTensor) {
  const TemporaryFolder folder;
  comm::run_local(two_ranks, [&](const auto& communicator) {
    const Halves saved(communicator->rank(), true);
    save(*communicator, folder.path(), 1, saved.state, {.type = GetParam()});
  });
  const fs::path step = folder.path() / "step-1";
  const fs::path file =
      step / (GetParam() == StateDictType::full ? "model.safetensors"
                                                : "model-rank-00001-of-00002.safetensors");
  const std::string good = read_all(file);
  for (std::size_t at = good.size() / 11; at < good.size(); at += good.size() / 5) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    write_all(file, bad);
    const std::string text = error_of([&] {
      comm::run_local(two_ranks, [&](const auto& communicator) {
        Halves loaded(communicator->rank(), false);
        load(*communicator, step, loaded.state);
      });
    });
    EXPECT_TRUE(has(text, "do not match their checksum")) << at;
  }
}

INSTANTIATE_TEST_SUITE_P(BothTypes, StraightReads,
                         ::testing::Values(StateDictType::full, StateDictType::sharded),
                         [](const auto& type) {
                           return type.param == StateDictType::full ? "Full" : "Sharded";
                         });

// A folder that another program wrote: a rank reads its shards and the header, not the whole model.
TEST(StraightReadsOfWeights, ARankReadsItsShardsOfAHuggingFaceFolder) {
  const TemporaryFolder folder;
  std::vector<float> values(static_cast<std::size_t>(tensor_count * tensor_elements));
  std::iota(values.begin(), values.end(), 0.0f);
  std::vector<TensorToWrite> tensors;
  for (std::int64_t t = 0; t < tensor_count; ++t) {
    tensors.push_back({{"layer." + std::to_string(t), DType::float32, {tensor_elements}},
                       values.data() + t * tensor_elements});
  }
  write_safetensors(folder.path() / "model.safetensors", tensors);
  comm::run_local(two_ranks, [&](const auto& communicator) {
    const Halves expected(communicator->rank(), true);
    Halves loaded(communicator->rank(), false);
    WatchedReads reads(loaded.memory);
    {
      const ScopedSystemCalls scope(reads);
      load_hugging_face(folder.path().string(), loaded.state.model, {});
    }
    EXPECT_EQ(loaded.memory, expected.memory);
    EXPECT_LE(reads.elsewhere, std::size_t{64} << 10);
    EXPECT_EQ(reads.all - reads.elsewhere, expected.memory.size() * sizeof(float));
  });
}

// Ranges of a file as a reader may ask for them.
class Parts : public ::testing::Test {
 protected:
  Parts() {
    for (std::size_t i = 0; i < contents_.size(); ++i)
      contents_[i] = static_cast<char>(i * 37 >> 3);
    write_all(folder_.path() / "f", contents_);
    ChunkHasher hasher(chunk_);
    hasher.update(contents_.data(), contents_.size());
    hasher.cut();
    record_ = {"f", contents_.size(), chunk_, hasher.sums(), {}};
  }
  // Reads the ranges [first, end) together.
  std::string read(const std::vector<std::pair<std::size_t, std::size_t>>& ranges) {
    std::string out;
    for (const auto& [first, end] : ranges) out.append(end - first, '\0');
    std::vector<VerifiedFile::Part> parts;
    std::byte* next = reinterpret_cast<std::byte*>(out.data());
    for (const auto& [first, end] : ranges) {
      parts.push_back({first, next, end - first});
      next += end - first;
    }
    file().read(parts);
    return out;
  }
  [[nodiscard]] std::string expected(
      const std::vector<std::pair<std::size_t, std::size_t>>& ranges) const {
    std::string out;
    for (const auto& [first, end] : ranges) out += contents_.substr(first, end - first);
    return out;
  }
  VerifiedFile& file() {
    if (!file_) file_.emplace(folder_.path(), record_);
    return *file_;
  }

  static constexpr std::size_t chunk_ = std::size_t{1} << 17;
  TemporaryFolder folder_;
  std::string contents_ = std::string(5 * chunk_ + 1234, '\0');
  FileRecord record_;
  std::optional<VerifiedFile> file_;
};

TEST_F(Parts, WithAndWithoutGapsAcrossChunks) {
  const std::size_t all = contents_.size();
  const std::vector<std::vector<std::pair<std::size_t, std::size_t>>> wanted = {
      {{0, all}},
      {{0, chunk_ / 2}, {chunk_ / 2, 3 * chunk_ + 1}, {3 * chunk_ + 1, all}},
      {{5, 6}, {6, 6}, {chunk_ - 1, chunk_ + 1}, {2 * chunk_, 3 * chunk_}, {all - 1, all}},
      {{chunk_, 2 * chunk_},
       {2 * chunk_, 2 * chunk_},
       {2 * chunk_, 2 * chunk_ + 40'000},
       {2 * chunk_ + 40'000, 3 * chunk_},
       {all, all}},
      {}};
  for (const auto& ranges : wanted) EXPECT_TRUE(read(ranges) == expected(ranges));
  // Many small ranges cover a chunk as well.
  std::vector<std::pair<std::size_t, std::size_t>> small;
  for (std::size_t at = 0; at < chunk_; at += 1000) {
    small.emplace_back(at, std::min(at + 1000, chunk_));
  }
  EXPECT_TRUE(read(small) == expected(small));
}

TEST_F(Parts, OutsideOrOutOfOrderIsAnError) {
  const std::size_t all = contents_.size();
  EXPECT_THROW(read({{all - 1, all + 1}}), std::logic_error);
  EXPECT_THROW(read({{10, 20}, {19, 30}}), std::logic_error);
}

}  // namespace
}  // namespace tessera::checkpoint
