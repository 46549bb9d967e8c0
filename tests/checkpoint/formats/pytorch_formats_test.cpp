// Files of PyTorch, Accelerate and DeepSpeed are read exactly, written again and read again; damage
// is named. make_fixtures.py makes the fixtures.
#include <gtest/gtest.h>

#include "checkpoint/formats/formats_testing.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/torch/zip.h"
#include "checkpoint/state/scalars_json.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::Contents;
using formats::Format;

struct Fixture {
  const char* path;
  const char* expected;
  const Format& (*format)();
};

const Fixture fixtures[] = {
    {"fsdp2", "fsdp2.safetensors", formats::dcp_format},
    {"fsdp2_full.pt", "fsdp2.safetensors", formats::torch_format},
    {"accelerate", "accelerate.safetensors", formats::dcp_format},
    {"accelerate_full", "accelerate_full.safetensors", formats::torch_format},
    {"views.pt", "views.safetensors", formats::torch_format},
    {"legacy_views.pt", "views.safetensors", formats::torch_format},
    {"legacy_storage_views.pt", "legacy_storage_views.safetensors", formats::torch_format},
    {"zero2", "zero2.safetensors", formats::deepspeed_format},
    {"zero3", "zero3.safetensors", formats::deepspeed_format},
};

std::string notes_of(const Contents& contents) {
  std::string all;
  for (const std::string& note : contents.notes) all += note + "\n";
  return all;
}

TEST(PyTorchFormats, ReadFilesOfTheOtherPrograms) {
  for (const Fixture& each : fixtures) {
    SCOPED_TRACE(each.path);
    const fs::path path = fixture(each.path);
    EXPECT_TRUE(each.format().recognises(path));
    const auto source = each.format().open(path);
    const FoundTensors expected = expected_tensors(each.expected);
    expect_equal(tensors_of(*source), expected);
    expect_equal(tensors_of(*source, 1), expected);
    expect_equal(tensors_of(*source, 7), expected);
    EXPECT_EQ(source->verify(nullptr), std::vector<std::string>{});
  }
}

TEST(PyTorchFormats, NoFormatAcceptsFoldersOfAnother) {
  const auto& dcp = formats::dcp_format();
  const auto& torch = formats::torch_format();
  const auto& deepspeed = formats::deepspeed_format();
  for (const Fixture& each : fixtures) {
    const int takers = (dcp.recognises(fixture(each.path)) ? 1 : 0) +
                       (torch.recognises(fixture(each.path)) ? 1 : 0) +
                       (deepspeed.recognises(fixture(each.path)) ? 1 : 0);
    EXPECT_EQ(takers, 1) << each.path;
  }
  for (const Format* format : {&dcp, &torch, &deepspeed}) {
    EXPECT_FALSE(format->recognises(fixture("views.safetensors")));
    EXPECT_FALSE(format->recognises(fixture("absent")));
  }
}

TEST(PyTorchFormats, HaveStepsHyperparametersAndTiedWeights) {
  for (const char* name : {"fsdp2", "accelerate"}) {
    const auto source = formats::dcp_format().open(fixture(name));
    const Contents& contents = source->contents();
    EXPECT_EQ(contents.scalars.get<std::int64_t>("step"), 3);
    EXPECT_EQ(contents.scalars.get<std::int64_t>("optimizer_step_counts/first.weight"), 3);
    EXPECT_EQ(json_of(contents.scalars)["param_groups"][0]["weight_decay"], 0.1);
    EXPECT_TRUE(has(notes_of(contents), R"("lr" 0.01)"));
  }
  const auto views = formats::torch_format().open(fixture("views.pt"));
  EXPECT_EQ(views->contents().aliases.at("also_tied"), "tied");
  const auto zero = formats::deepspeed_format().open(fixture("zero3"));
  EXPECT_EQ(zero->contents().aliases.at("tied.weight"), "embed.weight");
  EXPECT_EQ(zero->contents().scalars.get<std::int64_t>("step"), 4);
  EXPECT_TRUE(has(notes_of(zero->contents()), "ZeRO stage 3, 2 ranks"));
}

TEST(PyTorchFormats, WriteWhatTheyRead) {
  const TemporaryFolder folder;
  for (const Fixture& each : fixtures) {
    SCOPED_TRACE(each.path);
    const auto source = each.format().open(fixture(each.path));
    const FoundTensors expected = expected_tensors(each.expected);
    int number = 0;
    for (const int world : {0, 1, 2, 3, 8}) {  // 0: as one torch.save file
      const Format& format = world == 0 ? formats::torch_format() : formats::dcp_format();
      const fs::path path = folder.path() / (std::string(each.path) + std::to_string(number++));
      write_copy(*source, format, path, std::max(world, 1), 1 + 5 * world);
      EXPECT_TRUE(format.recognises(path));
      const auto again = format.open(path);
      expect_equal(tensors_of(*again), expected);
      EXPECT_EQ(again->contents().aliases, source->contents().aliases);
      if (source->contents().scalars.contains("step")) {
        EXPECT_EQ(again->contents().scalars.get<std::int64_t>("step"),
                  source->contents().scalars.get<std::int64_t>("step"));
      }
      EXPECT_EQ(again->verify(nullptr), std::vector<std::string>{});
    }
  }
}

// Copies a fixture, so that it can be damaged.
fs::path copy_of(const std::string& name, const TemporaryFolder& folder) {
  fs::path path = folder.path() / name;
  fs::copy(fixture(name), path, fs::copy_options::recursive);
  return path;
}

TEST(PyTorchFormats, AFlippedBitInATensorIsFound) {
  const TemporaryFolder folder;
  const fs::path path = copy_of("views.pt", folder);
  std::string bytes = read_all(path);
  const FoundTensors expected = expected_tensors("views.safetensors");
  const std::size_t at = bytes.find(expected.at("model/dtype.float16").bytes);
  ASSERT_NE(at, std::string::npos);
  bytes[at + 5] = static_cast<char>(bytes[at + 5] ^ 4);
  write_all(path, bytes);
  const auto source = formats::torch_format().open(path);
  EXPECT_TRUE(has(error_of([&] { tensors_of(*source); }), "damaged"));
  EXPECT_TRUE(has(error_of([&] { tensors_of(*source, 3); }), "damaged"));
  const auto damage = source->verify(nullptr);
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_TRUE(has(damage[0], "dtype.float16"));
  EXPECT_TRUE(has(damage[0], "views.pt"));
}

TEST(PyTorchFormats, EveryTruncationIsRefused) {
  const TemporaryFolder folder;
  const fs::path path = copy_of("fsdp2", folder);
  const std::string rank = read_all(path / "__1_0.distcp");
  for (const std::size_t keep : {std::size_t{0}, rank.size() / 2, rank.size() - 1}) {
    write_all(path / "__1_0.distcp", rank.substr(0, keep));
    EXPECT_TRUE(has(error_of([&] { formats::dcp_format().open(path); }), "__1_0.distcp"));
  }
  write_all(path / "__1_0.distcp", rank);
  const std::string metadata = read_all(path / ".metadata");
  for (std::size_t keep = 0; keep < metadata.size(); keep += 97) {
    write_all(path / ".metadata", metadata.substr(0, keep));
    EXPECT_TRUE(has(error_of([&] { formats::dcp_format().open(path); }), ".metadata"));
  }
  fs::remove(path / ".metadata");
  EXPECT_TRUE(formats::dcp_format().recognises(path));
  EXPECT_TRUE(has(error_of([&] { formats::dcp_format().open(path); }), "no .metadata"));
  const fs::path file = copy_of("views.pt", folder);
  const std::string whole = read_all(file);
  for (std::size_t keep = 64; keep < whole.size(); keep += 613) {
    write_all(file, whole.substr(0, keep));
    EXPECT_TRUE(has(error_of([&] { formats::torch_format().open(file); }), "views.pt"));
  }
}

// Replaces a text in a file by another of equal length.
void replace_in(const fs::path& path, const std::string& from, const std::string& to) {
  std::string bytes = read_all(path);
  const std::size_t at = bytes.find(from);
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(from.size(), to.size());
  bytes.replace(at, from.size(), to);
  write_all(path, bytes);
}

TEST(PyTorchFormats, NamesFromFilesCannotLeaveTheFolder) {
  const TemporaryFolder folder;
  const fs::path path = copy_of("fsdp2", folder);
  replace_in(path / ".metadata", "__0_0.distcp", "../../../etc");
  EXPECT_TRUE(has(error_of([&] { formats::dcp_format().open(path); }), "not a plain file name"));
  const fs::path zero = copy_of("zero3", folder);
  write_all(zero / "latest", "../zero3/global_step4");
  EXPECT_FALSE(formats::deepspeed_format().recognises(zero));
  EXPECT_TRUE(
      has(error_of([&] { formats::deepspeed_format().open(zero); }), "not a folder beside"));
}

TEST(PyTorchFormats, InconsistentFilesAreRefused) {
  const TemporaryFolder folder;
  const fs::path zero = copy_of("zero2", folder);
  const fs::path tag = zero / "global_step4";
  const std::string rank1 = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const std::string rank2 = "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt";
  fs::rename(tag / rank2, folder.path() / rank2);
  EXPECT_TRUE(has(error_of([&] { formats::deepspeed_format().open(zero); }),
                  "saved by 3 ranks and has the files of 2"));
  fs::rename(folder.path() / rank2, tag / rank2);
  fs::remove(tag / rank1);
  EXPECT_TRUE(
      has(error_of([&] { formats::deepspeed_format().open(zero); }), "file of rank 1 is missing"));
  const fs::path mixed = copy_of("zero3", folder);
  fs::remove(mixed / "global_step4/zero_pp_rank_1_mp_rank_00_optim_states.pt");
  fs::copy(fixture("zero2/global_step4") / rank1,
           mixed / "global_step4/zero_pp_rank_1_mp_rank_00_optim_states.pt");
  EXPECT_TRUE(has(error_of([&] { formats::deepspeed_format().open(mixed); }), "two stages"));
}

TEST(PyTorchFormats, FormsThatAreNotReadAreRefusedWithAdvice) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& bytes) {
    const fs::path path = folder.path() / "old.pt";
    write_all(path, bytes);
    EXPECT_TRUE(formats::torch_format().recognises(path));
    return error_of([&] { formats::torch_format().open(path); });
  };
  EXPECT_TRUE(has(refusal("\x80\x04]." + std::string(100, 'x')), "a plain pickle"));
  formats::PickleWriter pickle;
  pickle.empty_dict().text("w").global("torch._utils", "_rebuild_tensor_v3").mark();
  pickle.mark().text("storage").global("torch.storage", "UntypedStorage").text("0").text("cpu");
  pickle.integer(4).tuple().persistent().integer(0).tuple_of({4}).tuple_of({1});
  pickle.boolean(false).none().global("torch", "float4_e2m1fn_x2").tuple().reduce().set_item();
  write_torch_file(folder.path() / "fp4.pt", pickle.finish(), {"abcd"});
  EXPECT_TRUE(has(error_of([&] { formats::torch_format().open(folder.path() / "fp4.pt"); }),
                  "tensors of \"float4_e2m1fn_x2\" cannot be converted"));
  std::string tar("\x80" + std::string(400, 'x'));
  tar.replace(257, 5, "ustar");
  EXPECT_TRUE(has(refusal(tar), "PyTorch 0.1"));
}

// An archive of these records, each "x". The first is compressed.
std::string archive_with_a_compressed_record(const std::vector<std::string>& names) {
  const TemporaryFolder folder;
  std::vector<formats::ZipPlan> plan;
  for (const std::string& name : names) plan.push_back({name, 1, 0});
  plan_zip(plan);
  File file = File::create(folder.path() / "a");
  formats::ZipWriter zip(file, 0, plan);
  for (std::size_t i = 0; i < names.size(); ++i) zip.append("x");
  zip.finish();
  std::string bytes = read_all(folder.path() / "a");
  bytes[bytes.find(names.front()) - 30 + 8] = 8;  // the method of the record's own header
  bytes[bytes.rfind(names.front()) - 46 + 10] = 8;
  return bytes;
}

TEST(PyTorchFormats, ArchivesOfOtherProgramsAreNamed) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::vector<std::string>& names) {
    const fs::path path = folder.path() / "model.pt";
    write_all(path, archive_with_a_compressed_record(names));
    const std::string message = error_of([&] { formats::torch_format().open(path); });
    EXPECT_FALSE(has(message, "damaged")) << message;
    return message;
  };
  EXPECT_TRUE(has(refusal({"m/code/__torch__.py", "m/constants.pkl", "m/data.pkl"}),
                  "is a TorchScript archive"));
  EXPECT_TRUE(has(refusal({"weight.npy"}), "NumPy arrays (npz)"));
  EXPECT_TRUE(has(refusal({"m/data/0", "m/data.pkl"}), "compressed record \"m/data/0\""));
}

}  // namespace
}  // namespace tessera::checkpoint
