// Runs that prune by magnitude times the norm of the input: so many zeros in each output, the same
// ones on every world and after a resume, for every kind of layer.
#include "tests/training/compression/saved_weights.h"
#include "tests/training/sentence_testing.h"
#include "tests/training/strategies_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::losses_in;
using testing::run_program;
using testing::SavedWeight;
using testing::SentenceFolder;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::train_sentences;
using testing::TrainingFolder;
using testing::weights_in;

// The weights of matrices that have zeros, by name; the rest has none.
std::map<std::string, SavedWeight> pruned_matrices(const std::string& folder) {
  std::map<std::string, SavedWeight> pruned;
  for (auto& [name, weight] : weights_in(folder)) {
    if (weight.shape.size() == 2 && testing::zeros_of(weight) > 0) pruned[name] = weight;
  }
  return pruned;
}

// As many zeros among the inputs of each output, [out, in] or [in, out].
void expect_zeros_in_outputs(const std::string& name, const SavedWeight& weight, bool in_first) {
  const std::size_t rows = weight.shape[0], columns = weight.shape[1];
  const std::size_t outputs = in_first ? columns : rows, inputs = in_first ? rows : columns;
  for (std::size_t out = 0; out < outputs; ++out) {
    std::size_t zeros = 0;
    for (std::size_t in = 0; in < inputs; ++in) {
      if (weight.values[in_first ? in * columns + out : out * columns + in] == 0) ++zeros;
    }
    ASSERT_EQ(zeros, inputs / 2) << name << " output " << out;
  }
}

TEST(WandaRun, PrunesHalfOfEachOutputTheSameOnEveryWorld) {
  const TrainingFolder folder;
  std::map<std::string, SavedWeight> expected;
  for (const int ranks : {1, 2, 3}) {
    const std::string dir = folder.path("run" + std::to_string(ranks));
    train(ranks, folder.small() + Settings{{"train.prune.method", "wanda"},
                                           {"train.steps", "1"},
                                           {"train.lr", "0"},
                                           {"data.batch_size", std::to_string(6 / ranks)},
                                           {"checkpoint.dir", dir}});
    const auto pruned = pruned_matrices(dir + "/step-1");
    if (expected.empty()) expected = pruned;
    ASSERT_EQ(pruned.size(), 8u);
    for (const auto& [name, weight] : pruned) {
      expect_zeros_in_outputs(name, weight, true);
      EXPECT_TRUE(weight.values == expected.at(name).values) << name << " on " << ranks;
    }
  }
  // Another choice than by magnitude, and with other batches.
  const auto other = [&](const Settings& more) {
    const std::string dir = folder.path("other");
    fs::remove_all(dir);
    train(1, folder.small() +
                 Settings{{"train.prune.method", "wanda"},
                          {"train.steps", "1"},
                          {"train.lr", "0"},
                          {"data.batch_size", "6"},
                          {"checkpoint.dir", dir}} +
                 more);
    const auto pruned = pruned_matrices(dir + "/step-1");
    return std::any_of(pruned.begin(), pruned.end(), [&](const auto& one) {
      return one.second.values != expected.at(one.first).values;
    });
  };
  EXPECT_FALSE(other({}));
  EXPECT_TRUE(other({{"train.prune.method", "per_layer"}}));
  EXPECT_TRUE(other({{"train.prune.calibration_batches", "1"}}));
}

TEST(WandaRun, ResumesInTheScheduleWithTheSameBits) {
  const TrainingFolder folder;
  for (const std::string method : {"wanda", "wanda_2:4"}) {
    const auto run = [&](const std::string& name, int steps) {
      train(2, folder.small() + Settings{{"train.prune.method", method},
                                         {"train.prune.begin", "1"},
                                         {"train.prune.end", "4"},
                                         {"train.prune.every", "1"},
                                         {"train.lr", "0.01"},
                                         {"model.dropout", "0.1"},
                                         {"train.steps", std::to_string(steps)},
                                         {"log.jsonl", folder.path(name + ".jsonl")},
                                         {"checkpoint.every", "2"},
                                         {"checkpoint.dir", folder.path(name)}});
    };
    const std::string whole = "whole" + method.substr(5), parts = "parts" + method.substr(5);
    run(whole, 6);
    run(parts, 6);
    fs::remove_all(folder.path(parts + "/step-6"));
    fs::remove_all(folder.path(parts + "/step-4"));
    run(parts, 6);
    EXPECT_EQ(losses_in(folder.path(parts + ".jsonl")), losses_in(folder.path(whole + ".jsonl")));
    EXPECT_TRUE(testing::read_text(folder.path(parts + "/step-6/model.safetensors")) ==
                testing::read_text(folder.path(whole + "/step-6/model.safetensors")))
        << method;
  }
}

TEST(WandaRun, SeesTheInputsOfEveryFamilysLayers) {
  const SentenceFolder folder(0.0);
  const Settings once = {{"train.prune.method", "wanda"}, {"train.steps", "1"}, {"train.lr", "0"}};
  train_sentences(2, folder.small() + once + Settings{{"checkpoint.dir", folder.path("bert")}});
  auto pruned = pruned_matrices(folder.path("bert/step-1"));
  EXPECT_EQ(pruned.size(), 2u * 6);
  for (const auto& [name, weight] : pruned) expect_zeros_in_outputs(name, weight, false);
  folder.write(
      "llama.yaml",
      "model: {architecture: llama, hidden_size: 32, intermediate_size: 48, "
      "num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, seq_len: 32}\n"
      "data: {train: " +
          folder.path("text.txt") + ", tokenizer: bytes, batch_size: 2}\n");
  const Settings all =
      once + Settings{{"checkpoint.dir", folder.path("llama")}, {"train.prune.modules", ".*"}};
  const Ended ended = run_program(train_arguments(all, folder.path("llama.yaml")));
  ASSERT_EQ(ended.code, 0) << ended.err;
  pruned = pruned_matrices(folder.path("llama/step-1"));
  EXPECT_EQ(pruned.size(), 2u * 7 + (pruned.contains("lm_head.weight") ? 1 : 0));
  for (const auto& [name, weight] : pruned) expect_zeros_in_outputs(name, weight, false);
}

}  // namespace
}  // namespace tessera::training
