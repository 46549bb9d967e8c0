// Conversions between the formats of Tessera and Hugging Face: the same tensors in other files, and
// equal bytes where the files are the same.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "checkpoint/convert/convert.h"
#include "checkpoint/convert/names.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/steps/manifest.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

ConvertReport convert_to(const fs::path& from, const fs::path& to, const char* format,
                         ConvertOptions options = {}) {
  options.to = format;
  return convert(from, to, options);
}

std::set<std::string> names_in_folder(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

void expect_same_folder(const fs::path& a, const fs::path& b) {
  EXPECT_EQ(names_in_folder(a), names_in_folder(b));
  for (const std::string& name : names_in_folder(a)) {
    EXPECT_TRUE(read_all(a / name) == read_all(b / name)) << a << " and " << b << ": " << name;
  }
}

class Convert : public ::testing::Test {
 protected:
  [[nodiscard]] fs::path operator/(const std::string& name) const { return folder_.path() / name; }

  // A step of version 4, saved by three ranks with uneven cuts.
  fs::path save_step(StateDictType type) {
    const fs::path dir = *this / "run";
    comm::run_local(3, [&](const auto& communicator) {
      save_version(*communicator, dir, 4, {.type = type, .files = {{"config.json", "{}\n"}}},
                   random_cut(9));
    });
    return dir / "step-4";
  }

  // A Hugging Face folder of one file, with these tensors of [2, 3].
  fs::path hugging_face(const std::vector<std::string>& names, const std::string& config = "{}",
                        const std::vector<float>& values = {1, 2, 3, 4, 5, 6}) {
    fs::path folder = *this / "hf";
    fs::create_directories(folder);
    std::vector<TensorToWrite> tensors;
    for (const std::string& name : names) {
      tensors.push_back({{name, DType::float32, {2, 3}}, values.data()});
    }
    write_safetensors(folder / "model.safetensors", tensors);
    write_all(folder / "config.json", config);
    return folder;
  }

  TemporaryFolder folder_;
};

TEST_F(Convert, ExaminesFilesThatSeveralRanksWrote) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    const fs::path step = save_step(type);
    const auto source = formats::recognise(step).open(step);
    EXPECT_TRUE(source->examine([](std::uint64_t) {}).empty());
    for (const auto& entry : fs::directory_iterator(step)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::string whole = read_all(entry.path());
      whole.back() ^= 1;
      write_all(entry.path(), whole);
      const auto damages = source->examine([](std::uint64_t) {});
      ASSERT_EQ(damages.size(), 1u) << entry.path();
      EXPECT_TRUE(has(damages[0].text, entry.path().filename()));
      EXPECT_TRUE(type == StateDictType::sharded || !damages[0].tensors.empty());
      whole.back() ^= 1;
      write_all(entry.path(), whole);
    }
    fs::remove_all(step);
  }
}

TEST_F(Convert, ElementsSmallerThanAByteAreRefused) {
  const fs::path folder = *this / "hf";
  fs::create_directories(folder);
  std::string header = R"({"lm_head.weight":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},)"
                       R"("wte.weight":{"dtype":"F4","shape":[2],"data_offsets":[1,2]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  write_all(folder / "model.safetensors", file + header + "ab");
  EXPECT_TRUE(has(error_of([&] { convert_to(folder, *this / "out", "hf"); }), "F4"));
}

TEST_F(Convert, SafetensorsInsideADistributedCheckpointAreRefusedWithAdvice) {
  const fs::path dcp = *this / "dcp";
  convert_to(hugging_face({"a"}), dcp, "dcp");
  std::string tensors = read_all(*this / "hf/model.safetensors");
  tensors.resize(fs::file_size(dcp / "__0_0.distcp"));
  write_all(dcp / "__0_0.distcp", tensors);
  EXPECT_TRUE(has(error_of([&] { convert_to(dcp, *this / "out", "hf"); }), "serialization_format"));
}

TEST_F(Convert, AHeaderLargerThanTheMemoryIsNotRead) {
  const fs::path folder = hugging_face({"a"});
  std::string file(8, '\0');
  file[3] = 4;  // 64 MiB that are not JSON
  file.append(std::size_t{64} << 20, 'x');
  write_all(folder / "model.safetensors", file);
  const auto before = resident_memory().peak;
  const std::string text =
      error_of([&] { convert_to(folder, *this / "out", "hf", {.max_memory = 48u << 20}); },
               ErrorCode::out_of_memory);
  EXPECT_TRUE(has(text, "the headers of"));
  EXPECT_LT(resident_memory().peak, before + (32u << 20));
  EXPECT_TRUE(has(error_of([&] { convert_to(folder, *this / "out", "hf"); }), "not valid JSON"));
}

TEST_F(Convert, ATargetThatAppearsMeanwhileIsNotReplaced) {
  const fs::path step = save_step(StateDictType::full);
  for (const bool force : {false, true}) {
    const fs::path out = *this / (force ? "forced" : "out");
    ConvertOptions options;
    options.weights_only = true;
    options.force = force;
    options.progress = [&](const ConvertProgress&) {
      fs::create_directories(out);
      write_all(out / "thesis.tex", "text");
    };
    EXPECT_TRUE(has(error_of([&] { convert_to(step, out, "hf", options); }), out.string()));
    EXPECT_EQ(read_all(out / "thesis.tex"), "text");
    EXPECT_EQ(names_in_folder(out).size(), 1u);
    options.progress = [&](const ConvertProgress&) {
      fs::remove_all(out);
      write_all(out, "mine");
    };
    fs::remove_all(out);
    if (force) continue;
    EXPECT_TRUE(has(error_of([&] { convert_to(step, out, "torch", options); }), out.string()));
    EXPECT_EQ(read_all(out), "mine");
  }
}

TEST_F(Convert, RoundTripsAreTheSameBytesInEveryWorld) {
  const fs::path step = save_step(StateDictType::sharded);
  convert_to(step, *this / "full", "full");
  for (const int world : {1, 2, 3, 5, 8}) {
    SCOPED_TRACE(world);
    const fs::path sharded = *this / fmt::format("sharded-{}", world);
    const fs::path full = *this / fmt::format("full-{}", world);
    const fs::path again = *this / fmt::format("again-{}", world);
    convert_to(*this / "full", sharded, "sharded", {.world_size = world, .verify = true});
    convert_to(sharded, full, "full", {.verify = true});
    convert_to(full, again, "sharded", {.world_size = world});
    expect_same_folder(*this / "full", full);
    expect_same_folder(sharded, again);
    verify(sharded);
    expect_version(sharded, 4);
  }
}

TEST_F(Convert, AFullFolderIsWhatASaveWrites) {
  const fs::path saved = save_step(StateDictType::full);
  convert_to(saved, *this / "sharded", "sharded", {.world_size = 3});
  convert_to(*this / "sharded", *this / "full", "full");
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "config.json"}) {
    EXPECT_TRUE(read_all(saved / name) == read_all(*this / "full" / name)) << name;
  }
}

// The step that was committed last, whatever its number: the one with which `auto` resumes.
TEST_F(Convert, TakesTheNewestStepOfARun) {
  save_version(*this / "run", 5);
  save_step(StateDictType::full);
  fs::create_directory(*this / "run" / "step-9");  // no manifest: not committed
  const ConvertReport report = convert_to(*this / "run", *this / "out", "full");
  EXPECT_EQ(report.source, (*this / "run" / "step-4").string());
  EXPECT_EQ(report.tensors.size(), model_plans().size() + optimizer_plans().size());
}

TEST_F(Convert, SmallBlocksCutTensorsAnywhere) {
  const fs::path step = save_step(StateDictType::sharded);
  const auto whole = convert_to(step, *this / "whole", "full");
  const auto small = convert_to(step, *this / "small", "full", {.max_memory = 24u << 20});
  expect_same_folder(*this / "whole", *this / "small");
  EXPECT_EQ(whole.tensors.size(), small.tensors.size());
  const std::string text =
      error_of([&] { convert_to(step, *this / "no", "full", {.max_memory = 1'000'000}); },
               ErrorCode::out_of_memory);
  EXPECT_TRUE(has(text, "--max-memory: 1000000 bytes are too few"));
  EXPECT_FALSE(fs::exists(*this / "no"));
}

TEST_F(Convert, ToHuggingFaceAndBack) {
  const fs::path step = save_step(StateDictType::sharded);
  convert_to(step, *this / "hf", "hf", {.max_file_size = 600, .verify = true});
  const std::set<std::string> names = names_in_folder(*this / "hf");
  EXPECT_TRUE(names.contains("model.safetensors.index.json"));
  EXPECT_TRUE(names.contains("model-00001-of-00004.safetensors"));
  EXPECT_TRUE(names.contains("config.json"));
  EXPECT_FALSE(names.contains("manifest.json"));
  convert_to(*this / "hf", *this / "back", "full", {.verify = true});
  convert_to(step, *this / "weights", "full", {.weights_only = true});
  EXPECT_TRUE(read_all(*this / "back" / "model.safetensors") ==
              read_all(*this / "weights" / "model.safetensors"));
}

TEST_F(Convert, AFullStateInNumberedFilesIsLoaded) {
  const fs::path step = save_step(StateDictType::sharded);
  convert_to(step, *this / "full", "full", {.max_file_size = 600, .verify = true});
  EXPECT_TRUE(names_in_folder(*this / "full").contains("model.safetensors.index.json"));
  verify(*this / "full");
  expect_version(*this / "full", 4);
  convert_to(*this / "full", *this / "one", "full");
  EXPECT_FALSE(names_in_folder(*this / "one").contains("model.safetensors.index.json"));
  expect_version(*this / "one", 4);
}

TEST_F(Convert, ChangesTheModelsDtypeAndReportsOverflow) {
  const fs::path folder =
      hugging_face({"a", "b"}, R"({"torch_dtype": "float32"})", {1, -70000, 65504, 1e9f, 0.5f, -2});
  const auto report =
      convert_to(folder, *this / "half", "hf", {.dtype = DType::float16, .verify = true});
  EXPECT_TRUE(has(fmt::format("{}", fmt::join(report.notes, "\n")),
                  "2 elements of 'a' are too large for F16 and became infinite"));
  const SafetensorsFile file(*this / "half" / "model.safetensors");
  EXPECT_EQ(file.find("a")->stored->name, "F16");
  Float16 values[6];
  file.read(*file.find("a"), 0, values, sizeof values);
  EXPECT_EQ(to_float(values[0]), 1.0f);
  EXPECT_EQ(to_float(values[2]), 65504.0f);
  EXPECT_TRUE(has(read_all(*this / "half" / "config.json"), R"("torch_dtype": "float16")"));
}

TEST_F(Convert, MomentsKeepTheirDtype) {
  const fs::path step = save_step(StateDictType::full);
  const auto report = convert_to(step, *this / "low", "full", {.dtype = DType::bfloat16});
  for (const ConvertedTensor& tensor : report.tensors) {
    const bool is_moment = tensor.part == formats::Part::optimizer;
    const std::set<std::string> others{"counts", "mask"};
    if (others.contains(tensor.name)) continue;
    EXPECT_EQ(tensor.stored->name, is_moment ? "F32" : "BF16") << tensor.name;
  }
  expect_version(*this / "low", 4);
}

TEST(ConvertNames, OnlyPrefixesOfWrappersAreRemoved) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(without_wrappers({"module.a", "module.b.c"}), (Names{"a", "b.c"}));
  EXPECT_EQ(without_wrappers({"module.a", "b"}), (Names{"module.a", "b"}));
  EXPECT_EQ(without_wrappers({"h.0._fsdp_wrapped_module.x",
                              "_orig_mod.h._checkpoint_wrapped_module."
                              "_fsdp_wrapped_module.y"}),
            (Names{"h.0.x", "h.y"}));
  EXPECT_EQ(without_wrappers({"a_orig_mod.b"}), Names{"a_orig_mod.b"});
  // Names of Llama.
  const Names llama{"model.embed_tokens.weight", "model.layers.0.mlp.weight", "model.norm.weight"};
  EXPECT_EQ(without_wrappers(llama), llama);
  const Names with_head{"model.embed_tokens.weight", "lm_head.weight"};
  EXPECT_EQ(without_wrappers(with_head), with_head);
  Names wrapped;
  for (const std::string& name : llama) wrapped.push_back("module.model." + name);
  EXPECT_EQ(without_wrappers(wrapped), llama);
  EXPECT_EQ(without_wrappers({"model.transformer.wte.weight"}), Names{"transformer.wte.weight"});
}

TEST_F(Convert, ReportsPrefixesAndRefusesNamesThatTheyHid) {
  const auto report =
      convert_to(hugging_face({"module.a", "module._orig_mod.b"}), *this / "out", "hf");
  EXPECT_EQ(report.tensors.at(0).name, "a");
  EXPECT_TRUE(has(fmt::format("{}", fmt::join(report.notes, "\n")),
                  "2 names lost the prefixes of wrappers"));
  const std::string text = error_of([&] {
    convert_to(hugging_face({"a", "_orig_mod.a"}), *this / "two", "hf");
  });
  EXPECT_TRUE(has(text, "two tensors are named 'a'"));
}

TEST_F(Convert, TiedHeadsAreComparedAndStoredOnce) {
  const std::string tied = R"({"model_type": "llama", "tie_word_embeddings": true})";
  const auto report = convert_to(
      hugging_face({"model.embed_tokens.weight", "lm_head.weight"}, tied), *this / "out", "hf");
  ASSERT_EQ(report.tensors.size(), 1u);
  EXPECT_TRUE(has(fmt::format("{}", fmt::join(report.notes, "\n")), "and is the same"));

  const fs::path folder = *this / "hf";
  const std::vector<float> one{1, 2, 3}, other{1, 2, 4};
  write_safetensors(folder / "model.safetensors",
                    {{{"model.embed_tokens.weight", DType::float32, {1, 3}}, one.data()},
                     {{"lm_head.weight", DType::float32, {1, 3}}, other.data()}});
  EXPECT_TRUE(
      has(error_of([&] { convert_to(folder, *this / "differ", "hf"); }), "and they differ"));
  write_all(folder / "config.json", R"({"tie_word_embeddings": false})");
  EXPECT_EQ(convert_to(folder, *this / "apart", "hf").tensors.size(), 2u);
  // Without a config, equal tensors count as tied and others are kept.
  fs::remove(folder / "config.json");
  EXPECT_EQ(convert_to(folder, *this / "unsaid", "hf").tensors.size(), 2u);
  hugging_face({"model.embed_tokens.weight", "lm_head.weight"}, "{}");
  EXPECT_EQ(convert_to(folder, *this / "equal", "hf").tensors.size(), 1u);
}

// PyTorch's state dicts have both names.
TEST_F(Convert, ATiedHeadThatIsNotStoredIsAddedForPyTorch) {
  const std::string tied = R"({"model_type": "llama", "tie_word_embeddings": true})";
  const std::string apart = R"({"model_type": "llama", "tie_word_embeddings": false})";
  const std::string note = "'lm_head.weight' is 'model.embed_tokens.weight' (tied)";
  const auto notes_of = [&](const std::string& config, const char* to, const char* table) {
    fs::remove_all(*this / "out");
    const auto report = convert_to(hugging_face({table}, config), *this / "out", to);
    return fmt::format("{}", fmt::join(report.notes, "\n"));
  };
  for (const char* const to : {"dcp", "torch"}) {
    EXPECT_TRUE(has(notes_of(tied, to, "model.embed_tokens.weight"), note)) << to;
    EXPECT_FALSE(has(notes_of(apart, to, "model.embed_tokens.weight"), "lm_head")) << to;
    EXPECT_FALSE(has(notes_of(tied, to, "embed_tokens.weight"), "lm_head"))
        << to;  // no head at all
  }
  EXPECT_FALSE(has(notes_of(tied, "hf", "model.embed_tokens.weight"), "lm_head"));
}

TEST_F(Convert, ModelsSavedWithoutTheirHeadGetTheNamesOfWholeModels) {
  const fs::path folder = hugging_face({"wte.weight", "h.0.attn.bias", "h.0.attn.c_attn.bias"},
                                       R"({"model_type": "gpt2"})");
  const auto names_of = [](const ConvertReport& report) {
    std::set<std::string> names;
    for (const ConvertedTensor& tensor : report.tensors) names.insert(tensor.name);
    return names;
  };
  EXPECT_EQ(names_of(convert_to(folder, *this / "full", "full")),
            (std::set<std::string>{"transformer.wte.weight", "transformer.h.0.attn.c_attn.bias"}));
  // A conversion between Hugging Face folders does not change the names.
  EXPECT_EQ(names_of(convert_to(folder, *this / "same", "hf")),
            (std::set<std::string>{"wte.weight", "h.0.attn.bias", "h.0.attn.c_attn.bias"}));
}

TEST_F(Convert, AnExistingTargetStays) {
  const fs::path step = save_step(StateDictType::full);
  write_all(*this / "notes", "mine");
  EXPECT_TRUE(has(error_of([&] { convert_to(step, *this / "notes", "hf"); }), "exists; choose"));
  EXPECT_TRUE(has(error_of([&] { convert_to(step, *this / "notes", "hf", {.force = true}); }),
                  "is not a checkpoint, and --force replaces only checkpoints"));
  EXPECT_EQ(read_all(*this / "notes"), "mine");
  convert_to(step, *this / "out", "hf");
  convert_to(step, *this / "out", "sharded", {.world_size = 2, .force = true});
  expect_version(*this / "out", 4);
  EXPECT_EQ(names_in_folder(*this / ""), (std::set<std::string>{"notes", "out", "run"}));
}

TEST_F(Convert, AFolderWithOtherThingsIsNeverReplaced) {
  const fs::path step = save_step(StateDictType::full);
  const fs::path victim = *this / "victim";
  convert_to(step, victim, "hf");
  fs::create_directory(victim / "sub");
  write_all(victim / "sub/thesis.tex", "mine");
  const auto refusal = [&] {
    return error_of([&] { convert_to(step, victim, "hf", {.force = true}); });
  };
  std::string text = refusal();
  EXPECT_TRUE(has(text, "holds 'sub/thesis.tex', which no conversion wrote"));
  EXPECT_TRUE(has(text, "move it away or choose another place"));
  for (const char* name : {"a.py", "b.txt", "model_of_mine.safetensors"}) {
    write_all(victim / name, "mine");
  }
  text = refusal();
  EXPECT_TRUE(has(text, "holds 'a.py', 'b.txt', 'model_of_mine.safetensors' and more, which no"));
  EXPECT_EQ(read_all(victim / "sub/thesis.tex"), "mine");
  fs::remove_all(victim / "sub");
  for (const char* name : {"a.py", "b.txt", "model_of_mine.safetensors"}) {
    fs::remove(victim / name);
  }
  fs::create_directory(victim / "empty");
  EXPECT_TRUE(has(refusal(), "holds 'empty/', which"));
  fs::remove(victim / "empty");
  convert_to(step, victim, "sharded", {.force = true});
  expect_version(victim, 4);
}

TEST_F(Convert, TheSmallFilesOfAnEarlierResultMayBeReplaced) {
  const fs::path folder = hugging_face({"a"});
  write_all(folder / "notes.txt", "of the model");
  convert_to(folder, *this / "out", "hf");
  convert_to(folder, *this / "out", "full", {.force = true});
  fs::remove(folder / "notes.txt");
  // The manifest lists it.
  convert_to(folder, *this / "out", "hf", {.force = true});
  EXPECT_FALSE(fs::exists(*this / "out/notes.txt"));
  // A folder of Hugging Face's has no list: notes.txt could be the user's.
  write_all(*this / "out/notes.txt", "mine");
  EXPECT_TRUE(has(error_of([&] { convert_to(folder, *this / "out", "hf", {.force = true}); }),
                  "holds 'notes.txt', which no conversion wrote"));
}

TEST_F(Convert, ALinkOutOfTheFolderIsRefused) {
  const fs::path folder = hugging_face({"a"});
  write_all(*this / "secret", "secret");
  const auto refuse = [&](const char* name) {
    const std::string text = error_of([&] { convert_to(folder, *this / "out", "hf"); });
    EXPECT_TRUE(has(text, fmt::format("'{}' is a link out of its folder, to '{}'",
                                      (folder / name).string(), (*this / "secret").string())));
    EXPECT_FALSE(fs::exists(*this / "out"));
    fs::remove(folder / name);
  };
  fs::create_symlink(*this / "secret", folder / "notes.txt");
  refuse("notes.txt");
  fs::create_symlink("../secret", folder / "tokenizer.json");
  refuse("tokenizer.json");
  fs::rename(folder / "model.safetensors", *this / "secret");
  fs::create_symlink("../secret", folder / "model.safetensors");
  refuse("model.safetensors");
  fs::rename(*this / "secret", folder / "model.safetensors");
  fs::create_symlink("config.json", folder / "other.json");  // within the folder
  convert_to(folder, *this / "out", "hf");
  EXPECT_FALSE(fs::is_symlink(*this / "out/other.json"));
}

TEST_F(Convert, LinksOfTheHubCacheAreFollowed) {
  const fs::path folder = hugging_face({"a"});
  const fs::path cache = *this / "models--a--b";
  const fs::path snapshot = cache / "snapshots/0123";
  fs::create_directories(snapshot);
  fs::create_directories(cache / "blobs");
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::rename(folder / name, cache / "blobs" / (std::string("hash-") + name));
    fs::create_symlink(std::string("../../blobs/hash-") + name, snapshot / name);
  }
  convert_to(snapshot, *this / "out", "hf");
  EXPECT_EQ(names_in_folder(*this / "out"),
            (std::set<std::string>{"config.json", "model.safetensors"}));
  EXPECT_FALSE(fs::is_symlink(*this / "out/config.json"));
  // A blob that is a link itself may be anything.
  write_all(*this / "secret", "{}");
  fs::create_symlink(*this / "secret", cache / "blobs/hash");
  fs::create_symlink("../../blobs/hash", snapshot / "notes.json");
  EXPECT_TRUE(has(error_of([&] { convert_to(snapshot, *this / "second", "hf"); }),
                  "notes.json' is a link out of its folder"));
}

TEST_F(Convert, ACopiedFileStaysPrivate) {
  const fs::path folder = hugging_face({"a"}, R"({"dtype": "float32"})");
  write_all(folder / "private.json", "{}");
  write_all(folder / "public.json", "{}");
  const auto of_owner = fs::perms::owner_read | fs::perms::owner_write;
  for (const char* name : {"private.json", "config.json"}) {
    fs::permissions(folder / name, of_owner);
  }
  fs::permissions(folder / "public.json",
                  of_owner | fs::perms::group_read | fs::perms::others_read);
  const auto mode_of = [&](const char* name) {
    return fs::status(*this / "out" / name).permissions();
  };
  convert_to(folder, *this / "out", "full", {.dtype = DType::bfloat16});
  EXPECT_EQ(mode_of("private.json"), of_owner);
  EXPECT_EQ(mode_of("config.json"), of_owner);  // made from the source's
  EXPECT_EQ(mode_of("public.json") & fs::perms::owner_all, of_owner);
}

TEST_F(Convert, SourceAndTargetMustBeSeparate) {
  const fs::path step = save_step(StateDictType::full);
  for (const fs::path& target :
       {step, step / "inside", *this / "run" / "." / "step-4", *this / "run"}) {
    const std::string text =
        error_of([&] { convert_to(step, target, "full", {.force = true}); }, ErrorCode::usage);
    EXPECT_TRUE(has(text, "are the same, or one is in the other")) << target;
  }
  verify(step);
}

TEST_F(Convert, DamageStopsTheConversion) {
  const fs::path step = save_step(StateDictType::full);
  const fs::path file = step / "model.safetensors";
  std::string bytes = read_all(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_all(file, bytes);
  EXPECT_TRUE(has(error_of([&] { convert_to(step, *this / "out", "hf"); }), "is damaged"));
  EXPECT_FALSE(fs::exists(*this / "out"));
}

TEST_F(Convert, UnknownFormatsAreNamed) {
  EXPECT_TRUE(
      has(error_of([&] { convert_to(*this / "gone", *this / "out", "hf"); }), "does not exist"));
  fs::create_directory(*this / "empty");
  EXPECT_TRUE(has(error_of([&] { convert_to(*this / "empty", *this / "out", "hf"); }),
                  "is not a checkpoint of a known format; looked for"));
  EXPECT_TRUE(
      has(error_of([&] { convert_to(*this / "empty", *this / "out", "tar"); }, ErrorCode::usage),
          "unknown format 'tar'"));
}

}  // namespace
}  // namespace tessera::checkpoint
