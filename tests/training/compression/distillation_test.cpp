// Runs that learn from a teacher: the same bits under every strategy, resumed ones, the plan of
// their memory, and folders that cannot teach.
#include "tests/training/compression/saved_weights.h"
#include "tests/training/strategies_testing.h"

#include "engine/tensor.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::all_strategies;
using testing::Ended;
using testing::expect_close;
using testing::launched;
using testing::losses_in;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::TrainingFolder;

// A folder of steps with a teacher of three layers.
std::string make_teacher_folder(const TrainingFolder& folder, const Settings& more = {}) {
  std::string teacher = folder.path("teacher");
  train(1, folder.small() +
               Settings{{"model.n_layer", "3"},
                        {"train.steps", "4"},
                        {"train.lr", "0.01"},
                        {"train.seed", "7"},
                        {"checkpoint.dir", teacher}} +
               more);
  return teacher;
}

TEST(DistilledRun, EveryStrategyPrintsTheSameBits) {
  const TrainingFolder folder;
  const std::string teacher = make_teacher_folder(folder);
  const std::string jsonl = folder.path("metrics.jsonl");
  std::vector<std::string> alone;
  for (const std::string precision : {"no", "bf16"}) {
    const Settings common = folder.small() + Settings{{"log.jsonl", jsonl},
                                                      {"model.dropout", "0.1"},
                                                      {"train.gradient_accumulation_steps", "2"},
                                                      {"sharding.mixed_precision", precision}};
    std::vector<std::string> expected;
    for (const Settings& strategy : all_strategies({2})) {
      fs::remove(jsonl);
      train(4, common + strategy + Settings{{"train.teacher", teacher}});
      const std::vector<std::string> losses = losses_in(jsonl);
      ASSERT_EQ(losses.size(), 3u);
      if (expected.empty()) expected = losses;
      EXPECT_EQ(losses, expected) << nlohmann::json(strategy).dump() << " " << precision;
    }
    fs::remove(jsonl);
    train(4, common);
    EXPECT_NE(losses_in(jsonl), expected) << "the teacher changes nothing";
  }
}

TEST(DistilledRun, ResumesWithTheSameBitsAndOnAnotherWorld) {
  const TrainingFolder folder;
  const Settings common = folder.small() + Settings{{"train.teacher", make_teacher_folder(folder)},
                                                    {"train.distill_temperature", "3"},
                                                    {"train.distill_weight", "0.7"}};
  const auto run = [&](int ranks, const std::string& name, int steps) {
    train(ranks, common + Settings{{"train.steps", std::to_string(steps)},
                                   {"data.batch_size", std::to_string(6 / ranks)},
                                   {"log.jsonl", folder.path(name + ".jsonl")},
                                   {"checkpoint.dir", folder.path(name)}});
  };
  run(2, "whole", 6);
  run(2, "same", 3);
  run(2, "same", 6);
  EXPECT_EQ(losses_in(folder.path("same.jsonl")), losses_in(folder.path("whole.jsonl")));
  run(2, "other", 3);
  run(3, "other", 6);
  expect_close(folder.path("other.jsonl"), folder.path("whole.jsonl"), 1e-4);
  // A step has the student alone.
  EXPECT_EQ(fs::file_size(folder.path("whole/step-6/model.safetensors")),
            fs::file_size(folder.path("other/step-3/model.safetensors")));
  EXPECT_EQ(testing::read_text(folder.path("whole/step-6/config.json")).find("\"n_layer\": 3"),
            std::string::npos);
}

// The teacher's shard lies in the dtype of compute, without gradients and moments, and the plan has
// its bytes.
TEST(DistilledRun, MemoryIsAsPlanned) {
  const TrainingFolder folder;
  const std::string teacher = make_teacher_folder(folder);
  for (const std::string precision : {"no", "bf16"}) {
    const auto bytes = [&](const Settings& more) {
      const std::string report = folder.path("memory.json");
      const Ended ended = train(
          2, folder.small() +
                 Settings{{"log.memory", report}, {"sharding.mixed_precision", precision}} + more);
      EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
      return nlohmann::json::parse(testing::read_text(report));
    };
    const nlohmann::json alone = bytes({});
    const nlohmann::json taught = bytes({{"train.teacher", teacher}});
    EXPECT_EQ(taught.at("planned"), taught.at("measured"));
    for (const char* kind : {"gradients", "optimizer"}) {
      EXPECT_EQ(taught.at("measured").at(kind), alone.at("measured").at(kind)) << kind;
    }
    // 3 layers of 64 with their norms and biases, the last norm, and the tables of 256 tokens and
    // 64 positions: each rank holds half, and units are padded.
    const double elements = 3 * (12 * 64 * 64 + 13 * 64) + 2 * 64 + (256 + 64) * 64;
    const double held = taught.at("measured").at("parameters").get<double>() -
                        alone.at("measured").at("parameters").get<double>();
    const double wanted = elements / 2 * (precision == "bf16" ? 2 : 4);
    EXPECT_GE(held, wanted) << precision;
    EXPECT_LE(held, wanted + 8192) << precision;
  }
}

TEST(DistilledRun, RefusesFoldersThatCannotTeach) {
  const TrainingFolder folder;
  const std::string teacher = make_teacher_folder(folder);
  const auto refuse = [&](const Settings& settings, int code, const std::string& text) {
    const Ended ended = run_program(train_arguments(folder.small() + settings));
    EXPECT_EQ(ended.code, code) << ended.err;
    EXPECT_NE(ended.err.find(text), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  };
  refuse({{"train.teacher", teacher}, {"model.vocab_size", "300"}}, 3,
         "has a vocabulary of 256, and the trained model one of 300");
  refuse({{"train.teacher", teacher}, {"model.seq_len", "65"}}, 3,
         "has 64 positions, less than model.seq_len 65");
  refuse({{"train.teacher", folder.path("none")}}, 5, "train.teacher: ");
  refuse({{"train.distill_weight", "0.5"}}, 3, "train.distill_weight needs train.teacher");
  refuse({{"train.teacher", teacher}, {"train.distill_weight", "0"}}, 3, "above 0 and at most 1");
  refuse({{"train.teacher", teacher}, {"train.distill_temperature", "0"}}, 3, "above 0");
  fs::create_directory(folder.path("empty"));
  refuse({{"train.teacher", folder.path("empty")}}, 5, "no config.json there");
}

// The learning rate is not to blame. In fp16 the loss scale is not, either.
TEST(DistilledRun, NamesATeacherWhoseLogitsAreNotFinite) {
  const TrainingFolder folder;
  const std::string teacher = folder.path("exported");
  train(1, folder.small() + Settings{{"train.steps", "1"}, {"checkpoint.export", teacher}});
  testing::spoil_weights(teacher + "/model.safetensors", "ln_f.weight");
  const Settings common = folder.small() + Settings{{"train.teacher", teacher}};
  const std::string cause =
      ", because the logits of the teacher " + teacher + " are not: nan at [0, 0, 0] of [";
  const std::string advice = "] (look at its weights, or compute in a wider dtype)";
  for (const char* precision : {"no", "fp16"}) {
    const Ended ended = run_program(
        launched(2, train_arguments(common + Settings{{"sharding.mixed_precision", precision}})));
    EXPECT_EQ(ended.code, 8) << ended.err;
    EXPECT_NE(ended.err.find("step 1: loss nan and gradient norm nan are not finite" + cause),
              std::string::npos)
        << precision << ended.err;
    EXPECT_NE(ended.err.find(advice), std::string::npos) << ended.err;
    EXPECT_EQ(ended.err.find("train.lr"), std::string::npos) << ended.err;
  }
  const Ended skipping = train(1, common + Settings{{"train.on_spike", "skip"}});
  EXPECT_NE(skipping.err.find("are not finite" + cause), std::string::npos) << skipping.err;
  EXPECT_NE(skipping.err.find(advice + ": the step is skipped"), std::string::npos) << skipping.err;
  const Ended alone = run_program(train_arguments(
      folder.small() + Settings{{"train.lr", "1e30"}, {"train.warmup_steps", "0"}}));
  EXPECT_NE(alone.err.find("are not finite; lower train.lr"), std::string::npos) << alone.err;
}

// A pretrained folder's own configuration counts as the recipe's.
TEST(DistilledRun, RefusesAStudentWithALossOfItsExperts) {
  const TrainingFolder folder;
  const std::string model =
      "model: {architecture: mixtral, hidden_size: 32, intermediate_size: 24, num_hidden_layers: "
      "1, num_attention_heads: 4, num_key_value_heads: 2, num_local_experts: 4, seq_len: 32, "
      "output_router_logits: true}\n";
  const std::string rest = "data: {train: " + folder.path("text.txt") +
                           ", tokenizer: bytes, batch_size: 2}\ntrain: {steps: 1}\n";
  folder.write("experts.yaml", model + rest);
  const std::string student = folder.path("student"), teacher = make_teacher_folder(folder);
  const Ended made =
      run_program(train_arguments({{"checkpoint.export", student}}, folder.path("experts.yaml")));
  ASSERT_EQ(made.code, 0) << made.err;
  folder.write("taught.yaml", "model: {pretrained: " + student + ", seq_len: 32}\n" + rest);
  for (const char* recipe : {"experts.yaml", "taught.yaml"}) {
    const Ended ended =
        run_program(train_arguments({{"train.teacher", teacher}}, folder.path(recipe)));
    EXPECT_EQ(ended.code, 3) << recipe << ended.err;
    EXPECT_NE(ended.err.find("excludes output_router_logits"), std::string::npos) << ended.err;
  }
}

// Two tokenizers with as many tokens, in another order.
TEST(DistilledRun, RefusesAnotherTokenizer) {
  const TrainingFolder folder;
  const std::string words = "shard\ngather\nreduce\nrank\ntile\nmosaic\nstep\nnorm\n,\n.\n";
  for (const std::string name : {"one", "two"}) {
    fs::create_directory(folder.path(name));
    const std::string special = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    folder.write(name + "/vocab.txt",
                 name == "one" ? special + words + "last\n" : special + "last\n" + words);
  }
  fs::create_directory(folder.path("specials"));
  folder.write("specials/vocab.txt", "[PAD]\n[UNK]\n[SEP]\n[CLS]\n[MASK]\n" + words + "last\n");
  const std::string teacher = make_teacher_folder(folder, {{"data.tokenizer", folder.path("one")}});
  const Settings taught = folder.small() + Settings{{"train.teacher", teacher}};
  train(1, taught + Settings{{"data.tokenizer", folder.path("one")}});
  for (const char* name : {"two", "specials"}) {
    const Ended other =
        run_program(train_arguments(taught + Settings{{"data.tokenizer", folder.path(name)}}));
    EXPECT_EQ(other.code, 3) << other.err;
    EXPECT_NE(other.err.find("is not data.tokenizer " + folder.path(name)), std::string::npos)
        << other.err;
  }
}

}  // namespace
}  // namespace tessera::training
