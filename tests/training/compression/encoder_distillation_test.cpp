// Sentence encoders that learn from a teacher: the same bits under every strategy, the same loss as
// from the teacher's embeddings and margins in a file, the plan of their memory, and what is
// refused.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "tests/training/compression/saved_weights.h"
#include "tests/training/sentence_testing.h"
#include "tests/training/strategies_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::losses_in;
using testing::run_program;
using testing::sample_sentence;
using testing::SentenceFolder;
using testing::Settings;
using testing::train_sentences;

// A teacher in the folder "teacher", with other weights than the student's and its tokenizer, and
// rows of three texts.
class TaughtFolder : public SentenceFolder {
 public:
  TaughtFolder() : SentenceFolder(0.0) {
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (const char* word : testing::sentence_words) vocabulary += std::string(word) + "\n";
    for (int i = 17; i < 256; ++i) vocabulary += "unused" + std::to_string(i) + "\n";
    write("encoder/vocab.txt", vocabulary);
    train_sentences(1, small() + Settings{{"train.lr", "0.01"},
                                          {"train.steps", "3"},
                                          {"checkpoint.dir", path("teacher")}});
    std::string text;
    for (std::uint64_t i = 0; i < rows; ++i) {
      for (std::uint64_t k = 0; k < 3; ++k) {
        text += sample_sentence(3 * i + k) + (k < 2 ? "\t" : "\n");
      }
    }
    write("triples.tsv", text);
  }

  // The tokenizer is the encoder's own.
  [[nodiscard]] Settings small() const {
    return SentenceFolder::small() + Settings{{"data.tokenizer", path("encoder")}};
  }

  [[nodiscard]] Settings taught(const std::string& loss) const {
    const std::string columns = loss == "mse" ? "" : ", columns: [1, 2, 3]";
    return {{"train.teacher", path("teacher")},
            {"data.train", "{file: " + path("triples.tsv") + columns + ", loss: " + loss + "}"}};
  }

  static constexpr std::uint64_t rows = 24;
};

TEST(DistilledEncoder, EveryStrategyPrintsTheSameBits) {
  const TaughtFolder folder;
  const std::string jsonl = folder.path("metrics.jsonl");
  std::vector<std::string> all;
  for (const std::string loss : {"mse", "margin_mse"}) {
    for (const std::string precision : {"no", "bf16"}) {
      std::vector<std::string> expected;
      for (const Settings& strategy : testing::all_strategies({2})) {
        fs::remove(jsonl);
        train_sentences(2, folder.small() + folder.taught(loss) + strategy +
                               Settings{{"log.jsonl", jsonl},
                                        {"model.dropout", "0.1"},
                                        {"train.steps", "3"},
                                        {"train.gradient_accumulation_steps", "2"},
                                        {"sharding.mixed_precision", precision}});
        const std::vector<std::string> losses = losses_in(jsonl);
        ASSERT_EQ(losses.size(), 3u);
        if (expected.empty()) expected = losses;
        EXPECT_EQ(losses, expected) << nlohmann::json(strategy).dump() << loss << precision;
      }
      all.insert(all.end(), expected.begin(), expected.end());
    }
  }
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), all.size());
}

// `tessera encode` computes the teacher's embeddings; the file has them as columns.
TEST(DistilledEncoder, LearnsTheSameAsFromColumns) {
  const TaughtFolder folder;
  std::string texts;
  for (std::uint64_t i = 0; i < 3 * TaughtFolder::rows; ++i) texts += sample_sentence(i) + "\n";
  folder.write("texts.txt", texts);
  const Ended encoded =
      run_program({"encode", folder.path("teacher"), "--input", folder.path("texts.txt"), "--out",
                   folder.path("embeddings.safetensors")});
  ASSERT_EQ(encoded.code, 0) << encoded.err;
  const std::string bytes = testing::read_text(folder.path("embeddings.safetensors"));
  std::vector<float> embeddings(3 * TaughtFolder::rows * 32);
  const std::size_t size = embeddings.size() * sizeof(float);
  ASSERT_GT(bytes.size(), size);
  std::memcpy(embeddings.data(), bytes.data() + bytes.size() - size, size);
  const auto dot = [&](std::size_t a, std::size_t b) {
    double sum = 0;
    for (std::size_t i = 0; i < 32; ++i) sum += embeddings[a * 32 + i] * embeddings[b * 32 + i];
    return sum;
  };
  std::string rows;
  for (std::size_t i = 0; i < TaughtFolder::rows; ++i) {
    const std::size_t q = 3 * i, p = q + 1, n = q + 2;
    rows += nlohmann::json{{"q", sample_sentence(q)},
                           {"p", sample_sentence(p)},
                           {"n", sample_sentence(n)},
                           {"vector", std::vector<float>(embeddings.begin() + q * 32,
                                                         embeddings.begin() + (q + 1) * 32)},
                           {"margin", 2 * (dot(q, p) - dot(q, n))},
                           {"of_p", 2 * dot(q, p)},
                           {"of_n", 2 * dot(q, n)}}
                .dump() +
            "\n";
  }
  folder.write("rows.jsonl", rows);
  const auto run = [&](const Settings& more, const std::string& name) {
    train_sentences(2, folder.small() + Settings{{"log.jsonl", folder.path(name)}} + more);
    return folder.path(name);
  };
  const auto columns = [&](const std::string& names) {
    return Settings{
        {"data.train", "{file: " + folder.path("rows.jsonl") + ", columns: " + names + "}"}};
  };
  const std::string copied = run(folder.taught("mse"), "copied");
  testing::expect_close(run(columns("[q, vector], loss: mse"), "copied_file"), copied, 1e-5);
  const std::string taught = run(folder.taught("margin_mse"), "taught");
  const std::string scaled = ", loss: margin_mse, label_scale: 2";
  testing::expect_close(run(columns("[q, p, n, margin]" + scaled), "margins"), taught, 1e-5);
  testing::expect_close(run(columns("[q, p, n, of_p, of_n]" + scaled), "scores"), taught, 1e-5);
  // A file that has its margins keeps them beside a data set that has none.
  run({{"train.teacher", folder.path("teacher")},
       {"data.train", "[" + columns("[q, p, n, margin]" + scaled).at("data.train") + ", " +
                          folder.taught("mse").at("data.train") + "]"}},
      "mixed");
}

TEST(DistilledEncoder, MemoryIsAsPlanned) {
  const TaughtFolder folder;
  for (const std::string loss : {"mse", "margin_mse"}) {
    const std::string report = folder.path("memory.json");
    const Ended ended = train_sentences(
        2, folder.small() + folder.taught(loss) +
               Settings{{"log.memory", report}, {"sharding.mixed_precision", "bf16"}});
    EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
    const nlohmann::json taught = nlohmann::json::parse(testing::read_text(report));
    for (const char* kind : {"parameters", "gradients", "optimizer", "communication"}) {
      EXPECT_EQ(taught.at("planned").at(kind), taught.at("measured").at(kind)) << kind;
    }
    EXPECT_LE(taught.at("measured").at("total").get<double>(),
              1.02 * taught.at("planned").at("total").get<double>());
  }
}

TEST(DistilledEncoder, NamesATeacherWhoseEmbeddingsAreNotFinite) {
  const TaughtFolder folder;
  const std::string teacher = folder.path("exported");
  train_sentences(1,
                  folder.small() + Settings{{"train.steps", "1"}, {"checkpoint.export", teacher}});
  testing::spoil_weights(teacher + "/model.safetensors", "layer.0.output.LayerNorm.weight");
  const auto error_of = [&](const Settings& more) {
    const Ended ended = run_program(testing::train_arguments(
        folder.small() + more + Settings{{"train.teacher", teacher}}, testing::sentence_recipe()));
    EXPECT_EQ(ended.code, 8) << ended.err;
    return ended.err;
  };
  const std::string embeddings = error_of(folder.taught("mse"));
  EXPECT_NE(embeddings.find(", because the embeddings of the teacher " + teacher +
                            " are not: nan at [0, 0] of ["),
            std::string::npos)
      << embeddings;
  // Nothing learns its embeddings.
  const std::string states = error_of(
      {{"train.teacher_states", "[{student: encoder.layer.0, teacher: encoder.layer.0}]"}});
  EXPECT_NE(states.find(", because the outputs of encoder.layer.0 of the teacher " + teacher +
                        " are not: nan at [0, 0] of ["),
            std::string::npos)
      << states;
}

TEST(DistilledEncoder, RefusesWhatCannotTeach) {
  const TaughtFolder folder;
  const auto refuse = [&](const Settings& settings, int code, const std::string& text) {
    const Ended ended = run_program(
        testing::train_arguments(folder.small() + settings, testing::sentence_recipe()));
    EXPECT_EQ(ended.code, code) << ended.err;
    EXPECT_NE(ended.err.find(text), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  };
  refuse({{"train.teacher", folder.path("teacher")}}, 3,
         "no data set of data.train learns from it");
  refuse(folder.taught("mse") + Settings{{"train.distill_weight", "0.5"}}, 3,
         "is for train.task: next_token");
  refuse(folder.taught("mse") + Settings{{"train.teacher", folder.path("none")}}, 5,
         "train.teacher: ");
  refuse(folder.taught("mse") + Settings{{"data.train", "{file: " + folder.path("triples.tsv") +
                                                            ", columns: [1, 2, 3], loss: mse}"}},
         3, "takes 2: 1 text and an embedding, or the texts alone, for the teacher");
  refuse({{"data.train",
           "{file: " + folder.path("triples.tsv") + ", columns: [1, 2, 3], loss: margin_mse}"}},
         3, "takes 4: 3 texts and a label");
  // A student of another width.
  const Settings narrow = {{"model.pretrained", "null"},
                           {"model.architecture", "bert"},
                           {"model.hidden_size", "16"},
                           {"model.num_hidden_layers", "1"},
                           {"model.num_attention_heads", "2"},
                           {"model.intermediate_size", "32"},
                           {"model.max_position_embeddings", "64"},
                           {"model.seq_len", "48"}};
  refuse(folder.taught("mse") + narrow, 3,
         "its embeddings have 32 numbers and the trained model's 16, and the loss mse compares "
         "them one by one; use margin_mse, or add a Dense module from 16 to 32");
  train_sentences(1, folder.small() + folder.taught("margin_mse") + narrow);
}

}  // namespace
}  // namespace tessera::training
