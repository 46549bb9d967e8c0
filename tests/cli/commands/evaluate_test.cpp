// `tessera evaluate`: the numbers are the same on one rank and on many, under every strategy; bad
// data and arguments are refused.
#include <cmath>
#include <memory>

#include "sharding/policy/strategy.h"
#include "tasks/evaluators.h"
#include "tasks/sentence_losses.h"
#include "tests/cli/commands/encoder_testing.h"
#include "tests/training/sentence_testing.h"

namespace tessera::cli {
namespace {

using nlohmann::json;
using testing::Ended;
using testing::launched;
using testing::run_program;

class EvaluateCommandTest : public ::testing::Test {
 protected:
  static constexpr std::size_t samples = 37;

  static void SetUpTestSuite() {
    folder_ = std::make_unique<testing::SentenceFolder>();
    testing::make_encoder_folder(folder_->path("encoder"));
    first_ = testing::sentences(samples, 5);
    second_ = testing::sentences(samples, 6);
    std::string table;
    for (std::size_t i = 0; i < samples; ++i) {
      labels_.push_back(static_cast<double>(i * i % 11) / 2);
      table += "genre\tfile\tyear\t" + std::to_string(i) + "\t" + std::to_string(labels_[i]) +
               "\t" + first_[i] + "\t" + second_[i] + "\n";
    }
    folder_->write("pairs.csv", table);
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string path(const std::string& name) { return folder_->path(name); }
  static std::vector<std::string> arguments(const std::vector<std::string>& options = {}) {
    std::vector<std::string> all = {
        "evaluate", path("encoder"), "--data", path("pairs.csv"), "--columns",
        "6,7,5",    "--device",      "cpu",    "--json",          path("result.json")};
    all.insert(all.end(), options.begin(), options.end());
    return all;
  }
  static json result_of(const Ended& ended) {
    EXPECT_EQ(ended.code, 0) << ended.err;
    return json::parse(testing::read_text(path("result.json")), nullptr, false);
  }

  static std::unique_ptr<testing::SentenceFolder> folder_;
  static std::vector<std::string> first_, second_;
  static std::vector<double> labels_;
};
std::unique_ptr<testing::SentenceFolder> EvaluateCommandTest::folder_;
std::vector<std::string> EvaluateCommandTest::first_;
std::vector<std::string> EvaluateCommandTest::second_;
std::vector<double> EvaluateCommandTest::labels_;

TEST_F(EvaluateCommandTest, SimilarityOfPairs) {
  const auto u = testing::embeddings_of(path("encoder"), first_);
  const auto v = testing::embeddings_of(path("encoder"), second_);
  const Ended ended = run_program(arguments({"--label-scale", "5"}));
  const json result = result_of(ended);
  EXPECT_EQ(result["task"], "similarity");
  EXPECT_EQ(result["samples"], samples);
  for (const tasks::Similarity kind : tasks::all_similarities) {
    std::vector<double> scores;
    for (std::size_t i = 0; i < samples; ++i) {
      scores.push_back(tasks::similarity(kind, u[i], v[i]));
    }
    const std::string name(tasks::name_of(kind));
    EXPECT_EQ(result["spearman_" + name], tasks::spearman(labels_, scores)) << name;
    EXPECT_NEAR(result["pearson_" + name].get<double>(), tasks::pearson(labels_, scores), 1e-12);
  }
  EXPECT_NE(ended.out.find("spearman_cosine"), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("37 samples"), std::string::npos) << ended.out;
}

// As Sentence Transformers' evaluators, which encode.
TEST_F(EvaluateCommandTest, ThePromptAndTheWidthOfAFolderHold) {
  std::filesystem::copy(path("encoder"), path("prompted"),
                        std::filesystem::copy_options::recursive);
  folder_->write(
      "prompted/config_sentence_transformers.json",
      R"({"prompts": {"q": "and the "}, "default_prompt_name": "q", "truncate_dim": 8})");
  std::vector<std::string> all = arguments();
  all[1] = path("prompted");
  const json result = result_of(run_program(all));
  const auto encoded = [](std::vector<std::string> texts) {
    for (std::string& text : texts) text.insert(0, "and the ");
    auto rows = testing::embeddings_of(path("encoder"), texts);
    for (auto& row : rows) row.resize(8);
    return rows;
  };
  const auto u = encoded(first_), v = encoded(second_);
  std::vector<double> scores;
  for (std::size_t i = 0; i < samples; ++i) {
    scores.push_back(tasks::similarity(tasks::all_similarities[0], u[i], v[i]));
  }
  const std::string name(tasks::name_of(tasks::all_similarities[0]));
  EXPECT_EQ(result["spearman_" + name], tasks::spearman(labels_, scores));
}

TEST_F(EvaluateCommandTest, NoBitDependsOnRanksStrategyOrBatches) {
  const json expected = result_of(run_program(arguments()));
  EXPECT_EQ(result_of(run_program(arguments({"--batch-size", "3"}))), expected);
  for (const int ranks : {2, 3}) {
    for (const StrategyRow& row : strategy_table) {
      const Ended ended = run_program(launched(
          ranks, arguments({"--sharding-strategy", std::string(row.name), "--batch-size", "5"})));
      EXPECT_EQ(result_of(ended), expected) << row.name << " on " << ranks;
    }
  }
}

TEST_F(EvaluateCommandTest, TripletsAndNamedColumns) {
  std::string lines;
  for (std::size_t i = 0; i < samples; ++i) {
    lines += json{{"anchor", first_[i]}, {"near", first_[i]}, {"far", second_[i]}}.dump() + "\n";
  }
  folder_->write("triplets.jsonl", lines);
  std::vector<std::string> all = arguments({"--task", "triplet"});
  all[3] = path("triplets.jsonl");
  all[5] = "anchor,near,far";
  const json result = result_of(run_program(all));
  EXPECT_EQ(result["samples"], samples);
  EXPECT_EQ(result["cosine_accuracy"], 1.0);  // every text is nearest to itself
  EXPECT_EQ(result["euclidean_accuracy"], 1.0);
  all[5] = "anchor,far,near";
  EXPECT_EQ(result_of(run_program(all))["cosine_accuracy"], 0.0);
}

TEST_F(EvaluateCommandTest, PerplexityOfAText) {
  testing::train(
      1, folder_->TrainingFolder::small() + testing::Settings{{"train.steps", "2"},
                                                              {"checkpoint.dir", path("out")},
                                                              {"checkpoint.every", "2"}});
  const std::vector<std::string> all = {"evaluate", path("out"),  "--data", path("text.txt"),
                                        "--task",   "perplexity", "--json", path("result.json"),
                                        "--device", "cpu"};
  const json expected = result_of(run_program(all));
  EXPECT_EQ(expected["tokens"], 19'999);
  EXPECT_NEAR(expected["perplexity"].get<double>(), std::exp(expected["loss"].get<double>()), 1e-9);
  EXPECT_LT(expected["perplexity"].get<double>(), 256);
  EXPECT_EQ(result_of(run_program(launched(3, all))), expected);
  std::vector<std::string> sharded = all;
  sharded.insert(sharded.end(), {"--sharding-strategy", "full_shard"});
  EXPECT_EQ(result_of(run_program(launched(2, sharded))), expected);
}

// A head beside the encoder, as a run with `loss: softmax` saves it.
TEST_F(EvaluateCommandTest, AccuracyOfAHead) {
  const std::string head = path("head");
  std::filesystem::copy(path("encoder"), head, std::filesystem::copy_options::recursive);
  manual_seed(4);
  const nn::Linear classifier = tasks::make_softmax_head(32, 3);
  {
    const auto model = models::make_sentence_encoder(head);
    auto tensors = testing::load_encoder(head, *model);
    tensors.push_back({{"classifier.weight", float32, {3, 96}}, classifier->weight().data()});
    tensors.push_back({{"classifier.bias", float32, {3}}, classifier->bias().data()});
    checkpoint::write_safetensors(head + "/model.safetensors", tensors);
  }
  const auto u = testing::embeddings_of(head, first_);
  const auto v = testing::embeddings_of(head, second_);
  std::string table = "one,two,class\n";
  double right = 0;
  for (std::size_t i = 0; i < samples; ++i) {
    const auto outputs =
        tasks::softmax_logits(Tensor::from(u[i], {1, 32}), Tensor::from(v[i], {1, 32}), classifier)
            .to_vector();
    const auto best = std::max_element(outputs.begin(), outputs.end()) - outputs.begin();
    right += best == static_cast<std::ptrdiff_t>(i % 3) ? 1 : 0;
    table += first_[i] + "," + second_[i] + "," + std::to_string(i % 3) + "\n";
  }
  folder_->write("classes.csv", table);
  std::vector<std::string> all = arguments({"--task", "accuracy", "--batch-size", "4"});
  all[1] = head;
  all[3] = path("classes.csv");
  all[5] = "one,two,class";
  const json expected = result_of(run_program(all));
  EXPECT_EQ(expected["accuracy"], right / samples);
  EXPECT_EQ(result_of(run_program(launched(2, all))), expected);
  all[1] = path("encoder");
  EXPECT_EQ(run_program(all).code, 5);  // the folder has no head
}

// A step of a run with `loss: softmax`, saved in either type, is evaluated on any number of ranks:
// the encoder without the head, and the head.
TEST_F(EvaluateCommandTest, AStepOfEitherTypeHasEncoderAndHead) {
  folder_->write_classes("classes.csv", 30);
  json similarity, accuracy;
  for (const char* type : {"FULL_STATE_DICT", "numbered", "SHARDED_STATE_DICT"}) {
    const std::string dir = path(std::string("steps.") + type);
    const bool numbered = std::string(type) == "numbered";
    testing::train_sentences(
        2,
        folder_->small() +
            testing::Settings{{"model.pretrained", path("encoder")},
                              {"data.tokenizer", path("encoder")},
                              {"data.train", folder_->classes()},
                              {"checkpoint.dir", dir},
                              {"checkpoint.max_file_size", numbered ? "20KB" : "0"},
                              {"checkpoint.state_dict_type", numbered ? "FULL_STATE_DICT" : type}});
    std::vector<std::string> all = arguments();
    all[1] = dir;
    const json pairs = result_of(run_program(all));
    all[3] = path("classes.csv");
    all[5] = "first,second,class";
    all.insert(all.end(), {"--task", "accuracy", "--labels", "no,maybe,yes"});
    const json classes = result_of(run_program(launched(2, all)));
    if (similarity.is_null()) similarity = pairs, accuracy = classes;
    EXPECT_EQ(pairs, similarity) << type;
    EXPECT_EQ(classes, accuracy) << type;
  }
}

void expect_evaluate_refused(const Ended& ended, int code, const std::string& part) {
  EXPECT_EQ(ended.code, code) << ended.err;
  EXPECT_NE(ended.err.find(part), std::string::npos) << ended.err;
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
}

TEST_F(EvaluateCommandTest, BadDataIsRefused) {
  const auto evaluate = [&](const std::string& table, const std::string& columns = "1,2,3") {
    folder_->write("bad.tsv", table);
    std::vector<std::string> all = arguments();
    all[3] = path("bad.tsv");
    all[5] = columns;
    return run_program(all);
  };
  expect_evaluate_refused(evaluate("a\tb\t1\nc\td\tmuch\n"), 4, "bad.tsv:2");
  expect_evaluate_refused(evaluate("a\tb\t1\nc\td\n"), 4, "bad.tsv:2");
  expect_evaluate_refused(evaluate("a\tb\t1\n"), 4, "all labels are equal");
  expect_evaluate_refused(evaluate("a\tb\t1\nc\td\t1\n"), 4, "all labels are equal");
  expect_evaluate_refused(evaluate("a\tb\t1\nc\td\t2\n", "1,2,9"), 4, "bad.tsv");
  expect_evaluate_refused(evaluate("a\tb\t1\nc \xff\td\t2\n"), 4, "bad.tsv:2");
}

TEST_F(EvaluateCommandTest, BadArgumentsAreRefused) {
  expect_evaluate_refused(run_program(arguments({"--task", "similarty"})), 2, "similarity");
  expect_evaluate_refused(run_program(arguments({"--sharding-strategy", "FULL_SHARE"})), 2,
                          "FULL_SHARD");
  expect_evaluate_refused(run_program(arguments({"--label-scale", "0"})), 2, "--label-scale");
  expect_evaluate_refused(run_program(arguments({"--labels", "no,yes"})), 2, "no classes");
  expect_evaluate_refused(run_program({"evaluate", path("encoder")}), 2, "--data");
  std::vector<std::string> all = arguments();
  all[5] = "6,7";
  expect_evaluate_refused(run_program(all), 2, "--columns 6,7: 2 columns; give three");
  expect_evaluate_refused(run_program({"evaluate", path("encoder"), "--data", path("pairs.csv")}),
                          2, "--task similarity needs --columns, those of the first text");
  all = arguments();
  all[9] = path("nowhere/result.json");
  expect_evaluate_refused(run_program(all), 3, "--json");
  all = arguments();
  all[1] = path("nowhere");
  expect_evaluate_refused(run_program(all), 5, "no such folder");
}

}  // namespace
}  // namespace tessera::cli
