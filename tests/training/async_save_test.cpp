// Runs that save during training, and runs that export: the files equal those of a run that waits
// for its saves, and exported folders can be used elsewhere.
#include "tests/cli/training_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::launched;
using testing::losses_in;
using testing::Program;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::TrainingFolder;

std::string contents_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Settings saving(const TrainingFolder& folder, const std::string& name, bool async) {
  return folder.small() + Settings{{"train.steps", "4"},
                                   {"log.jsonl", folder.path(name + ".jsonl")},
                                   {"checkpoint.dir", folder.path(name)},
                                   {"checkpoint.every", "2"},
                                   {"checkpoint.async", async ? "true" : "false"}};
}

TEST(AsyncTraining, WritesTheFilesOfARunThatWaits) {
  for (const std::string type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT"}) {
    const TrainingFolder folder;
    const Settings kind{{"checkpoint.state_dict_type", type}};
    train(2, saving(folder, "waits", false) + kind);
    const Ended ended = train(2, saving(folder, "goes-on", true) + kind);
    EXPECT_NE(ended.err.find("saving step 2: copied in "), std::string::npos) << ended.err;
    EXPECT_NE(ended.err.find("saved " + folder.path("goes-on/step-4") + " in "), std::string::npos)
        << ended.err;
    EXPECT_EQ(losses_in(folder.path("goes-on.jsonl")), losses_in(folder.path("waits.jsonl")));
    for (const char* step : {"step-2", "step-4"}) {
      int compared = 0;
      for (const auto& entry : fs::directory_iterator(folder.path("waits") + "/" + step)) {
        const std::string name = entry.path().filename();
        if (name == "manifest.json" || name == "recipe.json") continue;
        EXPECT_EQ(contents_of(entry.path()),
                  contents_of(folder.path("goes-on") + "/" + step + "/" + name))
            << name;
        ++compared;
      }
      EXPECT_GE(compared, 3);
    }
  }
}

TEST(AsyncTraining, IsPlannedWithItsCopy) {
  const TrainingFolder folder;
  const auto planned_and_measured = [&](bool async) {
    const Settings settings = saving(folder, async ? "a" : "b", async) +
                              Settings{{"log.memory", folder.path("memory.json")}};
    const Ended ended = train(2, settings);
    EXPECT_EQ(ended.err.find("memory is not as planned"), std::string::npos) << ended.err;
    return nlohmann::json::parse(contents_of(folder.path("memory.json")));
  };
  const auto without = planned_and_measured(false);
  const auto with = planned_and_measured(true);
  for (const char* side : {"planned", "measured"}) {
    const auto parameters = with.at(side).at("parameters").get<std::int64_t>();
    const auto copy = with.at(side).at("other").get<std::int64_t>() -
                      without.at(side).at("other").get<std::int64_t>();
    // Masters and two moments, without the padding, which is never saved.
    EXPECT_GE(copy, parameters * 3 * 9 / 10) << side;
    EXPECT_LE(copy, parameters * 3 * 11 / 10) << side;
  }
}

TEST(AsyncTraining, FinishesItsSaveWhenASignalComes) {
  const TrainingFolder folder;
  const Settings settings = saving(folder, "stopped", true) +
                            Settings{{"train.steps", "1000000"}, {"checkpoint.every", "1"}};
  Program program(launched(2, train_arguments(settings)));
  const std::string jsonl = folder.path("stopped.jsonl");
  ASSERT_TRUE(testing::eventually([&] { return testing::lines_of(jsonl) >= 3; })) << program.err();
  program.signal(SIGTERM);
  ASSERT_EQ(program.wait(), 128 + SIGTERM) << program.err();
  const std::string step = "step-" + std::to_string(testing::lines_of(jsonl));
  EXPECT_NE(program.err().find("saved " + folder.path("stopped/" + step)), std::string::npos)
      << program.err();
  for (const auto& entry : fs::directory_iterator(folder.path("stopped"))) {
    EXPECT_EQ(entry.path().string().find(".partial-"), std::string::npos) << entry.path();
  }
}

TEST(AsyncTraining, EndsAtTheStepAfterASaveThatFailed) {
  const TrainingFolder folder;
  fs::create_directories(folder.path("broken"));
  folder.write("broken/step-2", "in the way");
  const Settings settings = saving(folder, "broken", true) +
                            Settings{{"train.steps", "100000"}, {"checkpoint.resume", "never"}};
  const Ended ended = run_program(launched(2, train_arguments(settings)));
  EXPECT_EQ(ended.code, 5) << ended.err;
  EXPECT_NE(ended.err.find("step-2' exists and is not a checkpoint of Tessera's"),
            std::string::npos)
      << ended.err;
  EXPECT_LT(testing::lines_of(folder.path("broken.jsonl")), 1000);
}

TEST(Exports, AreFoldersThatTrainingCanStartFrom) {
  const TrainingFolder folder;
  const Settings settings = saving(folder, "first", false) +
                            Settings{{"checkpoint.state_dict_type", "SHARDED_STATE_DICT"},
                                     {"checkpoint.export", folder.path("weights")},
                                     {"checkpoint.max_file_size", "100kB"}};
  const Ended ended = train(2, settings);
  EXPECT_NE(ended.err.find("exported the weights to " + folder.path("weights")), std::string::npos)
      << ended.err;
  EXPECT_TRUE(fs::exists(folder.path("weights/config.json")));
  EXPECT_TRUE(fs::exists(folder.path("weights/model.safetensors.index.json")));
  folder.write("weights/tokenizer.json", "{}");
  Settings next =
      saving(folder, "second", false) + Settings{{"model.pretrained", folder.path("weights")},
                                                 {"checkpoint.export", folder.path("again")}};
  for (const char* key : {"model.n_layer", "model.n_embd"}) next.erase(key);
  folder.write("next.yaml", "data: {tokenizer: bytes}\n");
  const Ended again = run_program(launched(2, train_arguments(next, folder.path("next.yaml"))));
  EXPECT_EQ(again.code, 0) << again.err;
  for (const char* place : {"second/step-4", "again"}) {
    EXPECT_EQ(contents_of(folder.path(place) + "/tokenizer.json"), "{}") << place;
  }
  // A folder with other files in it is refused before the first step.
  folder.write("again/notes.txt", "mine");
  const Ended refused = run_program(
      launched(2, train_arguments(saving(folder, "third", false) +
                                  Settings{{"checkpoint.export", folder.path("again")}})));
  EXPECT_EQ(refused.code, 5);
  EXPECT_NE(refused.err.find("holds 'notes.txt', which no export wrote"), std::string::npos)
      << refused.err;
  EXPECT_FALSE(fs::exists(folder.path("third/step-2")));
}

}  // namespace
}  // namespace tessera::training
