// Sentence pairs in the program: the same bits under every strategy and after resuming, the results
// of an evaluation, and the saved folder.
#include <gtest/gtest.h>

#include "tests/training/sentence_testing.h"
#include "tests/training/strategies_testing.h"

namespace tessera::training {
namespace {

using testing::losses_in;
using testing::SentenceFolder;
using testing::Settings;
using testing::train_sentences;

// All losses in turn, with dropout and accumulation.
Settings mixed(const SentenceFolder& folder) {
  return {{"data.train", "[" + folder.pairs("cosine_similarity") + ", " + folder.classes() + ", " +
                             folder.pairs("multiple_negatives_ranking") + "]"},
          {"data.mix", "round_robin"},
          {"train.gradient_accumulation_steps", "3"}};
}

TEST(SentencePairs, EveryStrategyPrintsTheSameBits) {
  const SentenceFolder folder;
  std::vector<std::string> expected;
  for (const Settings& strategy : testing::all_strategies({2})) {
    const std::string jsonl = folder.path("metrics.jsonl");
    std::filesystem::remove(jsonl);
    train_sentences(2, folder.small() + mixed(folder) + strategy + Settings{{"log.jsonl", jsonl}});
    const std::vector<std::string> losses = losses_in(jsonl);
    ASSERT_EQ(losses.size(), 4u);
    if (expected.empty()) expected = losses;
    EXPECT_EQ(losses, expected) << nlohmann::json(strategy).dump();
  }
}

TEST(SentencePairs, RanksAgreeWithOneRankOfTheirBatches) {
  const SentenceFolder folder;
  for (const char* grouped : {"false", "true"}) {
    const auto settings = [&](int batch, const std::string& file) {
      return folder.small() + mixed(folder) +
             Settings{{"data.batch_size", std::to_string(batch)},
                      {"data.group_by_length", grouped},
                      {"train.steps", "12"},
                      {"log.jsonl", folder.path(file)}};
    };
    train_sentences(1, settings(6, "one"));
    train_sentences(2, settings(3, "two"));
    testing::expect_close(folder.path("two"), folder.path("one"), 1e-4);
  }
}

// Forty pairs make six and two thirds batches: steps 3 and 4 contain samples of two epochs.
TEST(SentencePairs, AResumedRunHasTheSameBits) {
  const SentenceFolder folder;
  const auto settings = [&](const std::string& dir, int steps) {
    return folder.small() + mixed(folder) +
           Settings{{"data.batch_size", "3"},
                    {"train.steps", std::to_string(steps)},
                    {"checkpoint.dir", folder.path(dir)},
                    {"checkpoint.every", "2"},
                    {"log.jsonl", folder.path(dir + ".jsonl")}};
  };
  train_sentences(2, settings("whole", 9));
  train_sentences(2, settings("parts", 4));
  train_sentences(2, settings("parts", 9));
  EXPECT_EQ(losses_in(folder.path("parts.jsonl")), losses_in(folder.path("whole.jsonl")));
}

// Settings that decide the next samples must equal the saved run's, or the error names the
// difference.
TEST(SentencePairs, AResumeInAnotherOrderIsRefused) {
  const SentenceFolder folder;
  const Settings settings =
      folder.small() + mixed(folder) + Settings{{"checkpoint.dir", folder.path("out")}};
  train_sentences(1, settings);
  const std::vector<Settings> others = {
      {{"data.mix", "by_size"}}, {{"data.even_batches", "true"}}, {{"data.drop_last", "true"}}};
  for (const Settings& other : others) {
    const auto ended = train_sentences(1, settings + other + Settings{{"train.steps", "6"}}, 3);
    EXPECT_NE(ended.err.find("the run there has data.mix round_robin, data.even_batches false and "
                             "data.drop_last false"),
              std::string::npos)
        << ended.err;
  }
}

TEST(SentencePairs, APositionIsResumedOnAnotherWorld) {
  const SentenceFolder folder;
  const auto settings = [&](const std::string& dir, int batch, int steps) {
    return folder.small() + mixed(folder) +
           Settings{{"data.batch_size", std::to_string(batch)},
                    {"train.steps", std::to_string(steps)},
                    {"checkpoint.dir", folder.path(dir)},
                    {"log.jsonl", folder.path(dir + ".jsonl")}};
  };
  train_sentences(1, settings("one", 6, 8));
  train_sentences(2, settings("several", 3, 3));
  train_sentences(3, settings("several", 2, 8));
  testing::expect_close(folder.path("several.jsonl"), folder.path("one.jsonl"), 1e-4);
}

TEST(SentencePairs, ResumingWithOtherDataIsRefused) {
  const SentenceFolder folder;
  const Settings saved = folder.small() + Settings{{"checkpoint.dir", folder.path("out")}};
  train_sentences(1, saved);
  const Settings more = saved + Settings{{"train.steps", "6"}};
  const auto said = [&](const Settings& changed, int code) {
    return train_sentences(1, more + changed, code).err;
  };
  const std::string pairs = folder.pairs("cosine_similarity");
  EXPECT_NE(
      said({{"data.train", folder.pairs("multiple_negatives_ranking")}}, 4).find("are not those"),
      std::string::npos);
  EXPECT_NE(said({{"data.shuffle", "false"}}, 3).find("data.shuffle true"), std::string::npos);
  EXPECT_NE(said({{"data.train", "[" + pairs + ", " + pairs + "]"}}, 4).find("are not those"),
            std::string::npos);
}

TEST(SentencePairs, AnEvaluationIsInTheMetricsAndTheSameOnAnyWorld) {
  const SentenceFolder folder;
  const auto evaluations = [&](int ranks, int batch) {
    const std::string jsonl = folder.path("metrics" + std::to_string(ranks));
    train_sentences(ranks, folder.small() + Settings{{"data.valid", folder.valid()},
                                                     {"data.batch_size", std::to_string(batch)},
                                                     {"train.eval_every", "2"},
                                                     {"train.lr", "0"},
                                                     {"log.jsonl", jsonl}});
    std::vector<nlohmann::json> found;
    for (const auto& line : testing::metrics_in(jsonl)) {
      if (line.contains("spearman_cosine")) found.push_back(line);
    }
    return found;
  };
  const auto one = evaluations(1, 6);
  ASSERT_EQ(one.size(), 2u);
  EXPECT_EQ(one[0].at("step"), 2);
  EXPECT_TRUE(one[0].at("pearson_cosine").is_number());
  const auto three = evaluations(3, 2);
  ASSERT_EQ(three.size(), 2u);
  for (const auto& [name, value] : one[1].items()) {
    EXPECT_NEAR(three[1].at(name).get<double>(), value.get<double>(), 1e-6) << name;
  }
}

TEST(SentencePairs, ASavedFolderIsASentenceTransformersFolder) {
  const SentenceFolder folder;
  const Settings common = folder.small() + Settings{{"train.steps", "2"}};
  train_sentences(2, common + mixed(folder) +
                         Settings{{"data.valid", folder.valid()},
                                  {"checkpoint.dir", folder.path("out")},
                                  {"checkpoint.keep_best", "1"},
                                  {"checkpoint.export", folder.path("export")}});
  for (const char* saved : {"out/step-2", "export"}) {
    const std::string step = folder.path(saved);
    for (const char* file :
         {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config.json"}) {
      EXPECT_EQ(nlohmann::json::parse(testing::read_text(step + "/" + file)).is_discarded(), false)
          << file;
    }
    // The folder can be trained further, or from its weights with another head.
    train_sentences(1, common + Settings{{"model.pretrained", step}});
    train_sentences(
        1, common + Settings{{"model.pretrained", step}, {"data.train", folder.classes()}});
  }
  const auto verified = testing::run_program({"verify", folder.path("out/step-2")});
  EXPECT_EQ(verified.code, 0) << verified.err;
}

// examples/sentence-mixed.yaml with a tiny MPNet, in a bare folder.
TEST(SentencePairs, TheMixedExampleTrains) {
  const SentenceFolder folder;
  folder.write_encoder("mpnet", "mpnet", 0.1);
  for (const char* file : {"mpnet/modules.json", "mpnet/sentence_bert_config.json"}) {
    std::filesystem::remove(folder.path(file));
  }
  const std::string jsonl = folder.path("metrics.jsonl");
  const Settings settings = {
      {"model.pretrained", folder.path("mpnet")},
      {"model.seq_len", "32"},
      {"data.tokenizer", "bytes"},
      {"data.batch_size", "4"},
      {"data.train", "[" + folder.classes() + ", " + folder.pairs("cosine_similarity") + "]"},
      {"data.valid", folder.valid()},
      {"train.steps", "6"},
      {"train.eval_every", "3"},
      {"train.warmup_steps", "1"},
      {"checkpoint.dir", folder.path("out")},
      {"log.jsonl", jsonl}};
  train_sentences(2, settings, 0, testing::sentence_recipe("sentence-mixed.yaml"));
  EXPECT_EQ(losses_in(jsonl).size(), 6u);
  EXPECT_TRUE(std::filesystem::exists(folder.path("out/step-6/modules.json")));
}

// Plans assume the longest texts that the encoder accepts; a run holds no more memory.
TEST(SentencePairs, ARunHoldsThePlannedMemory) {
  const SentenceFolder folder;
  const Settings settings = folder.small() + Settings{{"data.train", folder.classes()}};
  std::vector<std::string> arguments =
      testing::train_arguments(settings, testing::sentence_recipe());
  arguments[0] = "plan";
  arguments.insert(arguments.end(), {"--world-size", "2", "--device", "cpu"});
  const auto planned = testing::run_program(arguments);
  EXPECT_EQ(planned.code, 0) << planned.err;
  const std::string memory = folder.path("memory.json");
  const auto ended = train_sentences(2, settings + Settings{{"log.memory", memory}});
  EXPECT_EQ(ended.err.find("not as planned"), std::string::npos) << ended.err;
  const auto json = nlohmann::json::parse(testing::read_text(memory));
  EXPECT_LE(json.at("measured").at("total").get<double>(),
            1.02 * json.at("planned").at("total").get<double>());
}

TEST(SentencePairs, TheBestIsTheOneWithTheHighestScore) {
  const SentenceFolder folder;
  const Settings settings =
      folder.small() +
      Settings{{"data.valid", folder.valid()}, {"train.steps", "6"},
               {"train.lr", "1e-2"},           {"checkpoint.dir", folder.path("out")},
               {"checkpoint.every", "1"},      {"checkpoint.keep", "1"},
               {"checkpoint.keep_best", "1"},  {"log.jsonl", folder.path("log")}};
  train_sentences(1, settings);
  double best = -2;
  int best_step = 0;
  for (const auto& line : testing::metrics_in(folder.path("log"))) {
    if (!line.contains("spearman_cosine")) continue;
    if (line.at("spearman_cosine").get<double>() <= best) continue;
    best = line.at("spearman_cosine").get<double>();
    best_step = line.at("step").get<int>();
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path("out/step-" + std::to_string(best_step))));
}

TEST(SentencePairs, ErrorsInARowNameItsLine) {
  const SentenceFolder folder;
  const auto said = [&](const std::string& name, const std::string& text, const std::string& set) {
    folder.write(name, text);
    const std::string file = "{file: " + folder.path(name) + ", ";
    const testing::Ended ended =
        train_sentences(2, folder.small() + Settings{{"data.train", file + set + "}"}}, 4);
    const std::size_t at = ended.err.find(name + ":");
    return at == std::string::npos ? ended.err
                                   : ended.err.substr(at, ended.err.find('\n', at) - at);
  };
  const std::string sts = "columns: [1, 2, 3], loss: cosine_similarity, label_scale: 5";
  EXPECT_EQ(said("a.tsv", "x\ty\t1\nx\ty\tgood\n", sts),
            "a.tsv:2: the label \"good\" is not a number");
  EXPECT_EQ(said("a.tsv", "x\ty\t1\nx\ty\n", sts), "a.tsv:2: 2 columns, but column 3 is required");
  EXPECT_EQ(said("a.csv", "x,y,1\nx,y,3\n", "loss: softmax, num_labels: 3"),
            "a.csv:2: the label \"3\" is not a class: a whole number from 0 to 2");
  EXPECT_EQ(said("a.csv", "x,y,no\nx,y,na\n", "loss: softmax, labels: [no, yes]"),
            "a.csv:2: the label \"na\" is not one of no, yes");
  EXPECT_EQ(said("a.jsonl", "{\"t\": \"x\", \"v\": \"1, 2\"}\n", "columns: [t, v], loss: mse"),
            "a.jsonl:1: the embedding \"1, 2\" is not a list of numbers such as [0.5, -1.25]");
}

// The ids of a pretrained model are those of its tokenizer.
TEST(SentencePairs, AnotherVocabularyIsRefused) {
  const SentenceFolder folder;
  folder.write_encoder("wordy", "bert", 0.1, 3000);
  const auto ended =
      train_sentences(1, folder.small() + Settings{{"model.pretrained", folder.path("wordy")}}, 3);
  EXPECT_NE(
      ended.err.find("tokenizer bytes has 256 tokens, and the pretrained model has learnt 3000"),
      std::string::npos)
      << ended.err;
}

TEST(SentencePairs, ATeachersEmbeddingsAreLearned) {
  const SentenceFolder folder(0.0);
  std::string text;
  for (int i = 0; i < 8; ++i) {
    nlohmann::json vector = nlohmann::json::array();
    for (int k = 0; k < 32; ++k) vector.push_back((i * 31 + k * 17) % 13 / 13.0);
    text += nlohmann::json{{"text", testing::sample_sentence(static_cast<std::uint64_t>(i))},
                           {"embedding", vector}}
                .dump() +
            "\n";
  }
  folder.write("teacher.jsonl", text);
  const std::string jsonl = folder.path("metrics.jsonl");
  train_sentences(
      2, folder.small() + Settings{{"data.train", "{file: " + folder.path("teacher.jsonl") +
                                                      ", columns: [text, embedding], loss: mse}"},
                                   {"train.steps", "60"},
                                   {"train.lr", "1e-2"},
                                   {"train.lr_decay_steps", "60"},
                                   {"log.jsonl", jsonl}});
  const auto lines = testing::metrics_in(jsonl);
  EXPECT_LT(lines.back().at("loss").get<double>(), 0.3 * lines.front().at("loss").get<double>());
}

}  // namespace
}  // namespace tessera::training
