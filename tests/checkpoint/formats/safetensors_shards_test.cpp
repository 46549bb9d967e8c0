// The ranks' files of a distributed save in safetensors are joined; what does not fit together, or
// is missing, is refused.
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/convert/convert.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

struct ShardPart {
  std::string name;
  std::vector<std::int64_t> offsets, shape;
  std::vector<float> values;
};

class SafetensorsShards : public ::testing::Test {
 protected:
  static constexpr const char* first = "shard-00001-model-00001-of-00001.safetensors";
  static constexpr const char* second = "shard-00002-model-00001-of-00001.safetensors";

  void write(const std::string& file, const std::vector<ShardPart>& parts,
             const std::string& key = "DCP_SHARDING_INFO") {
    fs::create_directories(folder());
    nlohmann::json info = nlohmann::json::object();
    std::vector<TensorToWrite> tensors;
    for (const ShardPart& part : parts) {
      info[part.name] = {{"saved_offsets", part.offsets}};
      tensors.push_back({{part.name, DType::float32, part.shape}, part.values.data()});
    }
    write_safetensors(folder() / file, tensors, {{key, info.dump()}});
  }
  // A table [5, 2] and a norm [3] of two ranks, and a scalar of the first.
  void write_two_ranks() {
    write(first, {{"model.embed_tokens.weight", {0, 0}, {3, 2}, {0, 1, 2, 3, 4, 5}},
                  {"model.norm.weight", {0}, {2}, {10, 11}},
                  {"model.scale", {}, {}, {7}}});
    write(second, {{"model.embed_tokens.weight", {3, 0}, {2, 2}, {6, 7, 8, 9}},
                   {"model.norm.weight", {2}, {1}, {12}}});
  }
  [[nodiscard]] fs::path folder() const { return work_.path() / "shards"; }
  ConvertReport to_hf() {
    return convert(folder(), work_.path() / "hf", {.to = "hf", .verify = true});
  }
  std::string refusal() {
    return error_of([&] { to_hf(); });
  }
  TemporaryFolder work_;
};

TEST_F(SafetensorsShards, PartsAreJoined) {
  write_two_ranks();
  const auto report = to_hf();
  EXPECT_EQ(report.source_format, "dcp");
  EXPECT_TRUE(report.verified);
  EXPECT_TRUE(has(report.notes.at(0), "5 parts in the files of 2 ranks")) << report.notes.at(0);
  EXPECT_TRUE(has(report.notes.at(1), "rank 1's were the last")) << report.notes.at(1);
  const SafetensorsFile file(work_.path() / "hf" / "model.safetensors");
  const TensorEntry* const table = file.find("model.embed_tokens.weight");
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->shape, (std::vector<std::int64_t>{5, 2}));
  std::vector<float> values(10);
  file.read(*table, 0, values.data(), 40);
  EXPECT_EQ(values, (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_TRUE(file.find("model.scale")->shape.empty());
}

// Tensor parallelism cuts columns, and several files hold the tensors of a rank.
TEST_F(SafetensorsShards, PartsOfColumnsInSeveralFiles) {
  write("shard-00001-model-00001-of-00002.safetensors", {{"a", {0, 0}, {2, 1}, {0, 2}}});
  write("shard-00002-model-00001-of-00002.safetensors", {{"a", {0, 1}, {2, 1}, {1, 3}}});
  write("shard-00001-model-00002-of-00002.safetensors", {{"b", {0}, {1}, {4}}});
  to_hf();
  const SafetensorsFile file(work_.path() / "hf" / "model.safetensors");
  std::vector<float> values(4);
  file.read(*file.find("a"), 0, values.data(), 16);
  EXPECT_EQ(values, (std::vector<float>{0, 1, 2, 3}));
}

TEST_F(SafetensorsShards, AFolderWithWholeTensorsIsReadAsSuch) {
  write_two_ranks();
  const float value = 5;
  write_safetensors(folder() / "model.safetensors", {{{"whole", DType::float32, {1}}, &value}});
  EXPECT_EQ(to_hf().source_format, "hf");
}

TEST_F(SafetensorsShards, MissingFilesAreRefused) {
  write_two_ranks();
  fs::remove(folder() / first);
  EXPECT_TRUE(has(refusal(), "tensor \"model.embed_tokens.weight\""));
  write_two_ranks();
  fs::rename(folder() / first, folder() / "shard-00001-model-00001-of-00002.safetensors");
  EXPECT_TRUE(has(refusal(), "files of two saves"));
  fs::remove(folder() / second);
  EXPECT_TRUE(has(refusal(), "no shard of file 2 of 2"));
}

// Without the last rank every tensor is shorter, which the files do not show.
TEST_F(SafetensorsShards, AMissingLastRankIsFoundByTheConfig) {
  write_two_ranks();
  write_all(folder() / "config.json", R"({"vocab_size": 5, "hidden_size": 2})");
  EXPECT_EQ(to_hf().notes.size(), 1u);  // nothing is left to doubt
  fs::remove_all(work_.path() / "hf");
  fs::remove(folder() / second);
  EXPECT_TRUE(has(refusal(), "make [3, 2], and config.json requires [5, 2]: the files of a rank"));
}

TEST_F(SafetensorsShards, PartsThatDoNotFitAreRefused) {
  write_two_ranks();
  write(second, {{"model.embed_tokens.weight", {2, 0}, {2, 2}, {6, 7, 8, 9}}});
  EXPECT_TRUE(has(refusal(), "embed_tokens"));  // they overlap
  write(second, {{"model.embed_tokens.weight", {3}, {4}, {6, 7, 8, 9}}});
  EXPECT_TRUE(has(refusal(), "another dtype or rank"));
  write(second, {{"model.embed_tokens.weight", {3}, {2, 2}, {6, 7, 8, 9}}});
  EXPECT_TRUE(has(refusal(), "no offsets of \"model.embed_tokens.weight\""));
  write(second, {{"model.embed_tokens.weight", {3, -1}, {2, 2}, {6, 7, 8, 9}}});
  EXPECT_TRUE(has(refusal(), "no offsets of \"model.embed_tokens.weight\""));
  write(second, {{"model.embed_tokens.weight", {std::int64_t{1} << 62, 0}, {1, 2}, {6, 7}}});
  EXPECT_TRUE(has(refusal(), "no offsets of \"model.embed_tokens.weight\""));
  write(second, {{"model.embed_tokens.weight", {3, 0}, {2, 2}, {6, 7, 8, 9}}}, "other");
  EXPECT_TRUE(has(refusal(), "has no DCP_SHARDING_INFO"));
  write(second, {{"optimizer.state.w.exp_avg", {0}, {1}, {1}}});
  EXPECT_TRUE(has(refusal(), "the state of an optimizer"));
  EXPECT_FALSE(fs::exists(work_.path() / "hf"));
}

}  // namespace
}  // namespace tessera::checkpoint
