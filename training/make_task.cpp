// From a recipe's keys to the options of a task.
#include "training/make_task.h"

#include <fmt/format.h>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/data/corpus.h"
#include "models/load/adapter.h"
#include "models/mixture_of_experts.h"
#include "models/registry/registry.h"
#include "models/sentence_encoder/sentence_encoder.h"
#include "tasks/instructions/dpo.h"
#include "tasks/instructions/sft.h"
#include "tasks/next_token.h"
#include "tasks/sentence_pairs.h"
#include "tokenizers/load.h"
#include "training/recipe/fine_tuning.h"
#include "training/recipe/schema.h"

namespace tessera::training {
namespace {

nlohmann::json read_folder_config(const std::filesystem::path& path) {
  std::ifstream stream(path);
  TESSERA_CHECK(stream.is_open(), ErrorCode::checkpoint,
                "{}: cannot be read; a model folder has a config.json", path.string());
  nlohmann::json json = nlohmann::json::parse(stream, nullptr, false);
  TESSERA_CHECK(json.is_object(), ErrorCode::checkpoint, "{}: not a JSON object", path.string());
  return json;
}

// The parts of a folder's model that a recipe may change: dropout rates.
nlohmann::json changes_of(const Recipe& recipe, const nlohmann::json& folder) {
  nlohmann::json changes = recipe.model.config;
  if (!recipe.given.contains("model.dropout")) return changes;
  const std::string source = *recipe.model.pretrained;
  for (const models::ConfigKey& key : models::architecture_of(folder, source).keys()) {
    const bool rate = key.role == models::ConfigKey::Role::dropout;
    if (rate && !changes.contains(key.name)) changes[key.name] = recipe.model.dropout;
  }
  return changes;
}

}  // namespace

nlohmann::json model_configuration(const Recipe& recipe) {
  if (recipe.model.pretrained) {
    TESSERA_CHECK(!checkpoint::is_peft_folder(*recipe.model.pretrained), ErrorCode::configuration,
                  "{}: model.pretrained {} has an adapter; name it in model.adapter, and in "
                  "model.pretrained the model that it is for",
                  where(recipe, "model.pretrained"), *recipe.model.pretrained);
    nlohmann::json folder =
        read_folder_config(std::filesystem::path(*recipe.model.pretrained) / "config.json");
    folder.update(changes_of(recipe, folder));
    return folder;
  }
  nlohmann::json config = recipe.model.config;
  config["model_type"] = recipe.model.architecture;
  return config;
}

std::string tokenizer_name(const Recipe& recipe) {
  if (recipe.data.tokenizer) return *recipe.data.tokenizer;
  const auto& folder = recipe.model.pretrained;
  return folder && tokenizers::is_tokenizer_folder(*folder) ? *folder : "bytes";
}

namespace {

void adapt(const Recipe& recipe, models::Model& model) {
  if (recipe.model.quantize_aware != WeightRounding::none) {
    // GGUF files keep the positions of GPT-2 in float32.
    at_key(recipe, "model.quantize_aware", [&] {
      TESSERA_CHECK(!models::has_experts(model), ErrorCode::configuration,
                    "the matrices of experts are not rounded, and GGUF files hold no experts");
      round_weights(model, recipe.model.quantize_aware, {"wpe"});
    });
  }
  if (!trains_adapters(recipe)) return;
  std::optional<DType> storage;
  if (recipe.sharding.mixed_precision == MixedPrecision::bf16) storage = bfloat16;
  if (const auto& folder = recipe.model.adapter) {
    at_key(recipe, "model.adapter",
           [&] { models::add_lora_of(*folder, model, storage, recipe.sharding.keep_fp32); });
  } else {
    const nn::LoraOptions options = lora_options(recipe);
    at_key(recipe, "model.lora.modules_to_save",
           [&] { models::check_modules_to_save(model, options); });
    at_key(recipe, "model.lora.target_modules",
           [&] { models::add_lora(model, options, storage, recipe.sharding.keep_fp32); });
  }
  const std::optional<QuantizedFormat> format = quantized_base(recipe);
  if (!format) return;
  at_key(recipe, "model.quantize_base", [&] {
    TESSERA_CHECK(!models::has_experts(model), ErrorCode::configuration,
                  "the matrices of experts are not quantised");
    quantize_frozen(model, *format);
  });
}

tasks::TextData text_data(const DataSetRecipe& set) {
  return {set.files, set.columns, set.format == tasks::TableFormat::jsonl};
}

tasks::SentenceData sentence_data(const DataSetRecipe& set, bool has_teacher) {
  tasks::SentenceData data;
  data.files = set.files;
  data.table = {.columns = set.columns, .format = set.format, .header = set.header};
  data.loss = set.loss;
  data.evaluator = set.evaluator;
  data.label_scale = set.label_scale.value_or(data.label_scale);
  data.labels = set.labels;
  data.classes = set.num_labels.value_or(static_cast<std::int64_t>(set.labels.size()));
  data.scale = set.scale.value_or(data.scale);
  data.has_teacher = has_teacher;
  return data;
}

// The encoder of a pretrained folder, or the encoder that the recipe describes, with mean pooling.
std::unique_ptr<models::SentenceEncoder> make_encoder(const Recipe& recipe,
                                                      const Tokenizer& tokenizer, bool planned) {
  if (!recipe.model.pretrained) {
    nlohmann::json config = model_configuration(recipe);
    if (!recipe.given.contains("model.vocab_size")) {
      config["vocab_size"] = tokenizer.vocabulary_size();
    }
    auto encoder = models::make_mean_pooling_encoder(config, recipe.source);
    adapt(recipe, *encoder);
    return encoder;
  }
  const std::filesystem::path folder = *recipe.model.pretrained;
  const nlohmann::json changes = changes_of(recipe, read_folder_config(folder / "config.json"));
  auto encoder = models::make_sentence_encoder(*recipe.model.pretrained, changes);
  // A step of an adapter has no weights of the model.
  if (!trains_adapters(recipe) && models::has_pooler(folder.string(), *encoder)) {
    encoder->keep_pooler();
  }
  if (!planned) {
    check_vocabulary(where(recipe, "data.tokenizer"), std::string(tokenizer.name()),
                     tokenizer.vocabulary_size(), encoder->vocabulary(), true);
  }
  adapt(recipe, *encoder);
  return encoder;
}

std::string place_of_states(const Recipe& recipe) {
  return where(recipe, "train.teacher_states") + ": train.teacher_states";
}

std::unique_ptr<tasks::ModelTask> sentence_pairs_task(
    const Recipe& recipe, bool planned, std::shared_ptr<tasks::SentenceTeacher> teacher) {
  tasks::SentencePairsOptions options;
  const bool taught = teacher != nullptr;
  options.teacher = std::move(teacher);
  for (const DataSetRecipe& set : recipe.data.train) {
    options.train.push_back(sentence_data(set, taught));
  }
  if (!recipe.data.valid.empty()) options.valid = sentence_data(recipe.data.valid.front(), taught);
  options.tokenizer = tokenizers::load_tokenizer(tokenizer_name(recipe));
  options.make_encoder = [&recipe, planned, &tokenizer = *options.tokenizer] {
    return make_encoder(recipe, tokenizer, planned);
  };
  if (recipe.given.contains("model.seq_len")) options.seq_len = recipe.model.seq_len;
  options.shuffle = recipe.data.shuffle;
  options.group_by_length = recipe.data.group_by_length;
  options.seed = recipe.train.seed;
  options.reads_data = !planned;
  options.source = recipe.source;
  options.train_place = where(recipe, "data.train");
  options.seq_len_place = where(recipe, "model.seq_len");
  options.teacher_place = where(recipe, "train.teacher");
  options.teacher_states = recipe.train.teacher_states;
  options.states_place = place_of_states(recipe);
  options.teacher_folder = recipe.train.teacher.value_or("");
  return tasks::make_sentence_pairs_task(options);
}

void set_options(const Recipe& recipe, bool planned, tasks::LanguageModelOptions& options) {
  options.reads_data = !planned;
  for (const DataSetRecipe& set : recipe.data.train) options.train.push_back(text_data(set));
  if (!recipe.data.valid.empty()) options.valid = text_data(recipe.data.valid.front());
  options.tokenizer = tokenizers::load_tokenizer(tokenizer_name(recipe));
  options.tokenizer_folder = tokenizer_name(recipe);
  options.seq_len = recipe.model.seq_len;
  options.shuffle = recipe.data.shuffle;
  options.seed = recipe.train.seed;
  options.eval_batches = recipe.train.eval_batches;
  options.model = model_configuration(recipe);
  options.pretrained = recipe.model.pretrained.has_value();
  options.takes_vocabulary = !options.pretrained && !recipe.given.contains("model.vocab_size");
  options.model_source = recipe.model.pretrained.value_or(recipe.source);
  options.adapt = [&recipe](models::Model& model) { adapt(recipe, model); };
  options.source = recipe.source;
  options.train_place = where(recipe, "data.train");
  options.valid_place = where(recipe, "data.valid");
  options.seq_len_place = where(recipe, "model.seq_len");
}

tasks::TeachingOptions teaching_options(const Recipe& recipe,
                                        std::shared_ptr<tasks::Teacher> teacher) {
  const tasks::DistillationOptions usual;
  return {std::move(teacher),
          {.temperature = recipe.train.distill_temperature.value_or(usual.temperature),
           .weight = recipe.train.distill_weight.value_or(usual.weight)},
          recipe.train.teacher_states,
          recipe.train.teacher.value_or(""),
          place_of_states(recipe)};
}

std::unique_ptr<tasks::ModelTask> next_token_task(const Recipe& recipe, bool planned,
                                                  std::shared_ptr<tasks::Teacher> teacher) {
  tasks::NextTokenOptions options;
  set_options(recipe, planned, options);
  options.tokenizer_is_given = recipe.data.tokenizer.has_value();
  options.teaching = teaching_options(recipe, std::move(teacher));
  options.seq_len_ramp = recipe.data.seq_len_ramp;
  return tasks::make_next_token_task(options);
}

std::unique_ptr<tasks::ModelTask> sft_task(const Recipe& recipe, bool planned,
                                           std::shared_ptr<tasks::Teacher> teacher) {
  tasks::SftOptions options;
  set_options(recipe, planned, options);
  options.packing = recipe.data.packing;
  options.loss_on = recipe.data.loss_on;
  options.teaching = teaching_options(recipe, std::move(teacher));
  return tasks::make_sft_task(options);
}

std::unique_ptr<tasks::ModelTask> dpo_task(const Recipe& recipe, bool planned,
                                           std::shared_ptr<tasks::Reference> reference) {
  tasks::DpoOptions options;
  set_options(recipe, planned, options);
  options.preference = preference_options(recipe);
  options.reference = std::move(reference);
  return tasks::make_dpo_task(options);
}

}  // namespace

checkpoint::ModelFiles tokenizer_files(const Recipe& recipe) {
  const std::string name = tokenizer_name(recipe);
  std::error_code error;
  if (!std::filesystem::is_directory(name, error)) return {};
  return checkpoint::read_model_files(name);
}

std::unique_ptr<tasks::ModelTask> make_task(const Recipe& recipe, bool planned,
                                            const Teachers& teachers) {
  switch (recipe.train.task) {
    case TaskKind::next_token:
      return next_token_task(recipe, planned, teachers.of_logits);
    case TaskKind::sft:
      return sft_task(recipe, planned, teachers.of_logits);
    case TaskKind::dpo:
      return dpo_task(recipe, planned, teachers.of_answers);
    case TaskKind::sentence_pairs:
      return sentence_pairs_task(recipe, planned, teachers.of_embeddings);
  }
  misuse("no code makes this task");
}

}  // namespace tessera::training
