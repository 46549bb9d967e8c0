// A conversion that leaves heads and feed-forward columns out: which are kept, the bits of what is
// kept, config.json, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "checkpoint/formats/gguf_testing.h"
#include "checkpoint/narrow/narrowed_source.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

using Weights = std::vector<float>;

// The numbers of the `kept` largest scores, in rising order.
std::vector<std::size_t> largest(const std::vector<double>& scores, std::size_t kept) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  order.resize(kept);
  std::sort(order.begin(), order.end());
  return order;
}

// The elements of a matrix [rows, columns] whose row (axis 0) or column is in one of the kept units
// of equal size.
Weights cut(const Weights& whole, std::size_t columns, int axis, std::size_t unit,
            const std::vector<std::size_t>& kept) {
  Weights rest;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const std::size_t place = (axis == 0 ? i / columns : i % columns) / unit;
    if (std::binary_search(kept.begin(), kept.end(), place)) rest.push_back(whole[i]);
  }
  return rest;
}

class Narrow : public ::testing::Test {
 protected:
  void SetUp() override {
    write_small_model(at("llama"), small_llama_tensors(), small_llama_config());
    write_small_model(at("gpt2"), small_gpt2_tensors(), small_gpt2_config());
  }

  [[nodiscard]] fs::path at(const std::string& name) const { return folder_.path() / name; }

  [[nodiscard]] Weights weights(const std::string& name, const std::string& tensor) const {
    return floats_of(at(name) / "model.safetensors", tensor);
  }

  ConvertReport narrow(const std::string& source, const NarrowOptions& options,
                       ConvertOptions more = {}) {
    more.narrow = options;
    if (more.to.empty()) more.to = "hf";
    more.force = true;
    return convert(at(source), at("small"), more);
  }

  [[nodiscard]] nlohmann::json config() const {
    return nlohmann::json::parse(read_all(at("small") / "config.json"));
  }

  std::string refusal(const std::string& source, const NarrowOptions& options,
                      ErrorCode code = ErrorCode::configuration) {
    std::string text = error_of([&] { narrow(source, options); }, code);
    EXPECT_FALSE(fs::exists(at("small")));
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }

  void change_config(const std::string& name, const nlohmann::json& changes) {
    nlohmann::json changed = nlohmann::json::parse(read_all(at(name) / "config.json"));
    changed.update(changes);
    write_all(at(name) / "config.json", changed.dump());
  }

  TemporaryFolder folder_;
};

TEST_F(Narrow, KeepsTheGroupsOfHeadsAndTheColumnsWithTheLargestWeights) {
  const auto report = narrow("llama", {.heads = 2, .ffn = gguf_inner / 4}, {.verify = true});
  EXPECT_TRUE(report.verified);
  const auto width = static_cast<std::size_t>(gguf_width);
  const auto inner = static_cast<std::size_t>(gguf_inner);
  const std::size_t kept = inner / 4, group = width / 2, key = width / 4;
  EXPECT_EQ(config().at("num_attention_heads"), 2);
  EXPECT_EQ(config().at("num_key_value_heads"), 1);
  EXPECT_EQ(config().at("head_dim"), width / 4);
  EXPECT_EQ(config().at("intermediate_size"), kept);
  EXPECT_EQ(config().at("rope_theta"), 10000.0);
  for (int layer = 0; layer < gguf_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const auto all = [&](const std::string& rest) { return weights("llama", prefix + rest); };
    // {matrix, columns, axis, elements of a unit along the axis}
    const std::vector<std::tuple<std::string, std::size_t, int, std::size_t>> of_heads = {
        {"self_attn.q_proj.weight", width, 0, group},
        {"self_attn.k_proj.weight", width, 0, key},
        {"self_attn.v_proj.weight", width, 0, key},
        {"self_attn.o_proj.weight", width, 1, group}};
    const std::vector<std::tuple<std::string, std::size_t, int, std::size_t>> of_columns = {
        {"mlp.gate_proj.weight", width, 0, 1},
        {"mlp.up_proj.weight", width, 0, 1},
        {"mlp.down_proj.weight", inner, 1, 1}};
    for (const auto& [matrices, units, stay] :
         {std::tuple(of_heads, std::size_t{2}, std::size_t{1}),
          std::tuple(of_columns, inner, kept)}) {
      std::vector<double> scores(units, 0.0);
      for (const auto& [name, columns, axis, unit] : matrices) {
        const Weights whole = all(name);
        for (std::size_t i = 0; i < whole.size(); ++i) {
          scores[(axis == 0 ? i / columns : i % columns) / unit] +=
              static_cast<double>(whole[i]) * static_cast<double>(whole[i]);
        }
      }
      for (const auto& [name, columns, axis, unit] : matrices) {
        EXPECT_EQ(weights("small", prefix + name),
                  cut(all(name), columns, axis, unit, largest(scores, stay)))
            << prefix << name;
      }
    }
    EXPECT_EQ(weights("small", prefix + "input_layernorm.weight"), all("input_layernorm.weight"));
  }
  EXPECT_EQ(weights("small", "lm_head.weight"), weights("llama", "lm_head.weight"));
}

TEST_F(Narrow, Gpt2LosesColumnsWithTheirBiases) {
  narrow("gpt2", {.ffn = 24}, {.verify = true});
  EXPECT_EQ(config().at("n_inner"), 24);
  const auto width = static_cast<std::size_t>(gguf_width);
  const std::string mlp = "transformer.h.0.mlp.";
  const Weights up = weights("gpt2", mlp + "c_fc.weight");
  const Weights down = weights("gpt2", mlp + "c_proj.weight");
  std::vector<double> scores(4 * width, 0.0);
  for (std::size_t i = 0; i < up.size(); ++i) {
    scores[i % scores.size()] += static_cast<double>(up[i]) * static_cast<double>(up[i]);
    scores[i / width] += static_cast<double>(down[i]) * static_cast<double>(down[i]);
  }
  const std::vector<std::size_t> kept = largest(scores, 24);
  EXPECT_EQ(weights("small", mlp + "c_fc.weight"), cut(up, scores.size(), 1, 1, kept));
  EXPECT_EQ(weights("small", mlp + "c_fc.bias"),
            cut(weights("gpt2", mlp + "c_fc.bias"), 1, 0, 1, kept));
  EXPECT_EQ(weights("small", mlp + "c_proj.weight"), cut(down, width, 0, 1, kept));
  EXPECT_EQ(weights("small", mlp + "c_proj.bias"), weights("gpt2", mlp + "c_proj.bias"));
}

// Pieces of any length are those of the whole.
TEST_F(Narrow, ReadsAnyRange) {
  const std::string text = read_all(at("llama") / "config.json");
  const auto source = open_narrowed(formats::recognise(at("llama")).open(at("llama")), text,
                                    {.heads = 2, .ffn = 5});
  const auto& tensors = source->contents().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::int64_t elements = 1;
    for (const std::int64_t size : tensors[i].shape) elements *= size;
    Weights whole(static_cast<std::size_t>(elements)), pieces(whole.size());
    source->read(i, 0, elements, reinterpret_cast<std::byte*>(whole.data()));
    for (std::int64_t first = 0, count = 1; first < elements; first += count, count += 7) {
      count = std::min(count, elements - first);
      source->read(i, first, count, reinterpret_cast<std::byte*>(pieces.data() + first));
    }
    EXPECT_EQ(pieces, whole) << tensors[i].name;
  }
}

// A smaller model can be converted, and narrowed again, like any other.
TEST_F(Narrow, GoesWithOtherFormatsAndMeans) {
  narrow("llama", {.ffn = 12});
  fs::rename(at("small"), at("once"));
  narrow("llama", {.ffn = 12}, {.average = {at("llama")}});
  for (const char* name : {"mlp.up_proj.weight", "mlp.down_proj.weight"}) {
    const std::string tensor = std::string("model.layers.1.") + name;
    EXPECT_EQ(weights("small", tensor), weights("once", tensor));
  }
  fs::remove_all(at("small"));
  narrow("once", {.heads = 2, .ffn = 6}, {.to = "gguf"});
  EXPECT_TRUE(fs::is_regular_file(at("small")));
}

TEST_F(Narrow, SaysWhyAModelStaysAsItIs) {
  const auto says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(refusal("gpt2", {.heads = 2}), "--heads: gpt2 models: its config.json has no head_dim");
  says(refusal("llama", {.heads = 3}), "keep a multiple of 2");
  says(refusal("llama", {.heads = 4}), "--heads 4: the model has 4; keep fewer");
  says(refusal("llama", {.ffn = 0}), "--ffn 0: the model's feed-forward layers have");
  says(refusal("llama", {.ffn = gguf_inner}), "keep fewer");
  change_config("llama", {{"model_type", "olmo2"}});
  says(refusal("llama", {.heads = 2}), "norms of queries and keys are over all heads");
  change_config("llama", {{"model_type", "mixtral"}});
  says(refusal("llama", {.ffn = 2}), "--ffn: mixtral models: its feed-forward layers are experts");
  change_config("llama", {{"model_type", "phi3"}});
  says(refusal("llama", {.ffn = 2}), "model_types: llama, mistral");
}

TEST_F(Narrow, DoesNotTrustConfigJson) {
  const auto says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const auto corrupt = ErrorCode::checkpoint;
  change_config("llama", {{"num_hidden_layers", 3}});
  says(refusal("llama", {.ffn = 2}, corrupt), "0 tensors end with '.2.mlp.gate_proj.weight'");
  change_config("llama", {{"num_hidden_layers", 1}});
  says(refusal("llama", {.ffn = 2}, corrupt), "of a layer that config.json does not have");
  change_config("llama", {{"num_hidden_layers", "two"}});
  says(refusal("llama", {.ffn = 2}), "num_hidden_layers is not a number above 0");
  change_config("llama", {{"num_hidden_layers", gguf_layers}, {"intermediate_size", 1000}});
  says(refusal("llama", {.ffn = 2}, corrupt), "says that it has 1000 feed-forward columns");
  fs::remove(at("llama") / "config.json");
  says(refusal("llama", {.ffn = 2}, corrupt), "has no config.json");
}

}  // namespace
}  // namespace tessera::checkpoint
