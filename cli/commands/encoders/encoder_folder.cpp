// Finds, builds, shards and loads a sentence encoder.
#include "cli/commands/encoders/encoder_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text/printable.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"
#include "checkpoint/load/int8.h"
#include "checkpoint/sharded_state.h"
#include "cli/commands/dtype_option.h"
#include "models/load/adapter.h"
#include "models/load/int8.h"
#include "models/load/load.h"
#include "models/load/quantized.h"
#include "models/load/weights.h"
#include "models/model_folder.h"
#include "models/registry/registry.h"
#include "models/weights_bound.h"
#include "tasks/sentence_losses.h"
#include "tokenizers/load.h"
#include "training/pretrained_folder.h"
#include "training/recipe/other_words.h"
#include "training/recipe/values.h"

namespace tessera::cli {

namespace fs = std::filesystem;

std::vector<checkpoint::LogicalTensor> whole_tensors(const nn::Module& module) {
  std::vector<checkpoint::LogicalTensor> tensors;
  for (const auto& parameter : module.named_parameters()) {
    const auto sizes = parameter.shape.sizes();
    tensors.push_back({parameter.name,
                       parameter.tensor.dtype(),
                       {sizes.begin(), sizes.end()},
                       {{0, parameter.tensor.elements(), parameter.tensor.raw_data(),
                         parameter.tensor.device()}}});
  }
  return tensors;
}

DType parse_compute_dtype(const std::string& name) {
  constexpr DType allowed[] = {DType::float32, DType::bfloat16, DType::float16};
  return parse_dtype_option(name, allowed);
}

Argument encoding_device_argument(std::string& device) {
  return {.name = "--device",
          .target = &device,
          .help = "The device; auto: a GPU if every rank has one",
          .type = "auto|cpu|cuda",
          .shows_default = true};
}

Argument encoding_dtype_argument(std::string& dtype) {
  return {.name = "--dtype",
          .target = &dtype,
          .help = "The dtype of computation",
          .type = "float32|bfloat16|float16",
          .shows_default = true};
}

Argument base_argument(std::string& base) {
  return {.name = "--base",
          .target = &base,
          .help = "The base model of an adapter, if it is not at the place in adapter_config.json",
          .type = "FOLDER"};
}

Strategy parse_strategy(const std::string& name) {
  std::vector<std::string> names;
  for (const StrategyRow& row : strategy_table) {
    names.emplace_back(row.name);
    if (training::lower_case(row.name) == training::lower_case(name)) return row.strategy;
  }
  fail(ErrorCode::usage, "--sharding-strategy {}: there are {}{}", name, fmt::join(names, ", "),
       training::strategy_meant(name, names));
}

namespace {

ShardingOptions sharding_of(const models::Model& model, const Context& context,
                            const EncoderChoices& choices) {
  ShardingOptions options;
  options.strategy = choices.strategy.value_or(Strategy::no_shard);
  options.wrap = WrapPolicy::transformer({model.layer_class()});
  options.group_size = context.world().local_size;
  if (choices.dtype != float32) options.param_dtype = choices.dtype;
  return options;
}

// True if linear layers stay 8-bit integers in memory. Strategies shard floating parameters.
bool stays_int8(const std::string& folder, const Context& context, const EncoderChoices& choices) {
  return context.device().type == DeviceType::cpu &&
         choices.strategy.value_or(Strategy::no_shard) == Strategy::no_shard &&
         !checkpoint::int8_weights(folder).empty();
}

// Gives a model on `meta` memory, with integers where the folder has them.
std::vector<checkpoint::LogicalTensor> make_int8(models::Model& model, const std::string& folder,
                                                 const Context& context,
                                                 const std::vector<std::string>& modules_to_save) {
  models::keep_int8_layers(model, folder, context.device(), modules_to_save);
  models::materialise(model, context.device());
  return whole_tensors(model);
}

// The head of SoftmaxLoss, as a training run saves it.
constexpr std::string_view head_weight = "classifier.weight";
constexpr std::string_view head_bias = "classifier.bias";

// The index of the model's tensor with that name, or the number of tensors if there is none.
std::size_t find_tensor(const std::vector<checkpoint::formats::TensorInfo>& tensors,
                        std::string_view name) {
  const auto it = std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
    return tensor.part == checkpoint::formats::Part::model && tensor.name == name;
  });
  return static_cast<std::size_t>(it - tensors.begin());
}

bool is_number(const checkpoint::formats::TensorInfo& tensor) {
  return tensor.stored->dtype && is_floating(*tensor.stored->dtype);
}

constexpr std::uint64_t config_limit = std::uint64_t{16} << 20;

// The places of a folder's parts. An adapter's folder may have its own tokenizer, as a step does;
// all other parts of the model are in the base.
struct ModelPlaces {
  std::string model, adapter, tokenizer;
};

ModelPlaces places_of(const fs::path& folder, const std::string& base, comm::Communicator& ranks) {
  const models::WeightFolders found = models::find_weights(folder.string(), base);
  if (found.adapter.empty()) return {found.base, {}, found.base};
  std::string model = training::find_model_folder(found.base, ranks).string();
  std::string tokenizer = tokenizers::is_tokenizer_folder(found.adapter) ? found.adapter : model;
  return {std::move(model), found.adapter, std::move(tokenizer)};
}

// Checked first, so that no parts of the other kind are reported as missing.
void require_kind(const std::string& folder, models::ModelKind kind) {
  const std::string source = (fs::path(folder) / "config.json").string();
  const nlohmann::json config =
      checkpoint::parse_json(checkpoint::read_file(source, config_limit), source);
  const models::Architecture& architecture = models::architecture_of(config, source);
  if (architecture.kind == kind) return;
  if (kind == models::ModelKind::text_encoder) {
    fail(ErrorCode::configuration,
         "{}: the model is a language model ({}), but this command needs an encoder of texts "
         "({}); use tessera generate or tessera evaluate --task perplexity",
         folder, architecture.model_type, models::model_types(kind));
  }
  fail(ErrorCode::configuration,
       "{}: the model is an encoder of texts ({}), but this task needs a language model; use "
       "tessera encode or another task of tessera evaluate",
       folder, architecture.model_type);
}

}  // namespace

LoadedEncoder::LoadedEncoder(const std::string& folder, const Context& context,
                             const EncoderChoices& choices)
    : path_(training::find_model_folder(folder, context.communicator())) {
  const ModelPlaces places = places_of(path_, choices.base, context.communicator());
  const std::string& path = places.model;
  require_kind(path, models::ModelKind::text_encoder);
  models::check_weights_bound(path, models::read_config(path));
  tokens_.tokenizer = tokenizers::load_tokenizer(places.tokenizer);
  LoraOptions of_adapter;
  const auto make = [&] {
    model_ = models::make_sentence_encoder(path);
    if (!places.adapter.empty()) of_adapter = models::add_lora_of(places.adapter, *model_);
  };
  std::vector<checkpoint::LogicalTensor> tensors;
  const bool int8 = stays_int8(path, context, choices);
  if (int8) {
    {
      const DeviceGuard deferred(Device::meta());
      const nn::ParameterDTypeGuard in(choices.dtype);
      make();
    }
    tensors = make_int8(*model_, path, context, of_adapter.modules_to_save);
  } else if (choices.strategy) {
    {
      const DeviceGuard deferred(Device::meta());  // each rank has its own shard only
      make();
    }
    sharded_.emplace(*model_, context, sharding_of(*model_, context, choices));
    tensors = checkpoint::state_of(*sharded_, nullptr, checkpoint::Direction::load).model;
  } else {
    const nn::ParameterDTypeGuard in(choices.dtype);
    make();
    tensors = whole_tensors(*model_);
  }
  models::load_weights(places.model, context.communicator(), *model_,
                       models::tensors_under(places.adapter, *model_, tensors));
  if (!places.adapter.empty()) models::load_lora(places.adapter, *model_, tensors);
  if (!sharded_) nn::keep_adapted_norms(*model_);
  if (choices.many_texts && !choices.strategy && !int8 && choices.dtype == float32 &&
      context.device().type == DeviceType::cpu) {
    nn::lay_in_first(*model_);
  }
  model_->eval();
  TESSERA_CHECK(tokens_.tokenizer->vocabulary_size() <= model_->vocabulary(),
                ErrorCode::configuration,
                "{}: the tokenizer has {} tokens and the model {}; they do not belong together",
                path, tokens_.tokenizer->vocabulary_size(), model_->vocabulary());
  tokens_.max_length = model_->max_seq_length();
  tokens_.lower_case = model_->do_lower_case();
  tokens_.prompt = choices.prompt.value_or(model_->prompt());
}

nn::Linear LoadedEncoder::load_head() const {
  const auto source = checkpoint::formats::recognise(path_).open(path_);
  const auto& stored = source->contents().tensors;
  const std::size_t weight = find_tensor(stored, head_weight);
  const std::size_t bias = find_tensor(stored, head_bias);
  TESSERA_CHECK(weight < stored.size() && bias < stored.size(), ErrorCode::checkpoint,
                "{}: no classifier in it: accuracy needs the head of a run that trained with "
                "loss: softmax",
                path_.string());
  const std::int64_t in = 3 * model_->dimension();
  const auto& shape = stored[weight].shape;
  TESSERA_CHECK(shape.size() == 2 && shape[1] == in && stored[bias].shape.size() == 1 &&
                    stored[bias].shape[0] == shape[0] && is_number(stored[weight]) &&
                    is_number(stored[bias]),
                ErrorCode::checkpoint,
                "{}: its classifier is not one of {} numbers, three embeddings side by side",
                path_.string(), in);
  nn::Linear head = tasks::make_softmax_head(model_->dimension(), shape[0]);
  const auto fill = [&](std::size_t tensor, Tensor parameter) {
    const DeviceGuard on_host(Device::cpu());
    Tensor read = Tensor::empty(parameter.shape(), *stored[tensor].stored->dtype);
    source->read(tensor, 0, read.elements(), read.data());
    parameter.copy_from(read);
  };
  fill(weight, head->weight());
  fill(bias, head->bias());
  return head;
}

tasks::Encode LoadedEncoder::encode() const {
  model_->check_prompt(tokens_.prompt);
  return [model = model_.get()](const models::TokenBatch& tokens) {
    return model->embeddings(tokens);
  };
}

tasks::Encode LoadedEncoder::encode_as_trained() const {
  return
      [model = model_.get()](const models::TokenBatch& tokens) { return model->forward(tokens); };
}

tasks::TextTokens LoadedEncoder::tokens_as_trained() const {
  tasks::TextTokens tokens = tokens_;
  tokens.prompt.clear();
  return tokens;
}

LoadedLanguageModel::LoadedLanguageModel(const std::string& folder, const Context& context,
                                         const EncoderChoices& choices) {
  const fs::path found = training::find_model_folder(folder, context.communicator());
  const ModelPlaces places = places_of(found, choices.base, context.communicator());
  const std::string& path = places.model;
  require_kind(path, models::ModelKind::language_model);
  const nlohmann::json config = models::read_config(path);
  models::check_weights_bound(path, config);
  const bool int8 = stays_int8(path, context, choices);
  {
    const DeviceGuard deferred(Device::meta());
    const nn::ParameterDTypeGuard in(int8 ? choices.dtype : float32);
    model_ = models::make_language_model(config, (fs::path(path) / "config.json").string());
    if (!places.adapter.empty()) {
      modules_to_save_ = models::add_lora_of(places.adapter, *model_).modules_to_save;
    }
  }
  const bool of_bytes = !tokenizers::is_tokenizer_folder(places.tokenizer) &&
                        model_->vocabulary() == ByteTokenizer().vocabulary_size();
  if (choices.with_tokenizer) {
    tokenizer_ = tokenizers::load_tokenizer(of_bytes ? "bytes" : places.tokenizer);
  }
  tokenizer_folder_ = places.tokenizer;
  checkpoint::State whole;
  if (int8) {
    whole.model = make_int8(*model_, path, context, modules_to_save_);
  } else {
    sharded_.emplace(*model_, context, sharding_of(*model_, context, choices));
    whole = checkpoint::state_of(*sharded_, nullptr, checkpoint::Direction::load);
  }
  models::load_weights(places.model, context.communicator(), *model_,
                       models::tensors_under(places.adapter, *model_, whole.model));
  if (!places.adapter.empty()) models::load_lora(places.adapter, *model_, whole.model);
  if (!sharded_) nn::keep_adapted_norms(*model_);
  model_->eval();
}

}  // namespace tessera::cli
