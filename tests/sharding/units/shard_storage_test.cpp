// The three places of a shard, each alone: values arrive there, reads cast them, and reductions add
// to what is left of a gradient. On the CPU, whose host is itself.
#include "sharding/units/shard_storage.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "sharding/memory/layout.h"

namespace tessera {
namespace {

class ShardPlaces : public ::testing::TestWithParam<Placement> {
 protected:
  // Two segments, of several pieces of a file each.
  ShardPlaces()
      : layout_({{"weight", {3'000}, float32, bfloat16, true},
                 {"table", {2'500}, float32, float32, false}},
                1),
        files_(options(), needs(), 0, Device::cpu()) {}

  static OffloadOptions options() {
    OffloadOptions options;
    options.parameters = options.gradients = options.optimizer = GetParam();
    options.folder = ::testing::TempDir();
    options.piece_bytes = 8192;
    return options;
  }
  [[nodiscard]] FileNeeds needs() const { return file_needs({{"", &layout_}}); }

  // Writes first, first + 1, ... as a reduction that adds to present sums, or sets them.
  void reduce(const ShardStorage& shard, const ShardStorage::Carried& carried, float first) const {
    auto* const sums = reinterpret_cast<float*>(shard.open(carried));
    for (std::int64_t i = 0; i < layout_.local_gradient_elements(); ++i)
      sums[i] = (carried.is_set ? sums[i] : 0.0f) + first + static_cast<float>(i);
    if (const PointHandle point = shard.close()) point->synchronize();
  }

  UnitLayout layout_;
  OffloadFiles files_;
};

TEST_P(ShardPlaces, MastersAreReadInTheComputeDtype) {
  const auto masters = make_masters(files_, layout_);
  EXPECT_EQ(masters->placement(), GetParam());
  ASSERT_EQ(masters->tensors().size(), 2u);
  std::size_t bytes = 0;
  for (std::size_t s = 0; s < 2; ++s) {
    const Tensor& tensor = masters->tensors()[s];
    bytes += tensor.bytes();
    std::int64_t filled = 0;
    masters->fill(s, [&](ElementRange range, std::byte* out, Device) {
      EXPECT_EQ(range.first, filled);
      filled = range.end();
      auto* const values = reinterpret_cast<float*>(out);
      EXPECT_EQ(values[range.count - 1], 0.0f);
      // Few enough bits for bfloat16.
      for (std::int64_t i = 0; i < range.count; ++i)
        values[i] = static_cast<float>((range.first + i) % 97);
    });
    EXPECT_EQ(filled, tensor.elements());
    const DType dtype = layout_.segments()[s].compute_dtype;
    Tensor out = Tensor::empty({tensor.elements()}, dtype);
    masters->read(s, out.data(), dtype);
    if (const PointHandle point = masters->reads_done()) point->synchronize();
    EXPECT_EQ(out.to_vector(), tensor.to_vector());
    EXPECT_EQ(out.to_vector()[96], 96.0);
  }
  EXPECT_EQ(masters->device_bytes(), GetParam() == Placement::device ? bytes : 0u);
}

TEST_P(ShardPlaces, AReductionAddsToWhatIsCarried) {
  const std::int64_t elements = layout_.local_gradient_elements();
  const auto shard = make_gradient(files_, elements, float32);
  EXPECT_EQ(shard->placement(), GetParam());
  EXPECT_EQ(shard->device_bytes() > 0, GetParam() == Placement::device);
  reduce(*shard, {}, 8.0f);
  // Clipping has left a factor, and zero_grad() has dropped a parameter.
  shard->tensors()[0].storage()->edit_shard().pending_factor = 0.5f;
  const ShardStorage::Carried carried = shard->carry({{10, 30}, {elements, 0}});
  EXPECT_TRUE(carried.is_set);
  EXPECT_EQ(shard->tensors()[0].storage()->shard().pending_factor, 1.0f);
  reduce(*shard, carried, 1.0f);
  std::vector<double> expected(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto value = static_cast<double>(i);
    expected[i] = (i >= 10 && i < 40 ? 0.0 : 0.5 * (8.0 + value)) + 1.0 + value;
  }
  EXPECT_EQ(shard->tensors()[0].to_vector(), expected);
  // Later sums take the place of these.
  reduce(*shard, {}, 3.0f);
  std::iota(expected.begin(), expected.end(), 3.0);
  EXPECT_EQ(shard->tensors()[0].to_vector(), expected);
}

INSTANTIATE_TEST_SUITE_P(All, ShardPlaces,
                         ::testing::Values(Placement::device, Placement::host, Placement::file),
                         [](const auto& place) { return std::string(name_of(place.param)); });

}  // namespace
}  // namespace tessera
