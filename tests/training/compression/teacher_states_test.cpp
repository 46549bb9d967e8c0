// Runs that learn hidden states from a teacher: the same bits under every strategy and with
// recomputation, the plan of their memory, and what is refused.
#include "tests/training/sentence_testing.h"
#include "tests/training/strategies_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::all_strategies;
using testing::Ended;
using testing::losses_in;
using testing::run_program;
using testing::sample_sentence;
using testing::SentenceFolder;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::train_sentences;
using testing::TrainingFolder;

std::string folder_with_states(const TrainingFolder& folder) {
  std::string teacher = folder.path("teacher");
  train(1, folder.small() + Settings{{"model.n_layer", "3"},
                                     {"train.steps", "2"},
                                     {"train.lr", "0.01"},
                                     {"train.seed", "7"},
                                     {"checkpoint.dir", teacher}});
  return teacher;
}

constexpr const char* pairs_of_gpt2 =
    "[{student: h.0, teacher: h.1}, {student: transformer.h.1.attn, teacher: h.2.attn, weight: "
    "0.5, loss: cosine}, {student: h.0.mlp.c_fc, teacher: h.0.mlp.c_fc, weight: 0.1}]";

TEST(RunWithTeacherStates, EveryStrategyPrintsTheSameBits) {
  const TrainingFolder folder;
  const std::string jsonl = folder.path("metrics.jsonl");
  const Settings taught = {{"train.teacher", folder_with_states(folder)}, {"log.jsonl", jsonl}};
  for (const std::string precision : {"no", "bf16"}) {
    const Settings common = folder.small() + taught +
                            Settings{{"model.dropout", "0.1"},
                                     {"train.gradient_accumulation_steps", "2"},
                                     {"sharding.mixed_precision", precision}};
    const auto losses = [&](const Settings& more) {
      fs::remove(jsonl);
      train(2, common + more);
      return losses_in(jsonl);
    };
    const Settings states = {{"train.teacher_states", pairs_of_gpt2}};
    const std::vector<std::string> expected = losses(states);
    ASSERT_EQ(expected.size(), 3u);
    for (const Settings& strategy : all_strategies({2})) {
      EXPECT_EQ(losses(states + strategy), expected)
          << nlohmann::json(strategy).dump() << " " << precision;
    }
    EXPECT_EQ(losses(states + Settings{{"sharding.activation_checkpointing", "true"}}), expected)
        << precision;
    EXPECT_NE(losses({}), expected) << "the states change nothing";
  }
}

TEST(RunWithTeacherStates, MemoryIsAsPlanned) {
  const TrainingFolder folder;
  const std::string teacher = folder_with_states(folder);
  for (const char* checkpointing : {"false", "true"}) {
    const std::string report = folder.path("memory.json");
    train(2, folder.small() + Settings{{"log.memory", report},
                                       {"train.teacher", teacher},
                                       {"train.teacher_states", pairs_of_gpt2},
                                       {"sharding.activation_checkpointing", checkpointing}});
    const nlohmann::json log = nlohmann::json::parse(testing::read_text(report));
    EXPECT_EQ(log.at("planned"), log.at("measured")) << checkpointing;
  }
}

// A step's evaluation is the cross-entropy alone, and the weights have no further parameters.
TEST(RunWithTeacherStates, EvaluationsAndStepsAreTheStudents) {
  const TrainingFolder folder;
  const std::string teacher = folder_with_states(folder);
  std::vector<std::string> losses, sizes;
  for (const bool states : {false, true}) {
    const std::string dir = folder.path(states ? "with" : "without");
    const std::string jsonl = dir + ".jsonl";
    train(1, folder.small() +
                 Settings{{"train.teacher", teacher},
                          {"train.lr", "0"},
                          {"data.valid", folder.path("text.txt")},
                          {"log.jsonl", jsonl},
                          {"checkpoint.dir", dir}} +
                 (states ? Settings{{"train.teacher_states", pairs_of_gpt2}} : Settings{}));
    const std::string text = testing::read_text(jsonl);
    const auto begin = text.find("\"valid_loss\":");
    ASSERT_NE(begin, std::string::npos);
    losses.push_back(text.substr(begin, text.find_first_of(",}", begin) - begin));
    sizes.push_back(std::to_string(fs::file_size(dir + "/step-3/model.safetensors")));
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(sizes[0], sizes[1]);
}

TEST(RunWithTeacherStates, BadPairsAreOneLine) {
  const TrainingFolder folder;
  const std::string teacher = folder_with_states(folder);
  // `noted`: the run has described itself, because shapes are known in the first forward.
  const auto refuse = [&](const Settings& settings, const std::string& text, bool noted = false) {
    const Ended ended = run_program(train_arguments(folder.small() + settings));
    EXPECT_EQ(ended.code, 3) << ended.err;
    EXPECT_NE(ended.err.find(text), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), noted ? 2 : 1) << ended.err;
  };
  const auto pairs = [&](const std::string& list) {
    return Settings{{"train.teacher", teacher}, {"train.teacher_states", list}};
  };
  refuse({{"train.teacher_states", pairs_of_gpt2}}, "train.teacher_states needs train.teacher");
  refuse(pairs("[{student: h.2, teacher: h.0}]"),
         "train.teacher_states: the trained model has no module h.2; did you mean h.0?");
  refuse(pairs("[{student: h.1, teacher: h.3}]"), "the teacher has no module h.3");
  refuse(pairs("[{student: h.1.mlp.c_fc, teacher: h.1}]"), "256 wide and that of the teacher's",
         true);
  refuse(pairs("[{student: wpe, teacher: h.1}]"), "without a row for each token", true);
  refuse(pairs("h.1"), "must be a list of pairs, as [{student: h.1, teacher: h.5}]");
  refuse(pairs("[{student: h.1}]"), "a pair needs student and teacher");
  refuse(pairs("[{student: h.1, techer: h.1}]"), "unknown key techer of a pair");
  refuse(pairs("[{student: h.1, teacher: h.1, weight: 0}]"), "above 0");
  refuse(pairs("[{student: h.1, teacher: h.1, loss: kl}]"), "must be one of mse | cosine");
}

TEST(EncoderWithTeacherStates, LearnsThemUnderEveryStrategyAndNeedsTheSameTokens) {
  const SentenceFolder folder(0.0);
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (const char* word : testing::sentence_words) vocabulary += std::string(word) + "\n";
  for (int i = 17; i < 256; ++i) vocabulary += "unused" + std::to_string(i) + "\n";
  folder.write("encoder/vocab.txt", vocabulary);
  const Settings own = folder.small() + Settings{{"data.tokenizer", folder.path("encoder")}};
  train_sentences(1, own + Settings{{"train.lr", "0.01"},
                                    {"train.steps", "3"},
                                    {"checkpoint.dir", folder.path("teacher")}});
  const std::string jsonl = folder.path("metrics.jsonl"), report = folder.path("memory.json");
  const Settings states = {
      {"train.teacher", folder.path("teacher")},
      {"train.teacher_states",
       "[{student: encoder.layer.0, teacher: encoder.layer.0}, {student: "
       "encoder.layer.0.attention.output.dense, teacher: encoder.layer.0.attention.output.dense, "
       "weight: 2}]"}};
  std::vector<std::string> expected;
  for (const Settings& strategy : all_strategies({2})) {
    fs::remove(jsonl);
    train_sentences(
        2, own + states + strategy +
               Settings{{"log.jsonl", jsonl}, {"log.memory", report}, {"train.steps", "3"}});
    if (expected.empty()) expected = losses_in(jsonl);
    EXPECT_EQ(losses_in(jsonl), expected) << nlohmann::json(strategy).dump();
    const nlohmann::json log = nlohmann::json::parse(testing::read_text(report));
    for (const char* kind : {"parameters", "gradients", "optimizer", "communication"}) {
      EXPECT_EQ(log.at("planned").at(kind), log.at("measured").at(kind)) << kind;
    }
    EXPECT_LE(log.at("measured").at("total").get<double>(),
              1.02 * log.at("planned").at("total").get<double>());
  }
  fs::remove(jsonl);
  train_sentences(2, own + Settings{{"log.jsonl", jsonl}, {"train.steps", "3"}});
  EXPECT_NE(losses_in(jsonl), expected);
  const auto refuse = [&](const Settings& more, const std::string& text) {
    const Ended ended = run_program(train_arguments(
        own + states + Settings{{"train.steps", "1"}} + more, testing::sentence_recipe()));
    EXPECT_EQ(ended.code, 3) << ended.err;
    EXPECT_NE(ended.err.find(text), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  };
  refuse({{"model.seq_len", "16"}},
         "it reads texts of up to 48 tokens and the trained model of up "
         "to 16");
  refuse({{"train.teacher_states", "[{student: encoder.layer.5, teacher: encoder.layer.0}]"}},
         "the trained model has no module encoder.layer.5");
  refuse({{"data.tokenizer", "bytes"}},
         "is not data.tokenizer bytes; train.teacher_states "
         "compares the outputs for the same tokens");
}

}  // namespace
}  // namespace tessera::training
