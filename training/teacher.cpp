// Finds, checks, shards and loads a teacher.
#include "training/teacher.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/sharded_state.h"
#include "engine/autograd.h"
#include "engine/nn/lora.h"
#include "models/config/config_file.h"
#include "models/load/adapter.h"
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

ShardedTeacher::ShardedTeacher(const Recipe& recipe, const Context& context) {
  at_key(recipe, teacher_key, [&] {
    folder_ = model_folder(*recipe.train.teacher, teacher_key, context);
    if (checkpoint::is_peft_folder(folder_)) {
      adapter_ = folder_;
      folder_ = model_folder(models::find_weights(adapter_).base, teacher_key, context);
    }
    const nlohmann::json config = models::read_config(folder_);
    models::check_weights_bound(folder_, config);
    const std::optional<DType> of_compute =
        frozen_sharding_options(recipe, context, {}).param_dtype;
    {
      const DeviceGuard deferred(Device::meta());
      const nn::ParameterDTypeGuard of_weights(of_compute.value_or(float32));
      model_ = models::make_language_model(config, (fs::path(folder_) / "config.json").string());
      if (!adapter_.empty()) models::add_lora_of(adapter_, *model_);
    }
    freeze(*model_);
    model_->eval();
    sharded_.emplace(*model_, context,
                     frozen_sharding_options(recipe, context, model_->layer_class()));
    if (!context.device().is_planned()) load(context);
  });
}

void ShardedTeacher::load(const Context& context) {
  checkpoint::State whole = checkpoint::state_of(*sharded_, nullptr, checkpoint::Direction::load);
  checkpoint::State state;
  state.model = models::base_tensors(whole.model);
  if (fs::exists(fs::path(folder_) / "manifest.json")) {
    checkpoint::load(context.communicator(), folder_, state, checkpoint::LoadParts::model_only);
  } else {
    const models::HuggingFaceNames names = model_->hugging_face_names();
    checkpoint::load_hugging_face(folder_, state.model, names.ignored, names.aliases);
  }
  if (!adapter_.empty()) models::load_lora(adapter_, *model_, whole.model);
}

void ShardedTeacher::require_fit(const Recipe& recipe, const models::Model& student) const {
  const auto check = [&](bool holds, const std::string& text) {
    TESSERA_CHECK(holds, ErrorCode::configuration, "{}: {}: {}", where(recipe, teacher_key),
                  teacher_key, text);
  };
  check(model_->vocabulary() == student.vocabulary(),
        fmt::format("{} has a vocabulary of {}, and the trained model one of {}; a teacher's ids "
                    "are those of its student",
                    folder_, model_->vocabulary(), student.vocabulary()));
  check(!student.config().value("output_router_logits", false),
        "excludes output_router_logits of the trained model's config.json, whose loss the loss of "
        "a teacher does not contain");
  check(model_->positions() >= recipe.model.seq_len,
        fmt::format("{} has {} positions, less than model.seq_len {}", folder_, model_->positions(),
                    recipe.model.seq_len));
  if (!tokenizers::is_tokenizer_folder(folder_)) return;
  const std::string own = tokenizer_name(recipe);
  const auto taught = tokenizers::load_tokenizer(folder_);
  check(same_tokens(*taught, *tokenizers::load_tokenizer(own)),
        fmt::format("the tokenizer of {} is not data.tokenizer {}; a teacher's ids are those of "
                    "its student",
                    folder_, own));
}

Tensor ShardedTeacher::logits(const Tensor& ids) {
  const NoGradGuard no_grad;
  return model_->forward(ids);
}

}  // namespace tessera::training
