// A tiny sentence encoder in a Sentence Transformers folder, pairs of sentences, and recipes that
// train the encoder on them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/safetensors/safetensors.h"
#include "engine/random.h"
#include "models/sentence_encoder/sentence_encoder.h"
#include "tests/cli/training_testing.h"

namespace tessera::testing {

inline const char* const sentence_words[] = {"tile", "mosaic", "rank",  "shard", "a",   "wide",
                                             "red",  "moves",  "holds", "sees",  "and", "two"};

// Sentences of one to nine words, which depend only on the number.
inline std::string sample_sentence(std::uint64_t number) {
  std::uint64_t state = number * 0x9E3779B97F4A7C15ULL + 1;
  const auto next = [&state] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return state >> 33;
  };
  std::string text;
  for (std::uint64_t words = 1 + next() % 9; words > 0; --words) {
    text += (text.empty() ? "" : " ") + std::string(sentence_words[next() % 12]);
  }
  return text;
}

class SentenceFolder : public TrainingFolder {
 public:
  explicit SentenceFolder(double dropout = 0.1) {
    write_encoder("encoder", "bert", dropout);
    write_pairs("pairs.tsv", 0, 40);
    write_pairs("valid.tsv", 1000, 25);
    write_classes("classes.csv", 30);
  }

  // examples/sentence-pairs.yaml with this folder's files, a batch of four and three steps.
  [[nodiscard]] Settings small() const {
    return {{"model.pretrained", path("encoder")},
            {"data.tokenizer", "bytes"},
            {"data.batch_size", "4"},
            {"data.train", pairs("cosine_similarity")},
            {"data.valid", "null"},
            {"data.group_by_length", "false"},
            {"checkpoint.dir", "null"},
            {"checkpoint.keep_best", "0"},
            {"train.eval_every", "0"},
            {"train.steps", "4"},
            {"train.warmup_steps", "2"},
            {"train.lr_decay_steps", "50"},
            {"train.task", "sentence_pairs"},
            {"train.lr", "1e-3"}};
  }
  [[nodiscard]] std::string pairs(const std::string& loss) const {
    const bool labelled = loss == "cosine_similarity";
    return "{file: " + path("pairs.tsv") + ", columns: [3, 4" + (labelled ? ", 2" : "") +
           "], loss: " + loss + (labelled ? ", label_scale: 5" : "") + "}";
  }
  [[nodiscard]] std::string classes() const {
    return "{file: " + path("classes.csv") +
           ", columns: [first, second, class], loss: softmax, labels: [no, maybe, yes]}";
  }
  [[nodiscard]] std::string valid() const {
    return "{file: " + path("valid.tsv") +
           ", columns: [3, 4, 2], evaluator: similarity, label_scale: 5}";
  }

  void write_pairs(const std::string& name, std::uint64_t first, std::uint64_t count) const {
    std::string text;
    for (std::uint64_t i = first; i < first + count; ++i) {
      text += "genre\t" + std::to_string((i * 7) % 51 / 10.0).substr(0, 5) + "\t" +
              sample_sentence(2 * i) + "\t" + sample_sentence(2 * i + 1) + "\n";
    }
    write(name, text);
  }
  void write_classes(const std::string& name, std::uint64_t count) const {
    static const char* const names[] = {"no", "maybe", "yes"};
    std::string text = "class,first,second\n";
    for (std::uint64_t i = 0; i < count; ++i) {
      text += std::string(names[i % 3]) + ",\"" + sample_sentence(5000 + i) + ", \"\"x\"\"\"," +
              sample_sentence(6000 + i) + "\n";
    }
    write(name, text);
  }

  // Writes a tiny model of this type to the folder of this name.
  void write_encoder(const std::string& name, const std::string& type, double dropout,
                     int vocabulary = 256) const {
    std::filesystem::create_directories(path(name + "/1_Pooling"));
    const nlohmann::json config = {{"model_type", type},
                                   {"vocab_size", vocabulary},
                                   {"hidden_size", 32},
                                   {"num_hidden_layers", 2},
                                   {"num_attention_heads", 4},
                                   {"intermediate_size", 64},
                                   {"hidden_act", "gelu"},
                                   {"hidden_dropout_prob", dropout},
                                   {"attention_probs_dropout_prob", dropout},
                                   {"max_position_embeddings", 64},
                                   {"type_vocab_size", 2},
                                   {"initializer_range", 0.1},
                                   {"layer_norm_eps", 1e-12},
                                   {"relative_attention_num_buckets", 32},
                                   {"pad_token_id", 0}};
    write(name + "/config.json", config.dump(2));
    const auto module = [](int index, const char* folder, const char* kind) {
      return nlohmann::json{{"idx", index},
                            {"name", std::to_string(index)},
                            {"path", folder},
                            {"type", std::string("sentence_transformers.models.") + kind}};
    };
    write(name + "/modules.json",
          nlohmann::json::array({module(0, "", "Transformer"), module(1, "1_Pooling", "Pooling")})
              .dump(2));
    write(name + "/1_Pooling/config.json",
          nlohmann::json{{"word_embedding_dimension", 32}, {"pooling_mode_mean_tokens", true}}.dump(
              2));
    write(name + "/sentence_bert_config.json",
          nlohmann::json{{"max_seq_length", 48}, {"do_lower_case", false}}.dump(2));
    write_weights(name);
  }

 private:
  void write_weights(const std::string& name) const {
    manual_seed(11);
    const auto model = models::make_sentence_encoder(path(name));
    std::vector<checkpoint::TensorSpec> specs;
    for (const auto& parameter : model->named_parameters()) {
      const auto sizes = parameter.shape.sizes();
      specs.push_back({parameter.name, DType::float32, {sizes.begin(), sizes.end()}});
    }
    const checkpoint::ComposedHeader header = checkpoint::compose_safetensors_header(specs);
    std::string file = header.bytes;
    file.resize(header.file_bytes);
    std::size_t next = 0;
    for (const auto& parameter : model->named_parameters()) {
      std::memcpy(file.data() + header.offsets[next++], parameter.tensor.data(),
                  parameter.tensor.bytes());
    }
    write(name + "/model.safetensors", file);
  }
};

inline std::string sentence_recipe(const std::string& name = "sentence-pairs.yaml") {
  const char* folder = std::getenv("TESSERA_SOURCE_DIR");
  return std::string(folder != nullptr ? folder : ".") + "/examples/" + name;
}

inline Ended train_sentences(int ranks, const Settings& settings, int expected = 0,
                             const std::string& recipe = sentence_recipe()) {
  Ended ended = run_program(launched(ranks, train_arguments(settings, recipe)));
  EXPECT_EQ(ended.code, expected) << ended.err;
  return ended;
}

}  // namespace tessera::testing
