// Makes both files from config.json, the recipe of a run, and the front matter of the source's
// card.
#include "checkpoint/convert/hub_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "base/counted.h"
#include "checkpoint/convert/plan.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"
#include "checkpoint/safetensors/safetensors.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using formats::Contents;
using nlohmann::json;

constexpr const char* generation_file = "generation_config.json";
constexpr const char* recipe_file = "recipe.json";
// A line of a written card. The number is that of the rest of the card: an edited one differs.
constexpr std::string_view card_mark = "<!-- Written by tessera convert: ";
constexpr std::string_view card_mark_end = " -->\n";
constexpr std::uint64_t small_text_limit = std::uint64_t{1} << 20;
// The keys of a model's configuration that transformers' GenerationConfig takes.
constexpr const char* generation_keys[] = {"bos_token_id", "eos_token_id", "pad_token_id",
                                           "decoder_start_token_id"};

// Empty: there is none, or it is too large or damaged; a card can do without it.
std::string small_text(const Contents& contents, const char* name) {
  if (const auto text = contents.texts.find(name); text != contents.texts.end()) {
    return text->second;
  }
  const auto file = contents.files.find(name);
  std::error_code error;
  if (file == contents.files.end() || fs::file_size(file->second, error) > small_text_limit) {
    return {};
  }
  return read_file(file->second, small_text_limit);
}

json object_of(const std::string& text) {
  json object = object_or_null(text);
  return object.is_null() ? json::object() : object;
}

// A value for YAML: JSON's text in double quotes is YAML as well.
std::string quoted_yaml(const std::string& text) {
  return json(text).dump(-1, ' ', true, json::error_handler_t::replace);
}

// Neither escapes nor syntax of YAML, but perhaps in quotes.
bool is_plain_value(std::string_view value) {
  const bool quoted = value.size() >= 2 && value.front() == value.back() &&
                      (value.front() == '"' || value.front() == '\'');
  if (quoted) value = value.substr(1, value.size() - 2);
  return std::all_of(value.begin(), value.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view(" ._:/-").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

// The lines of a card's front matter that say its licence, without a \r. Only plain values are
// taken over.
std::vector<std::string> licence_lines(const std::string& card) {
  std::vector<std::string> lines;
  if (!card.starts_with("---\n") && !card.starts_with("---\r\n")) return lines;
  const std::size_t end = card.find("\n---", 3);
  if (end == std::string::npos) return lines;
  for (std::size_t at = 4; at < end;) {
    const std::size_t stop = std::min(card.find('\n', at), end);
    std::string line = card.substr(at, stop - at);
    at = stop + 1;
    if (line.ends_with('\r')) line.pop_back();
    for (const std::string_view key : {"license: ", "license_name: ", "license_link: "}) {
      if (line.starts_with(key) && is_plain_value(std::string_view(line).substr(key.size()))) {
        lines.push_back(line);
      }
    }
  }
  return lines;
}

// "org/model" of a place in the Hub's cache or of a name on the Hub, otherwise the folder's name:
// the card does not publish paths of this machine.
std::string model_name_of(const std::string& place) {
  if (place.empty()) return {};
  fs::path path = fs::path(place).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  for (const fs::path& part : path) {
    const std::string name = part.string();
    const std::size_t middle = name.find("--", 8);
    if (name.starts_with("models--") && middle != std::string::npos) {
      return name.substr(8, middle - 8) + "/" + name.substr(middle + 2);
    }
  }
  std::error_code error;
  const auto parts = std::distance(path.begin(), path.end());
  const bool on_hub = path.is_relative() && parts == 2 && !fs::exists(path, error) &&
                      !path.begin()->string().starts_with('.');
  return on_hub ? path.string() : path.filename().string();
}

// Replaces absolute paths among the texts of a recipe by their names.
void hide_folders(json& value) {
  if (value.is_structured()) {
    for (json& inner : value) hide_folders(inner);
  } else if (value.is_string() && value.get_ref<const std::string&>().starts_with('/')) {
    value = model_name_of(value.get_ref<const std::string&>());
  }
}

class Card {
 public:
  Card(const Contents& contents, const CardSource& source)
      : contents_(contents),
        source_(source),
        config_(object_of(model_config_text(contents).value_or(""))),
        recipe_(object_of(small_text(contents, recipe_file))),
        printed_recipe_(recipe_) {
    hide_folders(printed_recipe_);
  }

  [[nodiscard]] std::string text(const std::string& former) const {
    std::string text = "---\n";
    const std::vector<std::string> licence = licence_lines(former);
    for (const std::string& line : licence) text += line + '\n';
    if (licence.empty()) text += "license: unknown\n";
    const std::string base = base_model();
    if (!base.empty()) text += fmt::format("base_model: {}\n", quoted_yaml(base));
    const bool sentences = has("modules.json");
    text += fmt::format("library_name: {}\n", sentences ? "sentence-transformers" : "transformers");
    if (generates()) text += "pipeline_tag: text-generation\n";
    text +=
        fmt::format("tags:\n- tessera\n- {}\n", quoted_yaml(text_member(config_, "model_type")));
    text += "---\n";
    const std::string rest = body();
    return fmt::format("{}{}{}{}{}", text, card_mark, to_hex(checksum(text + rest)), card_mark_end,
                       rest);
  }

  // A model that continues texts.
  [[nodiscard]] bool generates() const {
    const auto classes = config_.find("architectures");
    if (classes == config_.end() || !classes->is_array()) return false;
    return std::any_of(classes->begin(), classes->end(), [](const json& name) {
      const std::string text = name.is_string() ? name.get<std::string>() : "";
      return text.ends_with("ForCausalLM") || text.ends_with("LMHeadModel");
    });
  }

  [[nodiscard]] std::string generation_text() const {
    json settings{{"_from_model_config", true}};
    for (const char* const key : generation_keys) {
      const auto found = config_.find(key);
      if (found != config_.end() && !found->is_null()) settings[key] = *found;
    }
    return settings.dump(2) + '\n';
  }

 private:
  [[nodiscard]] bool has(const char* file) const {
    return contents_.files.contains(file) || contents_.texts.contains(file);
  }
  [[nodiscard]] bool was_trained() const { return !recipe_.empty(); }

  // The model that a run began with; of a conversion, its source. None: trained from nothing.
  [[nodiscard]] std::string base_model() const {
    if (was_trained() && !source_.changes_weights) {
      const auto model = recipe_.find("model");
      return model == recipe_.end() ? "" : model_name_of(text_member(*model, "pretrained"));
    }
    const std::string named = text_member(config_, "_name_or_path");
    return model_name_of(named.empty() ? source_.source.string() : named);
  }

  [[nodiscard]] std::string body() const {
    std::int64_t elements = 0;
    const bool quantised = config_.contains("quantization_config");
    for (const formats::TensorInfo& tensor : contents_.tensors) {
      if (quantised && tensor.name.ends_with(".weight_scale")) continue;
      elements += element_count(tensor.shape, tensor.name);
    }
    std::string text = fmt::format("\n# {}\n\n", source_.name);
    text += fmt::format("A model of type `{}` with {}, ", text_member(config_, "model_type"),
                        counted(elements, "parameter"));
    if (quantised) text += "those of linear layers as 8-bit integers, ";
    text += was_trained() && !source_.changes_weights
                ? "trained by Tessera with the recipe below.\n"
                : fmt::format("converted by Tessera ({}).\n", source_.format);
    if (was_trained() && !source_.changes_weights) {
      text += fmt::format("\n## Recipe\n\n```json\n{}\n```\n",
                          printed_recipe_.dump(2, ' ', false, json::error_handler_t::replace));
    }
    return text;
  }

  const Contents& contents_;
  const CardSource& source_;
  json config_, recipe_, printed_recipe_;
};

}  // namespace

void add_hub_files(Contents& contents, const CardSource& source) {
  const std::string former = small_text(contents, model_card_file);
  if (text_member(object_of(model_config_text(contents).value_or("")), "model_type").empty())
    return;
  const Card card(contents, source);
  if (card.generates() && !contents.files.contains(generation_file) &&
      !contents.texts.contains(generation_file)) {
    contents.texts[generation_file] = card.generation_text();
    contents.notes.emplace_back("generation_config.json is made from config.json");
  }
  const bool has_card =
      contents.files.contains(model_card_file) || contents.texts.contains(model_card_file);
  if (has_card && !source.changes_weights) return;
  contents.files.erase(model_card_file);
  const std::string text = card.text(former);
  contents.texts[model_card_file] = text;
  const bool unknown = text.find("\nlicense: unknown\n") != std::string::npos;
  contents.notes.push_back(fmt::format("{} is a model card{}", model_card_file,
                                       unknown ? "; its licence is unknown: write it there before "
                                                 "you publish the model"
                                               : ""));
}

bool is_written_card(const std::string& text) {
  const std::size_t begin = text.find(card_mark);
  if (begin == std::string::npos) return false;
  const std::size_t end = text.find(card_mark_end, begin);
  if (end == std::string::npos) return false;
  const std::string sum = text.substr(begin + card_mark.size(), end - begin - card_mark.size());
  return sum == to_hex(checksum(text.substr(0, begin) + text.substr(end + card_mark_end.size())));
}

}  // namespace tessera::checkpoint
