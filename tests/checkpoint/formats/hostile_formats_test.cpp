// Malicious files of other programs: sizes that overflow, small files that expand into much memory,
// missing parts. Each is refused quickly, by one line.
#include <gtest/gtest.h>

#include "checkpoint/convert/convert.h"
#include "checkpoint/formats/cover.h"
#include "checkpoint/formats/formats_testing.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::Box;
using formats::PickleWriter;

// A float32 tensor of a storage.
void write_strided(PickleWriter& pickle, const std::vector<std::int64_t>& shape,
                   const std::vector<std::int64_t>& strides, std::int64_t storage_elements,
                   const char* key = "0") {
  pickle.global("torch._utils", "_rebuild_tensor_v2").mark();
  pickle.mark().text("storage").global("torch", "FloatStorage").text(key).text("cpu");
  pickle.integer(storage_elements).tuple().persistent();
  pickle.integer(0).tuple_of(shape).tuple_of(strides).boolean(false);
  pickle.global("collections", "OrderedDict").empty_tuple().reduce();
  pickle.tuple().reduce();
}

// A DeepSpeed folder of two ranks, whose flat weights have this shape and stride, with one
// parameter of that many elements; without a number: without groups.
class ZeroFolder {
 public:
  ZeroFolder(int stage, std::optional<std::int64_t> parameter, std::int64_t flat = 4,
             std::int64_t stride = 1) {
    PickleWriter model;
    model.empty_dict().text("param_shapes").empty_list();
    if (parameter) {
      model.empty_dict().text("w").tuple_of({*parameter}).set_item().append();
    }
    model.set_item();
    write_torch_file(folder_.path() / "mp_rank_00_model_states.pt", model.finish());
    for (const int rank : {0, 1}) {
      PickleWriter state;
      state.empty_dict().text("optimizer_state_dict").empty_dict();
      state.text("zero_stage").integer(stage).set_item();
      state.text("partition_count").integer(2).set_item();
      state.text(stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
      state.empty_list();
      if (parameter) {
        write_strided(state, {flat}, {stride}, 4);
        state.append();
      }
      state.set_item().set_item();
      write_torch_file(
          folder_.path() / ("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt"),
          state.finish(), {std::string(16, '\0')});
    }
  }
  // Replaces the model's file by one with the tensors of the module: the parameter "w" of eight
  // elements, another name of its memory, and a tensor that nothing else lists.
  void write_module() const {
    PickleWriter model;
    model.empty_dict().text("param_shapes").empty_list().empty_dict();
    model.text("w").tuple_of({8}).set_item().append().set_item().text("module").empty_dict();
    for (const auto& [name, key] : {std::pair{"w", "0"}, {"again", "0"}, {"fixed", "1"}}) {
      model.text(name);
      write_strided(model, {8}, {1}, 8, key);
      model.set_item();
    }
    model.set_item();
    fs::remove(folder_.path() / "mp_rank_00_model_states.pt");
    write_torch_file(folder_.path() / "mp_rank_00_model_states.pt", model.finish(),
                     {std::string(32, '\0'), std::string(32, '\0')});
  }
  [[nodiscard]] std::string refusal() const {
    return error_of([&] { (void)formats::deepspeed_format().open(folder_.path()); });
  }
  [[nodiscard]] std::unique_ptr<formats::Source> open() const {
    return formats::deepspeed_format().open(folder_.path());
  }

 private:
  TemporaryFolder folder_;
};

TEST(HostileZero, TheFoldersOfThisTestAreReadable) {
  EXPECT_EQ(ZeroFolder(2, 8).open()->contents().tensors.size(), 1u);
  EXPECT_EQ(ZeroFolder(3, 8).open()->contents().tensors.size(), 1u);
}

// Stage 1 does not list frozen parameters.
TEST(ZeroModule, KeepsTensorsThatNoGroupHas) {
  const ZeroFolder folder(2, 8);
  folder.write_module();
  const auto source = folder.open();
  ASSERT_EQ(source->contents().tensors.size(), 2u);
  EXPECT_EQ(source->contents().tensors[0].name, "fixed");
  EXPECT_EQ(source->contents().aliases.at("again"), "w");
}

TEST(HostileZero, PartitionsWithoutGroups) {
  EXPECT_TRUE(has(ZeroFolder(2, {}).refusal(), "no partition"));
  EXPECT_TRUE(has(ZeroFolder(3, {}).refusal(), "no partition"));
}

TEST(HostileZero, FlatWeightsThatExceedTheirStorage) {
  EXPECT_TRUE(has(ZeroFolder(2, 8, 4, std::int64_t{1} << 62).refusal(), "out of its storage"));
  EXPECT_TRUE(has(ZeroFolder(2, 10, 5).refusal(), "out of its storage"));
}

TEST(HostileZero, ParametersOfNearlyMaximalSize) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(has(ZeroFolder(3, most).refusal(), "fewer elements"));
  EXPECT_TRUE(has(ZeroFolder(2, most).refusal(), "fewer elements"));
}

TEST(HostileShapes, StridesMustBeNumbersEvenWithoutElements) {
  constexpr std::int64_t large = std::int64_t{1} << 40;
  EXPECT_TRUE(has(error_of([&] {
                    element_count({0, large, large}, "t");
                  }),
                  "not give a valid number"));
  EXPECT_EQ(element_count({0, large, 2}, "t"), 0);
}

// A dict that contains the inner dict twice, and so on: a few hundred bytes, and 2^levels visits.
void write_doubled(PickleWriter& pickle, int levels,
                   const std::function<void(PickleWriter&)>& innermost) {
  if (levels == 0) return innermost(pickle);
  pickle.empty_dict().text("a");
  write_doubled(pickle, levels - 1, innermost);
  const std::uint32_t inner = pickle.put();
  pickle.set_item().text("b").get(inner).set_item();
}

TEST(HostilePickles, SharedPartsAreNotExpandedWithoutLimit) {
  TemporaryFolder folder;
  PickleWriter pickle;
  write_doubled(pickle, 24, [](PickleWriter& out) {
    out.empty_dict().text("w");
    write_strided(out, {4}, {1}, 4);
    out.set_item();
  });
  write_torch_file(folder.path() / "f.pt", pickle.finish(), {std::string(16, '\0')});
  const auto before = resident_memory().now;
  EXPECT_TRUE(has(error_of([&] { (void)formats::torch_format().open(folder.path() / "f.pt"); }),
                  "repeats its parts"));
  EXPECT_LT(resident_memory().now, before + (std::uint64_t{256} << 20));
}

TEST(HostilePickles, TextsThatAreRepeatedTakeNoMemory) {
  PickleWriter pickle;
  const std::string line(1 << 20, 'x');
  pickle.empty_list();
  for (int i = 0; i < 10'000; ++i) pickle.text(line).append();  // written once
  const formats::Pickle read(pickle.finish(), "'f'", formats::torch_rules);
  const auto converted = formats::PickleToJson().convert(read.root());
  std::size_t bytes = 0;
  for (const auto& each : converted) bytes += each.get_ref<const std::string&>().size();
  EXPECT_LT(bytes, std::size_t{64} << 20);
}

TEST(HostilePickles, AShapeHasFewDimensions) {
  TemporaryFolder folder;
  PickleWriter pickle;
  pickle.empty_dict().text("w");
  write_strided(pickle, std::vector<std::int64_t>(100'000, 1),
                std::vector<std::int64_t>(100'000, 1), 4);
  write_torch_file(folder.path() / "f.pt", pickle.set_item().finish(), {std::string(16, '\0')});
  EXPECT_TRUE(has(error_of([&] { (void)formats::torch_format().open(folder.path() / "f.pt"); }),
                  "dimensions"));
}

TEST(HostileChunks, ManyCutsOfManyChunksAreRefusedBeforeTheyAreCounted) {
  const std::vector<std::int64_t> shape(8, 8);
  std::vector<Box> boxes;
  for (int i = 0; i < 200'000; ++i) {
    Box box{std::vector<std::int64_t>(8), std::vector<std::int64_t>(8, 1)};
    for (int d = 0; d < 8; ++d) box.offsets[static_cast<std::size_t>(d)] = (i >> (2 * d)) & 3;
    boxes.push_back(std::move(box));
  }
  EXPECT_TRUE(has(formats::cover_problem(shape, boxes), "too many"));
}

TEST(HostileNames, NamesWithControlCharactersAreNotPlain) {
  EXPECT_TRUE(is_plain_name("modèle-1.safetensors"));
  for (const char* name : {"a\x1b[2Jb", "a\nb", "a\x7f", "a\xc2\x9b", "a/b", "a\\b", "..", ""}) {
    EXPECT_FALSE(is_plain_name(name)) << name;
  }
}

}  // namespace
}  // namespace tessera::checkpoint
