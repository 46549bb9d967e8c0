// Megatron-Core's torch_dist folders: taken apart into the tensors of transformers, or refused with
// the name of what is not read. make_megatron.py makes the fixtures with Megatron-Core itself, on
// two ranks of tensor parallelism.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/convert/convert.h"
#include "checkpoint/formats/formats_testing.h"
#include "checkpoint/formats/known_formats.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::PickleWriter;
using nlohmann::json;

std::string notes_of_megatron(const formats::Source& source) {
  std::string all;
  for (const std::string& note : source.contents().notes) all += note + "\n";
  return all;
}

class MegatronFolder : public ::testing::Test {
 protected:
  [[nodiscard]] fs::path path() const { return work_.path() / "run"; }
  [[nodiscard]] fs::path iteration() const { return path() / "iter_0000003"; }
  void use(const std::string& name) {
    fs::remove_all(path());
    fs::copy(fixture("megatron/" + name), path(), fs::copy_options::recursive);
  }
  std::unique_ptr<formats::Source> open() const { return formats::recognise(path()).open(path()); }
  [[nodiscard]] std::string refusal() const {
    return error_of([&] { (void)open(); });
  }
  static json config_of(const formats::Source& source) {
    return json::parse(source.contents().texts.at("config.json"));
  }

  // common.pt with these arguments in place of Megatron's.
  void write_arguments(const json& arguments) {
    PickleWriter pickle;
    pickle.empty_dict().text("args").global("argparse", "Namespace").empty_tuple().new_object();
    pickle.empty_dict();
    for (const auto& [name, value] : arguments.items()) {
      pickle.text(name);
      if (value.is_boolean()) pickle.boolean(value.get<bool>());
      if (value.is_string()) pickle.text(value.get<std::string>());
      if (value.is_number_integer()) pickle.integer(value.get<std::int64_t>());
      if (value.is_number_float()) pickle.real(value.get<double>());
      if (value.is_null()) pickle.none();
      if (value.is_array()) pickle.empty_list();
      pickle.set_item();
    }
    pickle.build().set_item();
    fs::remove(iteration() / "common.pt");
    write_torch_file(iteration() / "common.pt", pickle.finish());
  }
  [[nodiscard]] std::string refusal_of(const char* argument, const json& value) {
    json arguments = llama_arguments();
    arguments[argument] = value;
    write_arguments(arguments);
    return refusal();
  }
  static json llama_arguments() {
    return {{"num_layers", 3},
            {"hidden_size", 16},
            {"num_attention_heads", 4},
            {"ffn_hidden_size", 20},
            {"group_query_attention", true},
            {"num_query_groups", 2},
            {"kv_channels", 8},
            {"normalization", "RMSNorm"},
            {"swiglu", true},
            {"add_bias_linear", false},
            {"position_embedding_type", "rope"},
            {"untie_embeddings_and_output_weights", true},
            {"max_position_embeddings", 32},
            {"vocab_size", 44}};
  }
  TemporaryFolder work_;
};

TEST_F(MegatronFolder, Gpt2IsTakenApartWithItsMoments) {
  use("gpt2");
  const formats::Format& format = formats::recognise(path());
  EXPECT_STREQ(format.name, "megatron");
  const auto source = format.open(path());
  for (const std::int64_t step : {1, 7, 1 << 20}) {
    expect_equal(tensors_of(*source, step), expected_tensors("megatron/gpt2.safetensors"));
  }
  EXPECT_EQ(source->contents().scalars.get<std::int64_t>("step"), 3);
  EXPECT_EQ(source->contents().aliases.at("lm_head.weight"), "transformer.wte.weight");
  const std::string notes = notes_of_megatron(*source);
  EXPECT_TRUE(has(notes, "rows 44 to 48 of embedding.word_embeddings.weight")) << notes;
  EXPECT_TRUE(has(notes, "_extra_state")) << notes;
  const json config = config_of(*source);
  EXPECT_EQ(config.at("vocab_size"), 44);
  EXPECT_EQ(config.at("n_inner"), 24);
  EXPECT_EQ(config.at("activation_function"), "gelu");
  EXPECT_FALSE(source->contents().files.contains("metadata.json"));
  EXPECT_FALSE(source->contents().files.contains("latest_checkpointed_iteration.txt"));
  EXPECT_EQ(source->verify(nullptr), std::vector<std::string>{});
}

// The weights are the optimizer's, in fp32; the model's own are bfloat16.
TEST_F(MegatronFolder, LlamaIsTakenApartFromTheDistributedOptimizer) {
  use("llama");
  const auto source = formats::recognise(iteration()).open(iteration());
  for (const std::int64_t step : {1, 11, 1 << 20}) {
    expect_equal(tensors_of(*source, step), expected_tensors("megatron/llama.safetensors"));
  }
  const std::string notes = notes_of_megatron(*source);
  EXPECT_TRUE(has(notes, "are the optimizer's")) << notes;
  EXPECT_TRUE(source->contents().unread_state.empty());
  EXPECT_EQ(source->contents().scalars.get<std::int64_t>("step"), 3);
  const json config = config_of(*source);
  EXPECT_EQ(config.at("model_type"), "llama");
  EXPECT_EQ(config.at("vocab_size"), 44);  // NullTokenizer has one token more than vocab_size
  EXPECT_EQ(config.at("num_key_value_heads"), 2);
  EXPECT_EQ(config.at("rope_theta"), 50000);
  EXPECT_EQ(config.at("tie_word_embeddings"), false);
}

// The buckets of the distributed optimizer, optimizer.distributed.*, have no names of parameters.
TEST_F(MegatronFolder, BucketsAreNotLostWithoutAWord) {
  use("llama");
  std::string metadata = read_all(iteration() / ".metadata");
  const std::string named = "optimizer.state.exp_avg.", bucket = "optimizer.distributed.e.";
  for (std::size_t at = metadata.find(named); at != std::string::npos; at = metadata.find(named)) {
    metadata.replace(at, named.size(), bucket);
  }
  write_all(iteration() / ".metadata", metadata);
  EXPECT_TRUE(has(open()->contents().unread_state, "optimizer.distributed"));
  const fs::path out = work_.path() / "out";
  const std::string text = error_of([&] { (void)convert(path(), out, {.to = "full"}); });
  EXPECT_TRUE(has(text, "--weights-only") && has(text, "optim-fully-reshardable")) << text;
  EXPECT_FALSE(fs::exists(out));
  EXPECT_EQ(convert(path(), out, {.to = "full", .weights_only = true}).tensors.size(), 30u);
}

TEST_F(MegatronFolder, TheVocabularyIsThatOfConfigOrTokenizer) {
  use("llama");
  json arguments = llama_arguments();
  arguments.erase("vocab_size");
  write_arguments(arguments);
  EXPECT_EQ(config_of(*open()).at("vocab_size"), 48);
  EXPECT_TRUE(has(notes_of_megatron(*open()), "perhaps with Megatron's padding"));
  write_all(path() / "tokenizer.json",
            R"({"model": {"vocab": {"a": 0, "b": 40}}, "added_tokens": [{"id": 42}]})");
  EXPECT_EQ(config_of(*open()).at("vocab_size"), 43);
  write_all(iteration() / "config.json",
            R"({"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 16, "vocab_size": 41,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8})");
  const auto source = open();
  EXPECT_TRUE(source->contents().files.contains("config.json"));
  EXPECT_EQ(tensors_of(*source).at("model/lm_head.weight").shape.at(0), 41);
}

TEST_F(MegatronFolder, WithoutArgumentsAConfigIsAskedFor) {
  use("llama");
  fs::remove(iteration() / "common.pt");
  EXPECT_TRUE(has(refusal(), "put its config.json")) << refusal();
}

TEST_F(MegatronFolder, OtherModelsAreRefusedByName) {
  use("llama");
  EXPECT_TRUE(has(refusal_of("num_experts", 8), "num_experts is 8"));
  EXPECT_TRUE(has(refusal_of("multi_latent_attention", true), "multi_latent_attention"));
  EXPECT_TRUE(has(refusal_of("rotary_percent", 0.5), "rotary_percent is \"0.5\""));
  EXPECT_TRUE(has(refusal_of("rotary_interleaved", true), "rotary_interleaved"));
  EXPECT_TRUE(has(refusal_of("normalization", "LayerNorm"), "\"LayerNorm\""));
  EXPECT_TRUE(has(refusal_of("window_size", json::array()), "window_size"));
  EXPECT_TRUE(has(refusal_of("qk_layernorm", true), "self_attn.k_norm.weight is missing"));
  EXPECT_TRUE(has(refusal_of("add_qkv_bias", true), "self_attn.k_proj.bias is missing"));
}

TEST_F(MegatronFolder, SizesThatDoNotFitAreRefused) {
  use("llama");
  EXPECT_TRUE(has(refusal_of("num_layers", 4), "has other layers than the model's 4"));
  EXPECT_TRUE(has(refusal_of("num_layers", 0), "num_layers is \"0\""));
  EXPECT_TRUE(has(refusal_of("num_layers", std::int64_t{1} << 40), "must be a size"));
  EXPECT_TRUE(has(refusal_of("num_layers", 1 << 20), "no model is so large"));
  EXPECT_TRUE(has(refusal_of("num_layers", "three"), "must be a size"));
  EXPECT_TRUE(has(refusal_of("num_query_groups", 3), "do not divide"));
  EXPECT_TRUE(has(refusal_of("num_query_groups", 1), "query heads"));
  EXPECT_TRUE(has(refusal_of("kv_channels", 4), "query heads"));
  EXPECT_TRUE(has(refusal_of("vocab_size", 49), "fewer rows than the vocabulary of 49"));
  EXPECT_TRUE(has(refusal_of("swiglu", "yes"), "True or False"));
  EXPECT_TRUE(has(refusal_of("rotary_base", "x"), "must be a number"));
  use("gpt2");
  write_arguments(llama_arguments());
  EXPECT_TRUE(has(refusal(), "not a tensor of a model of Llama's build"));
}

TEST_F(MegatronFolder, TensorsThatTheModelHasNotAreRefused) {
  use("gpt2");
  write_all(iteration() / "config.json",
            R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "vocab_size": 44, "n_head": 4,
                "tie_word_embeddings": false})");
  EXPECT_TRUE(has(refusal(), "lm_head.weight is missing")) << refusal();
}

TEST_F(MegatronFolder, AnIterationThatDoesNotExistIsNamed) {
  use("llama");
  write_all(path() / "latest_checkpointed_iteration.txt", "70\n");
  EXPECT_STREQ(formats::recognise(path()).name, "megatron");
  EXPECT_TRUE(has(refusal(), "iter_0000070' does not exist")) << refusal();
  EXPECT_TRUE(has(refusal(), "latest_checkpointed_iteration.txt")) << refusal();
}

TEST_F(MegatronFolder, OtherFormsAreRefusedByName) {
  use("llama");
  write_all(iteration() / "metadata.json", R"({"sharded_backend": "zarr"})");
  EXPECT_TRUE(has(refusal(), "\"zarr\"")) << refusal();
  fs::remove_all(iteration());
  fs::create_directories(iteration() / "mp_rank_00");
  write_all(iteration() / "mp_rank_00/model_optim_rng.pt", "x");
  EXPECT_TRUE(has(refusal(), "--ckpt-convert-format torch_dist")) << refusal();
}

// A part of a chunk becomes a tensor; the checksum of the chunk is compared all the same.
TEST_F(MegatronFolder, AFlippedBitStopsTheConversion) {
  use("llama");
  const std::string values =
      tensors_of(*open()).at("model/model.layers.1.self_attn.v_proj.weight").bytes;
  const std::string last = values.substr(values.size() - 16);
  int damaged = 0;
  for (const auto& entry : fs::directory_iterator(iteration())) {
    std::string bytes = read_all(entry.path());
    const std::size_t at = bytes.find(last);
    if (at == std::string::npos) continue;
    bytes[at + 5] ^= 4;
    write_all(entry.path(), bytes);
    ++damaged;
  }
  ASSERT_EQ(damaged, 1);
  const std::string text =
      error_of([&] { (void)convert(path(), work_.path() / "out", {.to = "hf"}); });
  EXPECT_TRUE(has(text, "is damaged: the checksum of")) << text;
  EXPECT_FALSE(fs::exists(work_.path() / "out"));
}

TEST_F(MegatronFolder, TruncatedAndMissingFilesAreRefused) {
  use("gpt2");
  for (const auto& entry : fs::directory_iterator(iteration())) {
    if (entry.path().extension() == ".json") continue;
    const std::string whole = read_all(entry.path());
    for (const std::size_t keep : {std::size_t{0}, whole.size() / 3, whole.size() - 1}) {
      write_all(entry.path(), whole.substr(0, keep));
      EXPECT_FALSE(refusal().empty()) << entry.path() << " " << keep;
    }
    fs::remove(entry.path());
    EXPECT_FALSE(refusal().empty()) << entry.path();
    write_all(entry.path(), whole);
  }
  EXPECT_NO_THROW((void)open());
}

}  // namespace
}  // namespace tessera::checkpoint
