// Finds, checks, shards and loads a teacher.
#include "training/teacher.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/sharded_state.h"
#include "engine/autograd.h"
#include "engine/data/corpus.h"
#include "engine/nn/lora.h"
#include "models/config/config_file.h"
#include "models/load/adapter.h"
#include "models/load/quantized.h"
#include "models/load/weights.h"
#include "models/registry/registry.h"
#include "models/weights_bound.h"
#include "tokenizers/load.h"
#include "training/make_task.h"
#include "training/pretrained_folder.h"
#include "training/recipe/schema.h"
#include "training/sharding_options.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
constexpr const char* teacher_key = "train.teacher";

// Equal fingerprints are equal tokenizers. Files of one tokenizer may differ in other things, so
// the rest is decided by all tokens' texts and by the ids of a text. A token is written twice: a
// space that begins a word is lost at the beginning of a text. The text has special tokens around
// it, and characters that a vocabulary may lack.
bool same_tokens(const Tokenizer& one, const Tokenizer& other) {
  if (one.fingerprint() != 0 && one.fingerprint() == other.fingerprint()) return true;
  if (one.vocabulary_size() != other.vocabulary_size() ||
      one.end_of_text() != other.end_of_text() || one.padding_id() != other.padding_id()) {
    return false;
  }
  for (std::int64_t id = 0; id < one.vocabulary_size(); ++id) {
    const auto token = static_cast<std::int32_t>(id);
    const std::int32_t twice[] = {token, token};
    if (one.decode(twice) != other.decode(twice)) return false;
  }
  constexpr const char* text = "The teacher's 3 ids, \u00e9\u4e2d\U0001f642\n\x01";
  return one.encode_sequence(text, 0) == other.encode_sequence(text, 0);
}

}  // namespace

FrozenModel::FrozenModel(const Recipe& recipe, const Context& context, const Place& place,
                         const Make& make) {
  at_key(recipe, place.key, [&] {
    folder_ = model_folder(place.folder, place.key, context);
    if (checkpoint::is_peft_folder(folder_)) {
      adapter_ = folder_;
      folder_ = model_folder(models::find_weights(adapter_).base, place.key, context);
    }
    models::check_weights_bound(folder_, models::read_config(folder_));
    const std::optional<DType> of_compute =
        frozen_sharding_options(recipe, context, {}).param_dtype;
    {
      const DeviceGuard deferred(Device::meta());
      const nn::ParameterDTypeGuard of_weights(of_compute.value_or(float32));
      model_ = make(folder_);
      if (!adapter_.empty()) models::add_lora_of(adapter_, *model_);
    }
    freeze(*model_);
    model_->eval();
    sharded_.emplace(*model_, context,
                     frozen_sharding_options(recipe, context, model_->layer_class()));
    if (!context.device().is_planned()) load(context);
  });
}

void FrozenModel::load(const Context& context) {
  const checkpoint::State whole =
      checkpoint::state_of(*sharded_, nullptr, checkpoint::Direction::load);
  models::load_weights(folder_, context.communicator(), *model_,
                       models::tensors_under(adapter_, *model_, whole.model));
  if (!adapter_.empty()) models::load_lora(adapter_, *model_, whole.model);
}

std::unique_ptr<models::Model> make_frozen_language_model(const std::string& folder) {
  return models::make_language_model(models::read_config(folder),
                                     (fs::path(folder) / "config.json").string());
}

void require_same_ids(const Recipe& recipe, const std::string& key, const FrozenModel& frozen,
                      const models::Model& trained) {
  const std::string& folder = frozen.folder();
  const auto check = [&](bool holds, const std::string& text) {
    TESSERA_CHECK(holds, ErrorCode::configuration, "{}: {}: {}", where(recipe, key), key, text);
  };
  const std::string name = key == teacher_key ? "a teacher's ids" : "its ids";
  const std::string others = key == teacher_key ? "its student" : "the trained model";
  check(frozen.model().vocabulary() == trained.vocabulary(),
        fmt::format("{} has a vocabulary of {}, and the trained model one of {}; {} are those of "
                    "{}",
                    folder, frozen.model().vocabulary(), trained.vocabulary(), name, others));
  check(frozen.model().positions() >= recipe.model.seq_len,
        fmt::format("{} has {} positions, less than model.seq_len {}", folder,
                    frozen.model().positions(), recipe.model.seq_len));
  if (!tokenizers::is_tokenizer_folder(folder)) return;
  const std::string own = tokenizer_name(recipe);
  const auto its = tokenizers::load_tokenizer(folder);
  check(same_tokens(*its, *tokenizers::load_tokenizer(own)),
        fmt::format("the tokenizer of {} is not data.tokenizer {}; {} are those of {}", folder, own,
                    name, others));
}

LanguageTeacher::LanguageTeacher(const Recipe& recipe, const Context& context)
    : frozen_(recipe, context, {*recipe.train.teacher, teacher_key}, make_frozen_language_model) {}

void LanguageTeacher::require_fit(const Recipe& recipe, const models::Model& student) const {
  TESSERA_CHECK(!student.config().value("output_router_logits", false), ErrorCode::configuration,
                "{}: {}: excludes output_router_logits of the trained model's config.json, whose "
                "loss the loss of a teacher does not contain",
                where(recipe, teacher_key), teacher_key);
  require_same_ids(recipe, teacher_key, frozen_, student);
}

Tensor LanguageTeacher::logits(const Tensor& ids, const models::Documents& documents) {
  const NoGradGuard no_grad;
  return dynamic_cast<models::LanguageModel&>(frozen_.model()).packed_logits(ids, documents);
}

EncoderTeacher::EncoderTeacher(const Recipe& recipe, const Context& context)
    : frozen_(recipe, context, {*recipe.train.teacher, teacher_key},
              [](const std::string& folder) { return models::make_sentence_encoder(folder); }) {
  const std::string& folder = frozen_.folder();
  const std::string name =
      tokenizers::is_tokenizer_folder(folder) ? folder : tokenizer_name(recipe);
  tokens_ = {tokenizers::load_tokenizer(name), encoder().max_seq_length(),
             encoder().do_lower_case(),
             recipe.train.teacher_states.empty() ? encoder().prompt() : std::string()};
  at_key(recipe, teacher_key, [&] { encoder().check_prompt(tokens_.prompt); });
  if (context.device().is_planned()) return;
  check_vocabulary(fmt::format("{}: {}", where(recipe, teacher_key), teacher_key),
                   std::string(tokens_.tokenizer->name()), tokens_.tokenizer->vocabulary_size(),
                   encoder().vocabulary(), true);
}

void EncoderTeacher::require_fit(const Recipe& recipe) const {
  if (recipe.train.teacher_states.empty()) return;
  const std::string own = tokenizer_name(recipe);
  TESSERA_CHECK(same_tokens(*tokens_.tokenizer, *tokenizers::load_tokenizer(own)),
                ErrorCode::configuration,
                "{}: {}: the tokenizer of {} is not data.tokenizer {}; train.teacher_states "
                "compares the outputs for the same tokens",
                where(recipe, teacher_key), teacher_key, frozen_.folder(), own);
}

const models::SentenceEncoder& EncoderTeacher::encoder() const {
  return dynamic_cast<const models::SentenceEncoder&>(frozen_.model());
}

Tensor EncoderTeacher::embeddings(const models::TokenBatch& tokens) {
  const NoGradGuard no_grad;
  return encoder().embeddings(tokens);
}

}  // namespace tessera::training
