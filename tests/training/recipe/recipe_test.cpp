// The recipe: values, defaults, synonyms and all kinds of errors.
#include "training/recipe/recipe.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/error.h"
#include "training/recipe/other_words.h"
#include "training/recipe/schema.h"

namespace tessera::training {
namespace {

Recipe parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_recipe(text, "r.yaml", overrides);
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "(accepted)";
}

std::string refusal_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return refusal([&] { (void)parse(text, overrides); });
}

std::string invalid(const std::string& text, int world_size = 1) {
  return refusal([&] { validate(parse("data: {train: t.txt}\n" + text), world_size); });
}

std::filesystem::path source_folder() {
  const char* folder = std::getenv("TESSERA_SOURCE_DIR");
  return folder != nullptr ? folder : ".";
}

TEST(Recipe, TheDesignsExampleIsRead) {
  const Recipe r = parse(R"(
model:    {architecture: gpt2, n_layer: 6, n_head: 6, n_embd: 384, seq_len: 256}
data:     {train: corpus.txt, tokenizer: bytes, batch_size: 8}
train:    {steps: 200, lr: 3.0e-4, warmup_steps: 20, weight_decay: 0.1, max_grad_norm: 1.0, gradient_accumulation_steps: 1}
sharding: {sharding_strategy: FULL_SHARD, auto_wrap_policy: TRANSFORMER_BASED_WRAP, backward_prefetch: BACKWARD_PRE, mixed_precision: bf16}
checkpoint: {dir: out, every: 50, keep: 3, state_dict_type: SHARDED_STATE_DICT, resume: auto}
log:      {jsonl: out/metrics.jsonl}
)");
  EXPECT_EQ(r.model.config["n_layer"], 6);
  EXPECT_EQ(r.model.config["n_inner"], 4 * 384);
  EXPECT_EQ(r.model.config["n_positions"], 256);
  EXPECT_EQ(r.model.config["vocab_size"], 256);
  EXPECT_EQ(r.model.config["model_type"], "gpt2");
  EXPECT_EQ(r.data.train.at(0).files, std::vector<std::string>{"corpus.txt"});
  EXPECT_EQ(r.train.steps, 200);
  EXPECT_DOUBLE_EQ(r.train.lr, 3e-4);
  EXPECT_EQ(r.sharding.mixed_precision, MixedPrecision::bf16);
  EXPECT_EQ(r.checkpoint.state_dict_type, checkpoint::StateDictType::sharded);
  EXPECT_EQ(r.checkpoint.dir, "out");
  EXPECT_EQ(r.log.jsonl, "out/metrics.jsonl");
  EXPECT_EQ(where(r, "train.lr"), "r.yaml:4");
  EXPECT_EQ(where(r, "train.seed"), "r.yaml");
  validate(r, 4);
}

TEST(Recipe, PositionsAreThoseOfTheSequencesAndOfPadding) {
  const auto positions = [](const std::string& architecture) {
    return parse("model: {seq_len: 64, architecture: " + architecture + "}\ndata: {train: a.txt}\n")
        .model.config["max_position_embeddings"];
  };
  EXPECT_EQ(positions("bert"), 64);
  EXPECT_EQ(positions("distilbert"), 64);
  for (const char* const shifted : {"mpnet", "roberta", "xlm-roberta", "camembert"}) {
    EXPECT_EQ(positions(shifted), 66) << shifted;
  }
}

TEST(Recipe, AccelerateSpellingsAreAccepted) {
  const auto strategy = [](const std::string& value) {
    return parse("sharding: {fsdp_sharding_strategy: " + value + "}").sharding.sharding_strategy;
  };
  EXPECT_EQ(strategy("1"), ShardingStrategy::full_shard);
  EXPECT_EQ(strategy("2"), ShardingStrategy::shard_grad_op);
  EXPECT_EQ(strategy("3"), ShardingStrategy::no_shard);
  EXPECT_EQ(strategy("4"), ShardingStrategy::hybrid_shard);
  EXPECT_EQ(strategy("5"), ShardingStrategy::hybrid_shard_zero2);
  EXPECT_EQ(strategy("'shard_grad_op'"), ShardingStrategy::shard_grad_op);
  EXPECT_EQ(strategy("SHARD_OPTIMIZER"), ShardingStrategy::shard_optimizer);
  const Recipe r = parse(R"(
sharding:
  fsdp_auto_wrap_policy: SIZE_BASED_WRAP
  fsdp_backward_prefetch_policy: BACKWARD_POST
  fsdp_min_num_params: 1e5
  fsdp_offload_params: false
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_use_orig_params: true
  fsdp_forward_prefetch: yes
)");
  EXPECT_EQ(r.sharding.auto_wrap_policy, AutoWrapPolicy::size_based);
  EXPECT_EQ(r.sharding.backward_prefetch, BackwardPrefetch::post);
  EXPECT_EQ(r.sharding.min_num_params, 100'000);
  EXPECT_TRUE(r.sharding.forward_prefetch);
  EXPECT_EQ(r.checkpoint.state_dict_type, checkpoint::StateDictType::sharded);
  EXPECT_EQ(parse("sharding: {transformer_layer_cls_to_wrap: 'A, B'}")
                .sharding.transformer_layer_cls_to_wrap,
            (std::vector<std::string>{"A", "B"}));
  EXPECT_EQ(parse("sharding: {mixed_precision: NO}").sharding.mixed_precision, MixedPrecision::no);
}

TEST(Recipe, LlamaHasItsOwnKeys) {
  const Recipe r = parse(R"(
model:
  architecture: llama
  hidden_size: 64
  num_attention_heads: 4
  dropout: 0.25
  rope_scaling: {rope_type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 8192}
)");
  EXPECT_EQ(r.model.config["num_key_value_heads"], 4);
  EXPECT_EQ(r.model.config["head_dim"], 16);
  EXPECT_EQ(r.model.config["attention_dropout"], 0.25);
  EXPECT_EQ(r.model.config["rope_scaling"]["factor"], 8.0);
  EXPECT_FALSE(r.model.config.contains("n_layer"));
  EXPECT_EQ(
      refusal_of("model: {architecture: llama, n_layer: 2}"),
      "r.yaml:1: model.n_layer is a key of architecture gpt2, and model.architecture is llama; "
      "it is model.num_hidden_layers there");
  EXPECT_FALSE(parse("model: {architecture: llama, rope_scaling: null}")
                   .model.config.contains("rope_scaling"));
}

TEST(Recipe, PretrainedModelsKeepTheirShape) {
  const Recipe r = parse("model: {pretrained: folder, attn_pdrop: 0.2, dropout: 0.1}");
  EXPECT_EQ(r.model.pretrained, "folder");
  EXPECT_EQ(r.model.config, nlohmann::json({{"attn_pdrop", 0.2}}));
  EXPECT_EQ(refusal_of("model: {n_layer: 3, pretrained: folder}"),
            "r.yaml:1: model.n_layer cannot be set beside model.pretrained, because its "
            "config.json has it; leave one out");
}

// The values of the folder are not printed as the recipe's defaults, but the recipe's own values
// are.
TEST(Recipe, PrintsTheGivenKeysOfAPretrainedModel) {
  const auto model = [](const std::string& keys) {
    return to_json(
               parse("{model: {pretrained: folder" + keys + "}, train: {task: sentence_pairs}}"))
        .at("model");
  };
  for (const char* key : {"architecture", "dropout", "seq_len", "hidden_dropout_prob"}) {
    EXPECT_FALSE(model("").contains(key)) << key;
  }
  const nlohmann::json given = model(", dropout: 0, seq_len: 64, hidden_dropout_prob: 0.1");
  EXPECT_EQ(given.at("dropout"), 0.0);
  EXPECT_EQ(given.at("seq_len"), 64);
  EXPECT_EQ(given.at("hidden_dropout_prob"), 0.1);
  EXPECT_FALSE(given.contains("architecture"));
  EXPECT_TRUE(to_json(parse("model: {pretrained: folder}")).at("model").contains("seq_len"));
}

TEST(Recipe, SetOverrides) {
  const Recipe r =
      parse("train: {steps: 5}\nlog: {jsonl: a}\n",
            {"train.steps=7", "train.steps=9", "data.train=a: b#c", "train.betas=[0.8, 0.9]",
             "sharding.fsdp_sharding_strategy=NO_SHARD", "log.jsonl=null"});
  EXPECT_EQ(r.train.steps, 9);
  EXPECT_EQ(r.data.train.at(0).files, std::vector<std::string>{"a: b#c"});
  EXPECT_EQ(r.train.betas.value()[0], 0.8);
  EXPECT_EQ(r.sharding.sharding_strategy, ShardingStrategy::no_shard);
  EXPECT_FALSE(r.log.jsonl);
  EXPECT_EQ(
      parse("model: {architecture: gpt2}", {"model.architecture=llama"}).model.config["model_type"],
      "llama");
  EXPECT_EQ(refusal_of("train: {steps: 5}", {"train.step=7"}),
            "--set train.step=7: unknown key train.step; did you mean steps?");
  EXPECT_EQ(refusal_of("train: {steps: 5}", {"train.lr=x"}),
            "--set train.lr=x: train.lr must be a finite number, got x");
  EXPECT_EQ(
      refusal_of("train: {steps: 5}", {"train=x"}),
      "--set train=x: train is a group of keys; set them one by one, as in --set train.steps=100");
  EXPECT_THROW((void)parse("train: {steps: 5}", {"train.lr"}), Error);
  EXPECT_EQ(refusal_of("train: {steps: 5}", {"train.steps="}),
            "--set train.steps=: the value is empty; give one, or null to take train.steps back");
}

TEST(Recipe, UnknownKeysNameTheNearest) {
  EXPECT_EQ(refusal_of("model: {}\nsharding:\n  sharding_stratgy: FULL_SHARD\n"),
            "r.yaml:3: unknown key sharding.sharding_stratgy; did you mean sharding_strategy?");
  EXPECT_EQ(refusal_of("trian: {steps: 2}"), "r.yaml:1: unknown key trian; did you mean train?");
  EXPECT_EQ(refusal_of("model: {lr: 2}"), "r.yaml:1: unknown key model.lr; did you mean train.lr?");
  EXPECT_EQ(refusal_of("model: {rope_scaling: {fctor: 2}}"),
            "r.yaml:1: unknown key model.rope_scaling.fctor; did you mean factor?");
  EXPECT_EQ(refusal_of("zzzzzzzzz: 1"),
            "r.yaml:1: unknown key zzzzzzzzz; the sections are checkpoint, data, log, model, "
            "sharding, train");
}

TEST(Recipe, NamesOfOtherToolsAreAnswered) {
  EXPECT_EQ(refusal_of("train: {learning_rate: 1e-4}"),
            "r.yaml:1: unknown key train.learning_rate; it is train.lr here");
  EXPECT_EQ(refusal_of("learning_rate: 1e-4"),
            "r.yaml:1: unknown key learning_rate; it is train.lr here");
  EXPECT_EQ(
      refusal_of("train: {num_train_epochs: 3}"),
      "r.yaml:1: unknown key train.num_train_epochs; it is train.steps here: runs are counted "
      "in optimizer steps, not in epochs");
  EXPECT_EQ(refusal_of("train: {steps: 5}", {"train.Max-Steps=7"}),
            "--set train.Max-Steps=7: unknown key train.Max-Steps; it is train.steps here");
  EXPECT_EQ(refusal_of("training: {steps: 5}"), "r.yaml:1: unknown key training; it is train here");
  EXPECT_EQ(
      refusal_of("train: {steps: 5}", {"data.valid.file=x"}),
      "--set data.valid.file=x: unknown key data.valid.file; data.valid is set as a whole, as "
      "in --set 'data.valid={file: FILE}'");
  EXPECT_EQ(refusal_of("train: {steps: 5}", {"train.lr.max=x"}),
            "--set train.lr.max=x: unknown key train.lr.max; train.lr is a key with a value, not a "
            "group of keys");
  const auto strategy = [](const std::string& word) {
    const std::string text = refusal_of("sharding: {sharding_strategy: " + word + "}");
    return text.substr(text.find("got"));
  };
  EXPECT_EQ(strategy("ZERO3"), "got ZERO3; it is FULL_SHARD here");
  EXPECT_EQ(strategy("ZeRO-2"), "got ZeRO-2; it is SHARD_GRAD_OP here");
  EXPECT_EQ(strategy("zero_1"), "got zero_1; it is SHARD_OPTIMIZER here");
  EXPECT_EQ(strategy("ddp"), "got ddp; it is NO_SHARD here");
  EXPECT_EQ(
      refusal_of("sharding: {mixed_precision: bf16-mixed}"),
      "r.yaml:1: sharding.mixed_precision must be one of no | bf16 | fp16, got bf16-mixed; it "
      "is bf16 here");
}

// Each answer of the table is a key that exists, and each question is a name that is not a key.
TEST(Recipe, TheTableOfOtherNamesFitsTheKeys) {
  const auto key_of = [](std::string_view name) -> const RecipeKey* {
    for (const RecipeKey& key : recipe_keys()) {
      if (key.name == name) return &key;
    }
    return nullptr;
  };
  const auto is_section = [](std::string_view name) {
    return std::any_of(recipe_keys().begin(), recipe_keys().end(), [&](const RecipeKey& key) {
      return key.name.starts_with(std::string(name) + ".");
    });
  };
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const OtherWord& row : other_words()) {
    EXPECT_TRUE(seen.emplace(row.of, row.word).second) << row.word << " stands there twice";
    EXPECT_NE(other_word(row.of, row.word), nullptr) << row.word << " is not folded";
    EXPECT_FALSE(row.here.empty() && row.note.empty()) << row.word;
    if (row.of == "option") continue;
    if (row.of == "key") {
      EXPECT_TRUE(row.here.empty() || key_of(row.here) != nullptr || is_section(row.here))
          << row.word << ": " << row.here;
      EXPECT_NE(refusal_of("{" + std::string(row.word) + ": 1}").find(other_key(row.word)),
                std::string::npos)
          << row.word << " is a key here";
      continue;
    }
    const std::string name(row.of == "strategy" ? "sharding.sharding_strategy" : row.of);
    ASSERT_NE(key_of(name), nullptr) << name;
    if (row.here.empty()) continue;
    EXPECT_NE(key_of(name)->type.find(row.here), std::string::npos) << name << ": " << row.here;
    EXPECT_NE(refusal_of("data: {}", {name + "=" + std::string(row.word)}).find("it is"),
              std::string::npos)
        << name << ": " << row.word << " is taken";
  }
}

TEST(Recipe, WrongValuesAreNamed) {
  EXPECT_EQ(refusal_of("train:\n  steps: many\n"),
            "r.yaml:2: train.steps must be a whole number, got many");
  EXPECT_EQ(refusal_of("train: {steps: 1.5}"),
            "r.yaml:1: train.steps must be a whole number, got 1.5");
  EXPECT_EQ(refusal_of("train: {steps: '5'}"),
            "r.yaml:1: train.steps must be a whole number, got the text \"5\"");
  EXPECT_EQ(
      refusal_of("train: {steps: 99999999999999999999}"),
      "r.yaml:1: train.steps must be a whole number that fits 64 bits, got 99999999999999999999");
  EXPECT_EQ(refusal_of("train: {steps: -1}"), "r.yaml:1: train.steps must be at least 0, got -1");
  EXPECT_EQ(refusal_of("train: {steps: [1]}"),
            "r.yaml:1: train.steps must be a whole number, got a list");
  EXPECT_EQ(refusal_of("train: {steps: }"),
            "r.yaml:1: train.steps must be a whole number, got nothing");
  EXPECT_EQ(refusal_of("train: {lr: .nan}"),
            "r.yaml:1: train.lr must be a finite number, got .nan");
  EXPECT_EQ(refusal_of("train: {lr: 1e999}"),
            "r.yaml:1: train.lr must be a finite number, got 1e999");
  EXPECT_EQ(refusal_of("train: {lr: '1,5'}"),
            "r.yaml:1: train.lr must be a finite number, got the text \"1,5\"");
  EXPECT_EQ(refusal_of("train: {betas: [0.9]}"),
            "r.yaml:1: train.betas must be a list of two numbers, got a list");
  EXPECT_EQ(refusal_of("train: {betas: [0.9, 1]}"),
            "r.yaml:1: train.betas must be at least 0 and below 1, got 1");
  EXPECT_EQ(refusal_of("model: {dropout: 1}"),
            "r.yaml:1: model.dropout must be at least 0 and below 1, got 1");
  EXPECT_EQ(refusal_of("data: {batch_size: 0}"),
            "r.yaml:1: data.batch_size must be at least 1, got 0");
  EXPECT_EQ(refusal_of("data: {shuffle: maybe}"),
            "r.yaml:1: data.shuffle must be true or false, got maybe");
  EXPECT_EQ(refusal_of("train: {lr_schedule: cosin}"),
            "r.yaml:1: train.lr_schedule must be one of cosine | linear | constant | "
            "cosine_with_restarts | polynomial | wsd_linear | wsd_cosine | wsd_1_sqrt, got cosin");
  EXPECT_TRUE(refusal_of("train: {lr_schedule: wsd}")
                  .ends_with("; it is wsd_linear here: wsd_linear, wsd_cosine and wsd_1_sqrt are "
                             "its decays, and train.lr_decay_start is where they begin"));
  EXPECT_EQ(refusal_of("sharding: {sharding_strategy: 6}").substr(0, 50),
            "r.yaml:1: sharding.sharding_strategy must be one o");
  EXPECT_EQ(refusal_of("model: 3"), "r.yaml:1: model must be a group of keys, got 3");
}

TEST(Recipe, FeaturesThatDoNotExistAreRefusedByName) {
  for (const char* text : {"sharding: {mixed_precision: fp8}", "sharding: {reduce_wire: fp8_e5m2}",
                           "checkpoint: {state_dict_type: LOCAL_STATE_DICT}"}) {
    EXPECT_NE(refusal_of(text).find("is not available in this version"), std::string::npos)
        << refusal_of(text);
  }
}

TEST(Recipe, KeysWithoutEffectAreNoted) {
  const Recipe recipe = parse_recipe(
      "sharding:\n  use_orig_params: false\n  sync_module_states: true\n"
      "  cpu_ram_efficient_loading: false\n  limit_all_gathers: false\n",
      "r.yaml", {});
  EXPECT_EQ(recipe.notes, (std::vector<std::string>{
                              "r.yaml:2: sharding.use_orig_params: false has no effect: parameters "
                              "always keep their names and shapes",
                              "r.yaml:4: sharding.cpu_ram_efficient_loading: false has no effect: "
                              "a rank always reads only its shard",
                              "r.yaml:5: sharding.limit_all_gathers: false has no effect: at most "
                              "two gathers are in flight; a number sets another bound"}));
}

TEST(Recipe, BrokenYamlIsNamedByLine) {
  EXPECT_EQ(refusal_of("data: {train: x}\nmodel: [2\n").substr(0, 26),
            "r.yaml:3: not valid YAML: ");
  EXPECT_EQ(refusal_of("model:\n  n_layer: 2\n  n_layer: 3\n"),
            "r.yaml:3: key n_layer is given twice, first at r.yaml:2; keep one");
  EXPECT_EQ(refusal_of("model: {n_layer: 2}\nmodel: {n_layer: 2}\n"),
            "r.yaml:2: key model is given twice, first at r.yaml:1; keep one");
  EXPECT_EQ(refusal_of("sharding:\n  sharding_strategy: 1\n  fsdp_sharding_strategy: 2\n"),
            "r.yaml:3: sharding.sharding_strategy is given twice under two names, first at "
            "r.yaml:2; keep one");
  EXPECT_EQ(refusal_of("model:\n\tn_layer: 2\n"),
            "r.yaml:2: a tab in the indentation; YAML requires spaces");
  EXPECT_NE(refusal_of("a: &x 1\nb: *x\n").find("r.yaml:1: anchors"), std::string::npos);
  EXPECT_NE(refusal_of("a: !!python/object 1\n").find("r.yaml:1: tags"), std::string::npos);
  EXPECT_NE(refusal_of("").find("r.yaml: empty"), std::string::npos);
  EXPECT_NE(refusal_of("# only a comment\n").find("r.yaml: empty"), std::string::npos);
  EXPECT_NE(refusal_of("- a\n- b\n").find("r.yaml:1: must be groups of keys"), std::string::npos);
  EXPECT_NE(refusal_of("hello").find("got hello"), std::string::npos);
  EXPECT_NE(refusal_of("a: 1\nb: \xff\n").find("r.yaml:2: not UTF-8 (byte 0xff)"),
            std::string::npos);
  EXPECT_NE(refusal_of(std::string("a: \0 1", 6)).find("control character"), std::string::npos);
  EXPECT_NE(refusal_of("train: {steps: 1}\n---\ntrain: {steps: 2}\n").find("second document"),
            std::string::npos);
  EXPECT_NE(refusal_of("[a, b]: 1").find("a key must be a name"), std::string::npos);
  EXPECT_NE(refusal_of(std::string(std::size_t{2} << 20, '#')).find("bytes are more than"),
            std::string::npos);
  EXPECT_NE(refusal_of(std::string(100'000, '[')).find("nested deeper"), std::string::npos);
  std::string many = "a: [";
  for (int i = 0; i < 50'000; ++i) many += "1,";
  EXPECT_NE(refusal_of(many + "1]").find("more than 20000 values"), std::string::npos);
}

TEST(Recipe, AnyDamageIsARefusalOrARecipe) {
  std::ifstream stream(source_folder() / "examples/gpt2-bytes.yaml");
  std::stringstream content;
  content << stream.rdbuf();
  const std::string text = content.str();
  ASSERT_FALSE(text.empty());
  for (std::size_t length = 0; length < text.size(); length += 7) {
    (void)refusal_of(text.substr(0, length));
  }
  for (std::size_t i = 0; i < text.size(); i += 5) {
    for (const char c : {'{', ']', ':', '\'', '\n', '*', '\x80'}) {
      std::string changed = text;
      changed[i] = c;
      (void)refusal_of(changed);
    }
  }
}

TEST(Recipe, IncompatibleKeys) {
  EXPECT_EQ(invalid("train: {steps: 0}"), "(accepted)");
  EXPECT_EQ(refusal([] { validate(parse("train: {steps: 1}"), 1); }),
            "r.yaml: data.train is missing: the text file to train on");
  EXPECT_EQ(invalid("model: {n_embd: 250, n_head: 4}"),
            "r.yaml:2: model.n_embd = 250 is not a multiple of n_head = 4");
  EXPECT_EQ(invalid("model: {seq_len: 128, n_positions: 64}"),
            "r.yaml:2: model.seq_len 128 is more than the 64 of model.n_positions");
  EXPECT_EQ(invalid("model: {vocab_size: 100}"),
            "r.yaml:2: model.vocab_size 100 is less than the 256 tokens of data.tokenizer: bytes");
  EXPECT_EQ(
      invalid("model: {architecture: llama, num_attention_heads: 32, num_key_value_heads: 5}"),
      "r.yaml:2: model.num_key_value_heads = 5 does not divide num_attention_heads = 32");
  EXPECT_EQ(invalid("model: {architecture: llama, head_dim: 7}"),
            "r.yaml:2: model.head_dim = 7 is odd; rotary positions turn pairs");
  EXPECT_EQ(invalid("model: {architecture: llama, rope_scaling: {rope_type: llama3, factor: 8}}"),
            "r.yaml: model.rope_scaling.low_freq_factor is missing for rope_type llama3");
  EXPECT_EQ(invalid("sharding: {sharding_strategy: HYBRID_SHARD, group_size: 3}", 4),
            "r.yaml:2: sharding.group_size 3 does not divide the 4 ranks of the world; start a "
            "multiple of 3 ranks (tessera launch --nproc-per-node 6), or set a divisor of 4");
  EXPECT_EQ(invalid("sharding: {sharding_strategy: HYBRID_SHARD, group_size: 3}", 6), "(accepted)");
  EXPECT_EQ(invalid("sharding: {sharding_strategy: FULL_SHARD, group_size: 3}", 4), "(accepted)");
  EXPECT_EQ(
      invalid("sharding: {reduction_group: 3}", 4),
      "r.yaml:2: sharding.reduction_group 3 does not divide the 4 ranks of the world; start a "
      "multiple of 3 ranks (tessera launch --nproc-per-node 6), or set a divisor of 4");
  const std::string hybrid = "sharding: {sharding_strategy: HYBRID_SHARD, defer_replica_sums: true";
  EXPECT_EQ(invalid(hybrid + ", group_size: 2}", 4), "(accepted)");
  EXPECT_EQ(invalid("sharding: {defer_replica_sums: true}", 4),
            "r.yaml:2: sharding.defer_replica_sums is for HYBRID_SHARD and HYBRID_SHARD_ZERO2: "
            "FULL_SHARD has no sums between groups");
  EXPECT_EQ(invalid(hybrid + ", group_size: 1}", 4),
            "r.yaml:2: sharding.defer_replica_sums needs a sharding.group_size above 1; "
            "train.sync_each_batch: false defers all sums");
  EXPECT_EQ(invalid(hybrid + "}\ntrain: {sync_each_batch: false}", 4),
            "r.yaml:2: sharding.defer_replica_sums and train.sync_each_batch: false, which defers "
            "all sums, exclude each other; leave one of them out");
  EXPECT_EQ(invalid("sharding: {context_parallel: 2}\nmodel: {seq_len: 64}", 4), "(accepted)");
  EXPECT_EQ(
      invalid("sharding: {context_parallel: 3}", 4),
      "r.yaml:2: sharding.context_parallel 3 does not divide the 4 ranks of the world; start a "
      "multiple of 3 ranks (tessera launch --nproc-per-node 6), or set a divisor of 4");
  EXPECT_EQ(invalid("sharding: {context_parallel: 4}\nmodel: {seq_len: 66}", 4),
            "r.yaml:2: sharding.context_parallel 4 does not divide model.seq_len 66; each rank has "
            "an equal part of a sequence");
  EXPECT_EQ(
      refusal([&] {
        validate(parse("data: {train: t.txt, rank_weights: auto}\nsharding: {context_parallel: 2}"),
                 2);
      }),
      "r.yaml:2: sharding.context_parallel and data.rank_weights exclude each other; leave "
      "one of them out");
  EXPECT_EQ(
      refusal([&] { validate(parse("data: {train: t.txt, deal_by_cost: true}"), 2); }),
      "r.yaml:1: data.deal_by_cost is for train.task: sft without data.packing; other samples "
      "cost the same");
  // A run may end inside its warm-up.
  EXPECT_EQ(invalid("train: {steps: 10, warmup_steps: 20}"), "(accepted)");
  EXPECT_EQ(invalid("train: {min_lr: 1}"), "r.yaml:2: train.min_lr 1 is above train.lr 0.0003");
  const std::string wsd = "train: {steps: 9, warmup_steps: 2, lr_schedule: wsd_linear";
  EXPECT_EQ(invalid(wsd + ", lr_decay_start: 2}"), "(accepted)");
  EXPECT_EQ(invalid(wsd + "}"),
            "r.yaml:2: train.lr_schedule wsd_linear needs train.lr_decay_start, the step at which "
            "the decay begins");
  EXPECT_EQ(
      invalid(wsd + ", lr_decay_start: 1}"),
      "r.yaml:2: train.lr_decay_start 1 is before the end of the warm-up, train.warmup_steps 2");
  EXPECT_EQ(invalid(wsd + ", lr_decay_start: 9}"),
            "r.yaml:2: train.lr_decay_start 9 is not before the end of the decay, train.steps 9");
  EXPECT_EQ(invalid("train: {lr_decay_start: 1}"),
            "r.yaml:2: train.lr_decay_start belongs to train.lr_schedule: wsd_linear, wsd_cosine "
            "and wsd_1_sqrt");
  EXPECT_EQ(invalid("train: {lr_power: 2}"),
            "r.yaml:2: train.lr_power belongs to train.lr_schedule: polynomial");
  EXPECT_EQ(invalid("train: {lr_cycles: 2}"),
            "r.yaml:2: train.lr_cycles belongs to train.lr_schedule: cosine_with_restarts");
  EXPECT_EQ(invalid("train: {on_spike: skip, spike_sigma: 6, spike_window: 100}"), "(accepted)");
  EXPECT_EQ(invalid("train: {spike_window: 100}"),
            "r.yaml:2: train.spike_window needs train.spike_sigma");
  const std::string rollback = "train: {on_spike: rollback}";
  EXPECT_EQ(invalid(rollback),
            "r.yaml:2: train.on_spike rollback needs checkpoint.dir and checkpoint.every");
  EXPECT_EQ(invalid(rollback + "\ncheckpoint: {dir: out, every: 0}"),
            "r.yaml:2: train.on_spike rollback needs checkpoint.dir and checkpoint.every");
  EXPECT_EQ(invalid(rollback + "\ncheckpoint: {dir: out}"), "(accepted)");
  EXPECT_EQ(invalid("checkpoint: {every: 5}"),
            "r.yaml:2: checkpoint.every needs checkpoint.dir, the folder to save into");
  const std::string split = "data: {train: t, batch_size: 6, split_batches: true}";
  EXPECT_EQ(batch_size_per_rank(parse(split), 3), 2);
  EXPECT_EQ(refusal([&] { validate(parse(split), 4); }),
            "r.yaml:1: data.batch_size 6 cannot be split over 4 ranks (data.split_batches: true)");
}

TEST(Recipe, RecomputationIsReadAndChecked) {
  using A = ActivationCheckpointing;
  const auto chosen = [](const std::string& value) {
    return parse("sharding: {activation_checkpointing: " + value + "}")
        .sharding.activation_checkpointing;
  };
  EXPECT_EQ(parse("train: {steps: 1}").sharding.activation_checkpointing, A::none);
  EXPECT_EQ(chosen("false"), A::none);
  EXPECT_EQ(chosen("true"), A::full);
  EXPECT_EQ(chosen("selective"), A::selective);
  const Recipe recipe = parse(
      "data: {train: x}\nsharding: {fsdp_activation_checkpointing: true, "
      "activation_checkpointing_every: 2, "
      "fsdp_activation_checkpointing_cls: \"GPT2MLP,GPT2Attention\"}");
  EXPECT_EQ(recipe.sharding.activation_checkpointing_cls,
            (std::vector<std::string>{"GPT2MLP", "GPT2Attention"}));
  EXPECT_EQ(recipe.sharding.activation_checkpointing_every, 2);
  EXPECT_EQ(to_json(parse_recipe(to_json(recipe).dump(), "json", {})), to_json(recipe));

  EXPECT_EQ(refusal_of("sharding: {activation_checkpointing: maybe}"),
            "r.yaml:1: sharding.activation_checkpointing must be one of false | true | selective, "
            "got maybe");
  EXPECT_EQ(refusal_of("sharding: {activation_checkpointing_every: 0}"),
            "r.yaml:1: sharding.activation_checkpointing_every must be at least 1, got 0");
  EXPECT_EQ(invalid("sharding: {activation_checkpointing_cls: GPT2MLP}"),
            "r.yaml:2: sharding.activation_checkpointing_cls needs "
            "sharding.activation_checkpointing: true or selective");
  EXPECT_EQ(invalid("sharding: {activation_checkpointing_every: 2}"),
            "r.yaml:2: sharding.activation_checkpointing_every needs "
            "sharding.activation_checkpointing: true or selective");
  EXPECT_EQ(invalid("sharding: {activation_checkpointing: true, auto_wrap_policy: NO_WRAP}"),
            "r.yaml:2: sharding.activation_checkpointing works by units, but with "
            "auto_wrap_policy: NO_WRAP the only unit is the root; name classes in "
            "sharding.activation_checkpointing_cls");
  EXPECT_EQ(invalid("sharding: {activation_checkpointing: true, auto_wrap_policy: NO_WRAP, "
                    "activation_checkpointing_cls: [GPT2MLP]}"),
            "(accepted)");
}

TEST(Recipe, OffloadIsReadAndChecked) {
  const auto options = [](const std::string& keys) {
    return offload_options(parse("sharding: {" + keys + "}"));
  };
  EXPECT_EQ(options("forward_prefetch: true").parameters, Placement::device);
  const OffloadOptions all = options("fsdp_offload_params: true, offload: {optimizer: file}");
  EXPECT_EQ(all.parameters, Placement::host);
  EXPECT_EQ(all.gradients, Placement::host);
  EXPECT_EQ(all.optimizer, Placement::file);
  const auto refusal = [](const std::string& keys) {
    try {
      validate(parse("data: {train: t}\nsharding: {offload: {" + keys + "}}"), 2);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::configuration);
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(refusal("gradients: file, folder: f"), "none");
  EXPECT_EQ(refusal("gradients: file"),
            "r.yaml: sharding.offload.folder is missing: the folder, on a disk, for the state that "
            "sharding.offload places in a file");
  EXPECT_EQ(refusal("gradients: host, folder: f"),
            "r.yaml:2: sharding.offload.folder needs file as one of sharding.offload.parameters, "
            "gradients, optimizer");
  EXPECT_EQ(refusal("gradients: disk"),
            "r.yaml:2: sharding.offload.gradients must be one of device | host | file, got disk");
}

TEST(Recipe, JsonIsReadBack) {
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "examples")) {
    if (entry.path().extension() != ".yaml") continue;
    const Recipe recipe = load_recipe(entry.path(), {});
    const nlohmann::json first = to_json(recipe);
    const Recipe again = parse_recipe(first.dump(), "json", {});
    EXPECT_EQ(to_json(again), first) << entry.path();
    // A step's recipe.json is a recipe.
    EXPECT_EQ(refusal([&] { validate(again, 4); }), "(accepted)") << entry.path();
  }
}

TEST(Recipe, APathThatIsNotUtf8HasAText) {
  const Recipe recipe =
      parse_recipe("data: {train: text}\n", "r.yaml", {"data.train=missing\xff.txt"});
  EXPECT_NE(to_text(recipe).find("missing\uFFFD.txt"), std::string::npos) << to_text(recipe);
}

TEST(Recipe, EveryExampleFitsSomeWorld) {
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "examples")) {
    if (entry.path().extension() != ".yaml") continue;
    EXPECT_EQ(refusal([&] { validate(load_recipe(entry.path(), {}), 4); }), "(accepted)")
        << entry.path();
  }
}

TEST(Recipe, FilesThatCannotBeRead) {
  EXPECT_EQ(refusal([] { (void)load_recipe("/nonexistent/r.yaml", {}); }),
            "recipe /nonexistent/r.yaml does not exist");
  EXPECT_EQ(refusal([] { (void)load_recipe("/usr", {}); }),
            "recipe /usr is a folder; name the YAML file in it");
}

TEST(Recipe, TheReferenceListsEveryKeyOnce) {
  std::ifstream stream(source_folder() / "docs/recipe.md");
  std::stringstream content;
  content << stream.rdbuf();
  EXPECT_NE(content.str().find(recipe_reference()), std::string::npos)
      << "docs/recipe.md is older than the table of keys: replace its last section by what "
         "`tessera recipe --keys` prints";
}

}  // namespace
}  // namespace tessera::training
