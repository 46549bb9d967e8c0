// Files of state: data written at any place are read back, with direct I/O and through the page
// cache, in pieces and through a mapping.
#include "engine/storage/state_file.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/device/memory.h"
#include "engine/storage/file_window.h"
#include "engine/storage/storage.h"
#include "engine/tensor.h"

namespace tessera {
namespace {

constexpr std::size_t file_bytes = 40 * StateFile::alignment;

StateFolder folder(bool direct) {
  return {::testing::TempDir(), "rank 5", Device::cpu(), 8192, direct};
}

class StateFiles : public ::testing::TestWithParam<bool> {};

// Compares with an array in memory: ranges of any length at any place, most of them not aligned to
// blocks.
TEST_P(StateFiles, KeepWrittenData) {
  StateFile file(folder(GetParam()), "the masters", MemoryKind::parameters, file_bytes);
  EXPECT_EQ(file.take(file_bytes), 0u);
  std::vector<unsigned char> expected(file_bytes);
  std::mt19937 random(7);
  const auto draw = [&](std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random);
  };
  for (int round = 0; round < 300; ++round) {
    const std::size_t offset = draw(file_bytes);
    const std::size_t count = 1 + draw(std::min<std::size_t>(file_bytes - offset, 20'000));
    std::vector<unsigned char> values(count);
    for (auto& value : values) value = static_cast<unsigned char>(draw(256));
    if (round % 3 == 0) {
      file.read(offset, reinterpret_cast<std::byte*>(values.data()), count);
      ASSERT_EQ(std::memcmp(values.data(), expected.data() + offset, count), 0) << round;
    } else if (round % 31 == 1) {
      const auto mapped = file.map(offset / 4096 * 4096, count);
      std::memcpy(mapped.get(), values.data(), count);
      std::memcpy(expected.data() + offset / 4096 * 4096, values.data(), count);
    } else {
      file.write(offset, reinterpret_cast<const std::byte*>(values.data()), count);
      std::memcpy(expected.data() + offset, values.data(), count);
    }
  }
  const auto mapped = file.map(0, file_bytes);
  EXPECT_EQ(std::memcmp(mapped.get(), expected.data(), file_bytes), 0);
}

// An array that changes and one that is only read, each with another offset in its block.
TEST_P(StateFiles, StreamInPieces) {
  constexpr std::int64_t count = 20'000, lead = 40, grid = 1024 * 3 + 40;
  StateFile values(folder(GetParam()), "the values", MemoryKind::parameters, 4 * 25'600);
  StateFile deltas(folder(GetParam()), "the deltas", MemoryKind::gradients, 4 * 25'600);
  std::vector<float> numbers(25'600);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  for (StateFile* file : {&values, &deltas}) {
    file->make_window(4 * 25'600);
    file->write(0, reinterpret_cast<const std::byte*>(numbers.data()), 4 * numbers.size());
  }
  const std::vector<StreamedArray> arrays = {{values.window(), 4 * lead, 4, true},
                                             {deltas.window(), 4 * 352, 4, false}};
  std::int64_t next = 100;
  stream_arrays(arrays, {100, count}, grid,
                [&](ElementRange range, std::span<std::byte* const> where) {
                  EXPECT_EQ(range.first, next);
                  next = range.end();
                  EXPECT_TRUE((grid + next) % 1024 == 0 || next == 100 + count);
                  auto* const value = reinterpret_cast<float*>(where[0]);
                  const auto* const delta = reinterpret_cast<const float*>(where[1]);
                  for (std::int64_t i = 0; i < range.count; ++i) value[i] += 1000 * delta[i];
                });
  EXPECT_EQ(next, 100 + count);
  std::vector<float> after(numbers.size());
  values.read(0, reinterpret_cast<std::byte*>(after.data()), 4 * after.size());
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(after.size()); ++i) {
    const std::int64_t element = i - lead;
    const bool changed = element >= 100 && element < 100 + count;
    const auto expected =
        static_cast<float>(i) + (changed ? 1000 * static_cast<float>(element + 352) : 0.0f);
    ASSERT_EQ(after[static_cast<std::size_t>(i)], expected) << i;
  }
}

TEST_P(StateFiles, ExceptionsOfTheWorkAreRethrown) {
  StateFile file(folder(GetParam()), "the masters", MemoryKind::parameters, file_bytes);
  file.make_window(file_bytes);
  const StreamedArray array{file.window(), 0, 4, true};
  EXPECT_THROW(stream_arrays(std::span(&array, 1), {0, file_bytes / 4}, 0,
                             [](ElementRange, std::span<std::byte* const>) {
                               fail(ErrorCode::runtime, "enough");
                             }),
               Error);
}

INSTANTIATE_TEST_SUITE_P(Ways, StateFiles, ::testing::Values(true, false),
                         [](const auto& direct) { return direct.param ? "Direct" : "Cached"; });

TEST(StateFile, TensorsInItAreMapped) {
  const auto file =
      std::make_shared<StateFile>(folder(true), "the masters", MemoryKind::parameters, file_bytes);
  const std::size_t in_use = MemoryPool::current()->stats().in_use;
  Tensor first = Tensor::view_of(Storage::in_file(file, 400), 0, {100}, float32);
  const Tensor second = Tensor::view_of(Storage::in_file(file, 40), 0, {10}, float32);
  EXPECT_EQ(second.storage()->file().offset, StateFile::alignment);
  EXPECT_EQ(MemoryPool::current()->stats().in_files[MemoryKind::parameters], 440u);
  EXPECT_EQ(MemoryPool::current()->stats().in_use, in_use);
  EXPECT_EQ(second.to_vector(), std::vector<double>(10, 0.0));
  first.copy_from(Tensor::full({100}, 1.5, float32, Device::cpu()));
  std::vector<float> read(100);
  file->read(0, reinterpret_cast<std::byte*>(read.data()), 400);
  EXPECT_EQ(read, std::vector<float>(100, 1.5f));
}

// A save that reads the file during training does not see later writes.
TEST(StateFile, WritersThroughAMappingWaitForItsReaders) {
  const auto file =
      std::make_shared<StateFile>(folder(true), "the masters", MemoryKind::parameters, file_bytes);
  Tensor values = Tensor::view_of(Storage::in_file(file, 400), 0, {100}, float32);
  std::shared_ptr<void> held = file->hold();
  float seen = -1;
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    file->read(0, reinterpret_cast<std::byte*>(&seen), sizeof seen);
    held.reset();
  });
  values.copy_from(Tensor::full({100}, 1.5, float32, Device::cpu()));
  reader.join();
  EXPECT_EQ(seen, 0.0f);
  EXPECT_EQ(values.to_vector(), std::vector<double>(100, 1.5));
}

TEST(StateFile, TakesNoMoreThanTheReservedSize) {
  StateFile file(folder(true), "the masters", MemoryKind::parameters, 2 * StateFile::alignment);
  (void)file.take(5000);
  EXPECT_THROW((void)file.take(1), std::logic_error);
}

}  // namespace
}  // namespace tessera
