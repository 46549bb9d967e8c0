// FULL in numbered files with an index, and exports: both are Hugging Face folders.
#include <gtest/gtest.h>

#include "checkpoint/io/folder_lock.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/save/export.h"
#include "checkpoint/save/model_files.h"
#include "checkpoint/steps/manifest.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

int wrong_from_hugging_face(const fs::path& folder, int version) {
  RankState own = make_state(0, 1, 0, whole_cut(), false);
  load_hugging_face(folder, own.state.model, {}, nullptr);
  own.state.optimizer.clear();
  return static_cast<int>(wrong_elements(own.state, version));
}

TEST(NumberedFiles, HaveTheContentsOfOneFile) {
  const TemporaryFolder folder;
  for (const int world : {1, 2, 3}) {
    save_version(folder.path(), world, {.max_file_size = 1000}, world);
    const fs::path step = folder.path() / ("step-" + std::to_string(world));
    EXPECT_FALSE(fs::exists(step / "model.safetensors"));
    // wte has 1924 bytes and a file of its own; bias, counts and the small tensors have less than
    // 1000 together.
    const auto index =
        nlohmann::json::parse(read_all(step / "model.safetensors.index.json")).at("weight_map");
    EXPECT_EQ(index.at("transformer.wte.weight"), "model-00001-of-00002.safetensors");
    EXPECT_EQ(index.at("bias"), "model-00002-of-00002.safetensors");
    EXPECT_EQ(SafetensorsFile(step / "model-00001-of-00002.safetensors").header().tensors().size(),
              1u);
    EXPECT_TRUE(fs::exists(step / "optimizer-00003-of-00003.safetensors"));
    EXPECT_TRUE(fs::exists(step / "optimizer.safetensors.index.json"));
    verify(step);
    expect_version(step, world);
    EXPECT_EQ(wrong_from_hugging_face(step, world), 0);
  }
  // The ranks that write a file do not matter.
  for (const char* name :
       {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
    save_version(folder.path(), 7, {.max_file_size = 1000}, 1);
    const std::string alone = read_all(folder.path() / "step-7" / name);
    save_version(folder.path(), 7, {.max_file_size = 1000}, 3);
    EXPECT_EQ(read_all(folder.path() / "step-7" / name), alone);
  }
}

TEST(NumberedFiles, OneFileIsEnoughForTensorsThatFit) {
  const TemporaryFolder folder;
  save_version(folder.path(), 1, {.max_file_size = 1'000'000});
  EXPECT_TRUE(fs::exists(folder.path() / "step-1/model.safetensors"));
  EXPECT_FALSE(fs::exists(folder.path() / "step-1/model.safetensors.index.json"));
}

void export_version(const fs::path& folder, int version, SystemCalls* calls = nullptr,
                    std::string* error = nullptr) {
  comm::run_local(2, [&](const auto& communicator) {
    std::optional<ScopedSystemCalls> scope;
    if (calls != nullptr) scope.emplace(*calls);
    const RankState own = make_state(communicator->rank(), 2, version, even_cut(), true);
    const auto attempt = [&] {
      export_model(
          *communicator, folder, own.state.model,
          {.max_file_size = 1000, .files = {{"config.json", "{}"}, {"tokenizer.json", "{}"}}});
    };
    if (error == nullptr) return attempt();
    const std::string text = error_of(attempt);
    if (communicator->rank() == 0) *error = text;
  });
}

std::vector<std::string> names_at(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Export, IsAPlainHuggingFaceFolder) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "a/b";
  export_version(out.string() + "/", 1);
  EXPECT_EQ(names_at(out),
            (std::vector<std::string>{"config.json", "model-00001-of-00002.safetensors",
                                      "model-00002-of-00002.safetensors",
                                      "model.safetensors.index.json", "tokenizer.json"}));
  EXPECT_EQ(wrong_from_hugging_face(out, 1), 0);
  export_version(out, 2);  // over the earlier export
  EXPECT_EQ(wrong_from_hugging_face(out, 2), 0);
  EXPECT_EQ(names_at(out.parent_path()), std::vector<std::string>{"b"});
}

TEST(Export, ReplacesNothingThatItDidNotWrite) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "out";
  fs::create_directories(out);
  write_all(out / "thesis.tex", "x");
  std::string error;
  export_version(out, 1, nullptr, &error);
  EXPECT_TRUE(has(error, "holds 'thesis.tex', which no export wrote"));
  EXPECT_EQ(names_at(folder.path()), std::vector<std::string>{"out"});
  EXPECT_EQ(names_at(out), std::vector<std::string>{"thesis.tex"});
}

// A Sentence Transformers folder has subfolders, to which other files may have been added since.
TEST(Export, ReplacesNoFolderOfAModuleWithMoreInIt) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "out";
  fs::create_directories(out / "1_Pooling");
  write_all(out / "1_Pooling/config.json", "{}");
  write_all(out / "1_Pooling/notes.txt", "x");
  std::string error;
  export_version(out, 1, nullptr, &error);
  EXPECT_TRUE(has(error, "holds '1_Pooling/notes.txt', which no export wrote")) << error;
  EXPECT_EQ(names_at(out / "1_Pooling"), (std::vector<std::string>{"config.json", "notes.txt"}));
}

TEST(Export, RemovesOnlyTheLeftoversOfADeadExport) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "out";
  for (const char* name : {"out.partial-mine", "out.partial-0123456789abcdef"}) {
    fs::create_directories(folder.path() / name);
    write_all(folder.path() / name / "thesis.tex", "x");
  }
  // Belongs to a running export, which holds a lock on its folder.
  const fs::path live = folder.path() / "out.partial-aaaaaaaaaaaaaaaa";
  fs::create_directories(live);
  const auto lock = LockedFolder::try_lock(live);
  ASSERT_TRUE(lock.has_value());
  export_version(out, 1);
  EXPECT_EQ(names_at(folder.path()),
            (std::vector<std::string>{"out", "out.partial-aaaaaaaaaaaaaaaa", "out.partial-mine"}));
}

class FullAtFsync final : public SystemCalls {
  int fsync(int) override {
    errno = ENOSPC;
    return -1;
  }
};

TEST(Export, ThatFailsKeepsTheEarlierExport) {
  const TemporaryFolder folder;
  const fs::path out = folder.path() / "out";
  export_version(out, 1);
  FullAtFsync calls;
  std::string error;
  export_version(out, 2, &calls, &error);
  EXPECT_TRUE(has(error, "ENOSPC"));
  EXPECT_EQ(wrong_from_hugging_face(out, 1), 0);
  EXPECT_EQ(names_at(folder.path()), std::vector<std::string>{"out"});
}

TEST(Export, CopiesTheTokenizer) {
  const TemporaryFolder folder;
  for (const char* name : {"tokenizer.json", "vocab.txt", "generation_config.json", "config.json",
                           "README.md", "own.tiktoken", "model.safetensors"}) {
    write_all(folder.path() / name, name);
  }
  const ModelFiles files = read_model_files(folder.path());
  EXPECT_EQ(files.contents, (std::map<std::string, std::string>{
                                {"generation_config.json", "generation_config.json"},
                                {"own.tiktoken", "own.tiktoken"},
                                {"tokenizer.json", "tokenizer.json"},
                                {"vocab.txt", "vocab.txt"}}));
}

TEST(Export, RefusesALinkOutOfTheFolderOfTheTokenizer) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "model");
  write_all(folder.path() / "secret", "secret");
  fs::create_symlink("../secret", folder.path() / "model/tokenizer.json");
  EXPECT_TRUE(has(error_of([&] { read_model_files((folder.path() / "model").string()); }),
                  "model/tokenizer.json' is a link out of its folder, to '"));
}

TEST(Export, KeepsPrivateFilesPrivate) {
  const TemporaryFolder folder;
  const fs::path model = folder.path() / "model", out = folder.path() / "out";
  fs::create_directory(model);
  const auto of_owner = fs::perms::owner_read | fs::perms::owner_write;
  for (const char* name : {"tokenizer.json", "config.json"}) {
    write_all(model / name, "{}");
    fs::permissions(model / name, of_owner);
  }
  ModelFiles files = read_model_files(model);
  files.contents["config.json"] = "{}";
  comm::run_local(1, [&](const auto& communicator) {
    const RankState own = make_state(0, 1, 1, whole_cut(), true);
    export_model(*communicator, out, own.state.model,
                 {.files = files.contents, .file_modes = files.modes});
    save(*communicator, folder.path() / "run", 1, own.state,
         {.files = files.contents, .file_modes = files.modes});
  });
  for (const char* name : {"tokenizer.json", "config.json"}) {
    EXPECT_EQ(fs::status(out / name).permissions(), of_owner) << name;
    EXPECT_EQ(fs::status(folder.path() / "run/step-1" / name).permissions(), of_owner) << name;
  }
}

}  // namespace
}  // namespace tessera::checkpoint
