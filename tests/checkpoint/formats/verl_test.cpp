// Folders with a state dict of DTensors for each rank, as verl writes them: joined, or refused with
// the name of what is missing. make_fixtures.py makes the fixture with FSDP2 on two ranks.
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/convert/convert.h"
#include "checkpoint/formats/formats_testing.h"
#include "checkpoint/formats/known_formats.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::PickleWriter;

std::string notes_of_verl(const formats::Source& source) {
  std::string all;
  for (const std::string& note : source.contents().notes) all += note + "\n";
  return all;
}

class VerlFolder : public ::testing::Test {
 protected:
  VerlFolder() { fs::copy(fixture("verl"), path(), fs::copy_options::recursive); }
  [[nodiscard]] fs::path path() const { return folder_.path() / "actor"; }
  [[nodiscard]] std::string refusal() const {
    return error_of([&] { (void)formats::recognise(path()).open(path()); });
  }
  TemporaryFolder folder_;
};

TEST_F(VerlFolder, IsJoinedWithItsMoments) {
  const formats::Format& format = formats::recognise(path());
  EXPECT_STREQ(format.name, "verl");
  const auto source = format.open(path());
  for (const std::int64_t step : {1, 7, 1 << 20}) {
    expect_equal(tensors_of(*source, step), expected_tensors("verl.safetensors"));
  }
  EXPECT_EQ(source->contents().scalars.get<std::int64_t>("step"), 3);
  EXPECT_TRUE(has(notes_of_verl(*source), "of 2 ranks, joined"));
  EXPECT_TRUE(
      has(notes_of_verl(*source), "2 files, such as \"extra_state_world_size_2_rank_0.pt\""));
  EXPECT_TRUE(source->contents().files.contains("config.json"));
  EXPECT_FALSE(source->contents().files.contains("fsdp_config.json"));
  EXPECT_EQ(source->verify(nullptr), std::vector<std::string>{});
}

TEST_F(VerlFolder, AMissingRankIsNamed) {
  fs::rename(path() / "model_world_size_2_rank_1.pt", path() / "away");
  EXPECT_TRUE(has(refusal(), "model_world_size_2_rank_1.pt, the file of rank 1 of 2, is missing"));
  fs::rename(path() / "away", path() / "model_world_size_2_rank_1.pt");
  fs::remove(path() / "optim_world_size_2_rank_0.pt");
  EXPECT_TRUE(has(refusal(), "optim_world_size_2_rank_0.pt, the file of rank 0 of 2, is missing"));
  fs::remove(path() / "optim_world_size_2_rank_1.pt");
  EXPECT_FALSE(formats::recognise(path()).open(path())->contents().tensors.empty());
}

TEST_F(VerlFolder, FilesOfTwoSavesAreRefused) {
  fs::copy(path() / "model_world_size_2_rank_1.pt", path() / "model_world_size_3_rank_1.pt");
  EXPECT_TRUE(has(refusal(), "files of 2 ranks and of 3"));
  fs::rename(path() / "model_world_size_3_rank_1.pt", path() / "model_world_size_2_rank_2.pt");
  EXPECT_TRUE(has(refusal(), "a rank that its world does not have"));
}

// The file says itself where its rank is: a copy under another name leaves a hole.
TEST_F(VerlFolder, ARankTwiceLeavesAHole) {
  fs::copy_file(path() / "model_world_size_2_rank_0.pt", path() / "model_world_size_2_rank_1.pt",
                fs::copy_options::overwrite_existing);
  EXPECT_TRUE(has(refusal(), "first.weight"));
}

TEST_F(VerlFolder, EveryTruncationIsRefused) {
  const fs::path file = path() / "model_world_size_2_rank_1.pt";
  const std::string whole = read_all(file);
  for (std::size_t keep = 0; keep < whole.size(); keep += 311) {
    write_all(file, whole.substr(0, keep));
    EXPECT_TRUE(has(refusal(), "rank_1.pt")) << keep;
  }
}

TEST_F(VerlFolder, StateThatIsNotJoinedIsNotLostWithoutAWord) {
  fs::copy_file(path() / "extra_state_world_size_2_rank_0.pt",
                path() / "optim_world_size_2_rank_1.pt", fs::copy_options::overwrite_existing);
  const auto source = formats::recognise(path()).open(path());
  EXPECT_EQ(source->contents().unread_state, "optim_world_size_2_rank_0.pt");
  const fs::path out = folder_.path() / "out";
  EXPECT_TRUE(has(error_of([&] { (void)convert(path(), out, {.to = "full"}); }), "--weights-only"));
  EXPECT_EQ(convert(path(), out, {.to = "full", .weights_only = true}).tensors.size(), 4u);
}

// The names of Accelerate with use_dcp=False, for the same files.
class RanksOfAccelerate : public VerlFolder {
 protected:
  RanksOfAccelerate() {
    for (const std::string rank : {"0", "1"}) {
      fs::rename(path() / ("model_world_size_2_rank_" + rank + ".pt"), model(rank));
      fs::rename(path() / ("optim_world_size_2_rank_" + rank + ".pt"), optimizer(rank));
      fs::remove(path() / ("extra_state_world_size_2_rank_" + rank + ".pt"));
    }
  }
  [[nodiscard]] fs::path model(const std::string& rank) const {
    return path() / ("pytorch_model_fsdp_0_rank" + rank + ".bin");
  }
  [[nodiscard]] fs::path optimizer(const std::string& rank) const {
    return path() / ("optimizer_0_rank" + rank + ".bin");
  }
};

TEST_F(RanksOfAccelerate, AreJoinedWithTheirMoments) {
  const formats::Format& format = formats::recognise(path());
  EXPECT_STREQ(format.name, "verl");
  const auto source = format.open(path());
  expect_equal(tensors_of(*source), expected_tensors("verl.safetensors"));
  EXPECT_EQ(source->contents().scalars.get<std::int64_t>("step"), 3);
  EXPECT_EQ(source->contents().unread_state, "");
}

TEST_F(RanksOfAccelerate, AMissingFileIsNamed) {
  const std::string text = "rank0.bin, the file of rank 0 of 2, is missing";
  fs::rename(optimizer("0"), path() / "away");
  EXPECT_TRUE(has(refusal(), "optimizer_0_" + text));
  fs::rename(path() / "away", optimizer("0"));
  fs::rename(model("0"), path() / "away");
  EXPECT_TRUE(has(refusal(), "pytorch_model_fsdp_0_" + text));
  // The last rank is in no name. Its part of a tensor is a hole.
  fs::rename(path() / "away", model("0"));
  for (const fs::path& file : {model("1"), optimizer("0"), optimizer("1")}) fs::remove(file);
  EXPECT_TRUE(has(refusal(), "lies in no chunk"));
}

TEST_F(RanksOfAccelerate, FilesOfOtherSavesAreRefused) {
  fs::copy(model("0"), path() / "model_world_size_2_rank_0.pt");
  EXPECT_TRUE(has(refusal(), "files of two saves"));
  fs::remove(path() / "model_world_size_2_rank_0.pt");
  fs::copy(fixture("accelerate/pytorch_model_fsdp_0"), path() / "pytorch_model_fsdp_0");
  EXPECT_TRUE(has(refusal(), "in \"pytorch_model_fsdp_0\" and in a file for each rank"));
  fs::remove_all(path() / "pytorch_model_fsdp_0");
  fs::copy(model("0"), path() / "pytorch_model_fsdp_1_rank0.bin");
  EXPECT_TRUE(has(refusal(), "several models"));
}

TEST_F(RanksOfAccelerate, ADistributedCheckpointOfTheOptimizerIsNotLostWithoutAWord) {
  for (const char* rank : {"0", "1"}) fs::remove(optimizer(rank));
  fs::copy(fixture("accelerate/optimizer_0"), path() / "optimizer_0");
  const fs::path out = folder_.path() / "out";
  const std::string text = error_of([&] { (void)convert(path(), out, {.to = "full"}); });
  EXPECT_TRUE(has(text, "optimizer_0 would be lost")) << text;
  EXPECT_EQ(convert(path(), out, {.to = "full", .weights_only = true}).tensors.size(), 4u);
}

TEST_F(RanksOfAccelerate, PartsOfFsdp1AreRefusedWithTheWayOut) {
  PickleWriter pickle;
  pickle.empty_dict().text("w");
  pickle.global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor").set_item();
  fs::remove(model("0"));
  write_torch_file(model("0"), pickle.finish());
  EXPECT_TRUE(has(refusal(), "ShardedTensors of FSDP1")) << refusal();
  EXPECT_TRUE(has(refusal(), "use_dcp=True")) << refusal();
}

// A DTensor as PyTorch 2.4 pickled it, with a tensor of ranks for a mesh.
struct OldDTensor {
  std::vector<std::int64_t> whole{4, 2};
  std::vector<std::int64_t> local{2, 2};
  std::vector<std::int64_t> mesh{2};
  std::vector<std::int64_t> place{0};
  std::vector<std::pair<const char*, std::int64_t>> placements{{"Shard", 0}};

  // Eight of this rank: 10 r, 10 r + 1 and so on, with r the last coordinate.
  [[nodiscard]] std::string numbers() const {
    std::string bytes;
    for (int i = 0; i < 8; ++i) {
      const float number = static_cast<float>(10 * place.back() + i);
      bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
    }
    return bytes;
  }

  void write_local(PickleWriter& pickle, const char* key, const std::vector<std::int64_t>& shape,
                   std::int64_t storage) const {
    std::vector<std::int64_t> strides(shape.size(), 1);
    for (std::size_t d = shape.size(); d > 1; --d) strides[d - 2] = strides[d - 1] * shape[d - 1];
    pickle.global("torch._utils", "_rebuild_tensor_v2").mark();
    pickle.mark().text("storage").global("torch", "FloatStorage").text(key).text("cpu");
    pickle.integer(storage).tuple().persistent().integer(0).tuple_of(shape).tuple_of(strides);
    pickle.boolean(false).none().tuple().reduce();
  }

  void write(const fs::path& path) const {
    PickleWriter pickle;
    pickle.empty_dict().text("w").global("torch._tensor", "_rebuild_from_type_v2").mark();
    pickle.global("torch._utils", "_rebuild_wrapper_subclass");
    pickle.global("torch.distributed._tensor.api", "DTensor");
    pickle.mark().none().global("torch", "float32").tuple_of(whole).tuple();
    pickle.mark().none().empty_dict().text("_local_tensor");
    write_local(pickle, "0", local, 8);
    pickle.set_item().text("_spec");
    pickle.global("torch.distributed._tensor.placement_types", "DTensorSpec").empty_tuple();
    pickle.new_object().empty_dict().text("mesh");
    pickle.global("torch.distributed.device_mesh", "DeviceMesh").empty_tuple().new_object();
    pickle.empty_dict().text("mesh");
    write_local(pickle, "1", mesh, 8);
    pickle.set_item().text("_coordinate_on_dim").empty_list();
    for (const std::int64_t each : place) pickle.integer(each).append();
    pickle.set_item().build().set_item().text("placements").mark();
    for (const auto& [name, dim] : placements) {
      pickle.global("torch.distributed._tensor.placement_types", name).empty_tuple().new_object();
      pickle.empty_dict().text("dim").integer(dim).set_item().build();
    }
    pickle.tuple().set_item().build().set_item().tuple().tuple().reduce().set_item();
    fs::remove(path);
    write_torch_file(path, pickle.finish(), {numbers(), std::string(32, '\0')});
  }
};

class OldDTensors : public ::testing::Test {
 protected:
  std::string refusal(OldDTensor first, OldDTensor second) {
    first.write(folder_.path() / "model_world_size_2_rank_0.pt");
    second.write(folder_.path() / "model_world_size_2_rank_1.pt");
    return error_of([&] { (void)formats::verl_format().open(folder_.path()); });
  }
  // The tensor that two ranks have together.
  std::vector<float> joined(const OldDTensor& first, const OldDTensor& second) {
    first.write(folder_.path() / "model_world_size_2_rank_0.pt");
    second.write(folder_.path() / "model_world_size_2_rank_1.pt");
    const auto source = formats::verl_format().open(folder_.path());
    const FoundTensors found = tensors_of(*source);
    EXPECT_EQ(found.at("model/w").shape, first.whole);
    const std::string& bytes = found.at("model/w").bytes;
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<float> joined(const OldDTensor& form) {
    OldDTensor second = form;
    second.place = {1};
    return joined(form, second);
  }
  // The same for two ranks with one form.
  std::string refusal(OldDTensor form, std::vector<std::int64_t> second_place = {1}) {
    OldDTensor second = form;
    second.place = std::move(second_place);
    return refusal(std::move(form), std::move(second));
  }
  TemporaryFolder folder_;
};

TEST_F(OldDTensors, AreReadByTheirPlacements) {
  using Values = std::vector<float>;
  const Values rows{0, 1, 2, 3, 10, 11, 12, 13};
  EXPECT_EQ(joined({}), rows);
  EXPECT_EQ(joined({.local = {4, 1}, .placements = {{"Shard", 1}}}),
            (Values{0, 10, 1, 11, 2, 12, 3, 13}));
  EXPECT_EQ(joined({.local = {4, 2}, .placements = {{"Replicate", 0}}}),
            (Values{0, 1, 2, 3, 4, 5, 6, 7}));
  // Three rows on two ranks; a row on two ranks, of which the second has none.
  EXPECT_EQ(joined({.whole = {3, 2}}, {.whole = {3, 2}, .local = {1, 2}, .place = {1}}),
            (Values{0, 1, 2, 3, 10, 11}));
  EXPECT_EQ(
      joined({.whole = {1, 2}, .local = {1, 2}}, {.whole = {1, 2}, .local = {0}, .place = {1}}),
      (Values{0, 1}));
  // A mesh of two dimensions, of which one has a single rank.
  const OldDTensor first{
      .mesh = {1, 2}, .place = {0, 0}, .placements = {{"Shard", 0}, {"Shard", 0}}};
  OldDTensor second = first;
  second.place = {0, 1};
  EXPECT_EQ(joined(first, second), rows);
}

TEST_F(OldDTensors, OtherPlacementsAreRefusedByName) {
  EXPECT_TRUE(has(refusal({.placements = {{"_StridedShard", 0}}}), "\"_StridedShard\""));
  EXPECT_TRUE(has(refusal({.placements = {{"_Partial", 0}}}), "\"_Partial\""));
  EXPECT_TRUE(
      has(refusal({.mesh = {2, 2}, .place = {0, 0}, .placements = {{"Shard", 0}, {"Shard", 0}}},
                  {0, 1}),
          "tensor parallelism"));
}

TEST_F(OldDTensors, HostileOnesAreRefused) {
  constexpr std::int64_t large = std::int64_t{1} << 40;
  EXPECT_TRUE(has(refusal({.local = {1, 2}}), "where its placements give"));
  EXPECT_TRUE(has(refusal({.placements = {{"Shard", 2}}}), "does not have"));
  EXPECT_TRUE(has(refusal({.placements = {{"Shard", -1}}}), "does not have"));
  EXPECT_TRUE(has(refusal({.placements = {}}), "do not fit its mesh"));
  EXPECT_TRUE(has(refusal({.place = {2}}), "outside of its mesh"));
  EXPECT_TRUE(has(refusal({.place = {-1}}), "outside of its mesh"));
  EXPECT_TRUE(has(refusal({}, {0}), "lies in no chunk"));
  EXPECT_NE(refusal({.whole = {large, large}}), "");
  EXPECT_NE(refusal({.whole = {-4, 2}}), "");
  EXPECT_TRUE(has(refusal({}, {.whole = {8, 2}, .local = {4, 2}, .place = {1}}), "of rank 1"));
}

}  // namespace
}  // namespace tessera::checkpoint
