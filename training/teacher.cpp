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
#include "training/sharding_options.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
constexpr const char* teacher_key = "train.teacher";

DType storage_of(const Recipe& recipe) {
  switch (recipe.sharding.mixed_precision) {
    case MixedPrecision::bf16:
      return bfloat16;
    case MixedPrecision::fp16:
      return float16;
    case MixedPrecision::no:
      break;
  }
  return float32;
}

// Equal fingerprints are equal tokenizers. Files of one tokenizer may differ in other things, so
// the texts of all tokens decide about the rest.
bool same_tokens(const Tokenizer& one, const Tokenizer& other) {
  if (one.fingerprint() != 0 && one.fingerprint() == other.fingerprint()) return true;
  if (one.vocabulary_size() != other.vocabulary_size()) return false;
  for (std::int64_t id = 0; id < one.vocabulary_size(); ++id) {
    const std::int32_t ids[] = {static_cast<std::int32_t>(id)};
    if (one.decode(ids) != other.decode(ids)) return false;
  }
  return true;
}

// Adds the place of the key to an error.
template <class Work>
auto at_teacher(const Recipe& recipe, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("{}: {}: {}", where(recipe, teacher_key), teacher_key, error.what()));
  }
}

}  // namespace

ShardedTeacher::ShardedTeacher(const Recipe& recipe, const Context& context) {
  at_teacher(recipe, [&] {
    folder_ = model_folder(*recipe.train.teacher, teacher_key, context);
    if (checkpoint::is_peft_folder(folder_)) {
      adapter_ = folder_;
      folder_ = model_folder(models::find_weights(adapter_).base, teacher_key, context);
    }
    const nlohmann::json config = models::read_config(folder_);
    models::check_weights_bound(folder_, config);
    {
      const DeviceGuard deferred(Device::meta());
      const nn::ParameterDTypeGuard of_weights(storage_of(recipe));
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
