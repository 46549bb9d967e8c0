// The table of architectures.
#include "models/registry/registry.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "models/bert/bert.h"
#include "models/config/config_reader.h"
#include "models/config/config_table.h"
#include "models/distilbert/distilbert.h"
#include "models/gpt2/gpt2.h"
#include "models/llama/decoder_families_config.h"
#include "models/llama/llama.h"
#include "models/modernbert/modernbert.h"
#include "models/mpnet/mpnet.h"
#include "models/roberta/roberta.h"
#include "models/t5/t5.h"
#include "models/t5/t5_generation.h"

namespace tessera::models {
namespace {

#ifdef TESSERA_CONFIGURATIONS_ONLY
// The fuzz targets read only configurations, and do not link the models.
template <class Built, class Description>
constexpr decltype(Architecture::make) make_row = nullptr;
#else
template <class Built, class Description>
std::unique_ptr<Model> make_row(const nlohmann::json& config, const ConfigSource& source) {
  return std::make_unique<Built>(Description::parse(config, source));
}
#endif

// `Description` has the table of keys and parse().
template <class Built, class Description>
constexpr Architecture row(std::string_view model_type) {
  return {.model_type = model_type,
          .kind = std::is_base_of_v<LanguageModel, Built> ? ModelKind::language_model
                                                          : ModelKind::text_encoder,
          .keys = [] { return Description::table().keys(); },
          .complete =
              [](nlohmann::json& config, const ConfigSource& source) {
                Description::table().complete(ConfigReader(config, source), config);
              },
          .check = [](const nlohmann::json& config,
                      const ConfigSource& source) { (void)Description::parse(config, source); },
          .make = make_row<Built, Description>};
}

template <const DecoderFamily& (*Family)()>
constexpr Architecture decoder_row(std::string_view model_type) {
  return row<LlamaForCausalLM, DecoderConfig<Family>>(model_type);
}

template <const RobertaFamily& Family>
struct RobertaFamilyConfig {
  static RobertaConfig parse(const nlohmann::json& config, const ConfigSource& source) {
    return RobertaConfig::parse(Family, config, source);
  }
  static auto table() { return RobertaConfig::table(Family); }
};

template <const RobertaFamily& Family>
constexpr Architecture roberta_row() {
  return row<RobertaModel, RobertaFamilyConfig<Family>>(Family.model_type);
}

constexpr Architecture architecture_rows[] = {
    row<GPT2LMHeadModel, Gpt2Config>("gpt2"),
    decoder_row<LlamaConfig::llama_family>("llama"),
    decoder_row<mistral_family>("mistral"),
    decoder_row<qwen2_family>("qwen2"),
    decoder_row<qwen3_family>("qwen3"),
    decoder_row<olmo2_family>("olmo2"),
    decoder_row<smollm3_family>("smollm3"),
    decoder_row<phi3_family>("phi3"),
    decoder_row<gemma3_family>("gemma3_text"),
    decoder_row<mixtral_family>("mixtral"),
    decoder_row<qwen3_moe_family>("qwen3_moe"),
    decoder_row<gpt_oss_family>("gpt_oss"),
    row<BertModel, BertConfig>("bert"),
    row<MPNetModel, MPNetConfig>("mpnet"),
    roberta_row<roberta_family>(),
    roberta_row<xlm_roberta_family>(),
    roberta_row<camembert_family>(),
    row<DistilBertModel, DistilBertConfig>("distilbert"),
    row<ModernBertModel, ModernBertConfig>("modernbert"),
    row<T5Encoder, T5Config>("t5"),
};

// Models that only the C++ API has.
struct ImageModelHeader {
  std::string_view model_type, header;
};
constexpr ImageModelHeader image_models[] = {
    {"vit", "vit"}, {"clip", "clip"}, {"clip_text_model", "clip"}, {"clip_vision_model", "clip"}};

}  // namespace

std::span<const Architecture> architectures() {
  return architecture_rows;
}

std::string model_types(ModelKind kind) {
  std::vector<std::string_view> types;
  for (const Architecture& row : architecture_rows) {
    if (row.kind == kind) types.push_back(row.model_type);
  }
  return fmt::format("{}", fmt::join(types, ", "));
}

const Architecture& architecture_of(const nlohmann::json& config, const ConfigSource& source) {
  const ConfigReader reader(config, source);
  const std::string model_type = reader.text("model_type");
  std::vector<std::string_view> known;
  for (const Architecture& row : architecture_rows) {
    if (row.model_type == model_type) return row;
    known.push_back(row.model_type);
  }
  for (const ImageModelHeader& row : image_models) {
    reader.check_key(model_type != row.model_type, "model_type",
                     "\"{}\" is a model of images, which recipes and commands do not train; use it "
                     "in C++: <tessera/models/{}.h> (docs/cpp-api.md)",
                     model_type, row.header);
  }
  reader.check_key(false, "model_type", "\"{}\" is not supported; use one of {}", model_type,
                   fmt::join(known, ", "));
  misuse("a check that cannot hold did");
}

#ifndef TESSERA_CONFIGURATIONS_ONLY
namespace {

struct SequenceToSequenceRow {
  std::string_view model_type;
  std::unique_ptr<SequenceToSequence> (*make)(const nlohmann::json& config,
                                              const ConfigSource& source);
};

template <class Built, class Description>
std::unique_ptr<SequenceToSequence> make_both_stacks(const nlohmann::json& config,
                                                     const ConfigSource& source) {
  return std::make_unique<Built>(Description::parse(config, source));
}

constexpr SequenceToSequenceRow sequence_to_sequence_rows[] = {
    {"t5", make_both_stacks<T5ForConditionalGeneration, T5GenerationConfig>}};

// For a language model, an encoder's decoder does not help.
const char* way_out(std::string_view model_type, ModelKind wanted) {
  const bool has_decoder =
      std::any_of(std::begin(sequence_to_sequence_rows), std::end(sequence_to_sequence_rows),
                  [&](const SequenceToSequenceRow& row) { return row.model_type == model_type; });
  if (wanted != ModelKind::language_model || !has_decoder) return "";
  return " (with its decoder it writes texts from texts: make_sequence_to_sequence() in C++)";
}

const char* words_for(ModelKind kind) {
  return kind == ModelKind::language_model ? "a language model" : "an encoder of texts";
}

template <class Kind>
std::unique_ptr<Kind> make_kind(ModelKind kind, const nlohmann::json& config,
                                const ConfigSource& source) {
  const Architecture& architecture = architecture_of(config, source);
  ConfigReader(config, source)
      .check_key(architecture.kind == kind, "model_type", "\"{}\" is {}; {} is required here{}",
                 architecture.model_type, words_for(architecture.kind), words_for(kind),
                 way_out(architecture.model_type, kind));
  std::unique_ptr<Model> model = architecture.make(config, source);
  auto* wanted = dynamic_cast<Kind*>(model.get());
  TESSERA_REQUIRE(wanted != nullptr, "the registry's row {} is of another kind than its model",
                  architecture.model_type);
  (void)model.release();
  return std::unique_ptr<Kind>(wanted);
}

}  // namespace

std::unique_ptr<Model> make_model(const nlohmann::json& config, const ConfigSource& source) {
  return architecture_of(config, source).make(config, source);
}

std::unique_ptr<LanguageModel> make_language_model(const nlohmann::json& config,
                                                   const ConfigSource& source) {
  return make_kind<LanguageModel>(ModelKind::language_model, config, source);
}

std::unique_ptr<TextEncoder> make_text_encoder(const nlohmann::json& config,
                                               const ConfigSource& source) {
  return make_kind<TextEncoder>(ModelKind::text_encoder, config, source);
}

std::unique_ptr<SequenceToSequence> make_sequence_to_sequence(const nlohmann::json& config,
                                                              const ConfigSource& source) {
  const ConfigReader reader(config, source);
  const std::string model_type = reader.text("model_type");
  std::vector<std::string_view> known;
  for (const SequenceToSequenceRow& row : sequence_to_sequence_rows) {
    if (row.model_type == model_type) return row.make(config, source);
    known.push_back(row.model_type);
  }
  reader.check_key(false, "model_type", "\"{}\" has no encoder with a decoder here; use one of {}",
                   model_type, fmt::join(known, ", "));
  misuse("a check that cannot hold did");
}
#endif

}  // namespace tessera::models
