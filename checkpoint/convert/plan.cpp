// Plans from the contents of a source what a sink receives.
#include "checkpoint/convert/plan.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/convert/names.h"
#include "checkpoint/formats/torch/state_names.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"
#include "checkpoint/state/scalars_json.h"

namespace tessera::checkpoint {

namespace {

using formats::Contents;
using formats::Part;
using formats::TensorInfo;

constexpr std::uint64_t config_limit = std::uint64_t{16} << 20;
constexpr std::int64_t compare_bytes = std::int64_t{1} << 20;

nlohmann::json parse_config(const Contents& contents) {
  const std::optional<std::string> text = model_config_text(contents);
  if (!text) return {};
  const bool made = contents.texts.contains("config.json");
  return parse_json(*text, made ? "config.json" : contents.files.at("config.json").string());
}

std::string model_type_of(const nlohmann::json& config) {
  const bool given =
      config.is_object() && config.contains("model_type") && config["model_type"].is_string();
  return given ? config["model_type"].get<std::string>() : std::string();
}

// The prefix of all names but the head's, in a whole model of this type; empty: not known.
std::string prefix_of(const std::string& model_type) {
  if (model_type == "gpt2") return "transformer.";
  for (const char* const decoder : {"llama", "mistral", "qwen2", "qwen3", "olmo2", "smollm3",
                                    "phi3", "mixtral", "qwen3_moe", "gpt_oss"}) {
    if (model_type == decoder) return "model.";
  }
  return "";
}

// Compares bytes, not values: tied tensors are the same memory.
bool equal_tensors(formats::Source& source, std::size_t a, std::size_t b) {
  const TensorInfo& first = source.contents().tensors[a];
  const TensorInfo& second = source.contents().tensors[b];
  if (first.stored != second.stored || first.shape != second.shape) return false;
  const std::size_t size = first.stored->bits / 8;
  const std::int64_t elements = element_count(first.shape, first.name);
  const std::int64_t block = compare_bytes / static_cast<std::int64_t>(size);
  std::vector<std::byte> left(static_cast<std::size_t>(compare_bytes));
  std::vector<std::byte> right(left.size());
  for (std::int64_t done = 0; done < elements; done += block) {
    const std::int64_t count = std::min(block, elements - done);
    source.read(a, done, count, left.data());
    source.read(b, done, count, right.data());
    if (std::memcmp(left.data(), right.data(), static_cast<std::size_t>(count) * size) != 0) {
      return false;
    }
  }
  return true;
}

void check_name(const TensorInfo& tensor) {
  // dump() throws on text that is not UTF-8.
  bool utf8 = true;
  try {
    static_cast<void>(nlohmann::json(tensor.name).dump());
  } catch (const nlohmann::json::exception&) {
    utf8 = false;
  }
  TESSERA_CHECK(utf8 && !tensor.name.empty() && tensor.name != "__metadata__" &&
                    tensor.name.find('\0') == std::string::npos,
                ErrorCode::checkpoint,
                "a tensor in {} is named '{}', which is not a valid name in every format",
                tensor.where, tensor.name);
}

class Planner {
 public:
  Planner(formats::Source& source, const formats::Format& target, const ConvertOptions& options,
          bool foreign)
      : source_(source),
        given_(source.contents()),
        target_(target),
        options_(options),
        foreign_(foreign) {}

  ConversionPlan run() {
    plan_.contents.scalars = given_.scalars;
    plan_.contents.files = given_.files;
    plan_.contents.texts = given_.texts;
    plan_.contents.notes = given_.notes;
    choose_tensors();
    rename();
    drop_tied_head();
    use_names_of_models();
    convert_dtypes();
    encode();
    if (options_.weights_only || target_.weights_alone) plan_.contents.scalars = Scalars();
    if (foreign_) add_step_counts();
    order();
    return std::move(plan_);
  }

 private:
  void note(std::string line) { plan_.contents.notes.push_back(std::move(line)); }

  void choose_tensors() {
    const bool weights_only = options_.weights_only || target_.weights_alone;
    std::size_t left = 0;
    for (std::size_t i = 0; i < given_.tensors.size(); ++i) {
      if (weights_only && given_.tensors[i].part != Part::model) {
        ++left;
        continue;
      }
      TESSERA_CHECK(given_.tensors[i].stored->bits % 8 == 0, ErrorCode::checkpoint,
                    "tensor '{}' is {}, whose elements are less than a byte; convert it to another "
                    "dtype with the program that wrote it",
                    given_.tensors[i].name, given_.tensors[i].stored->name);
      plan_.contents.tensors.push_back(given_.tensors[i]);
      plan_.source_of.push_back(i);
    }
    if (left > 0 && !options_.weights_only) {
      note(fmt::format("left behind: {} of optimizer state; {} holds weights alone",
                       counted(left, "tensor"), target_.name));
    }
    std::size_t state = left;
    for (const TensorInfo& tensor : plan_.contents.tensors) state += tensor.part != Part::model;
    TESSERA_CHECK(
        plan_.contents.tensors.size() + left > state, ErrorCode::checkpoint,
        "found no weights to convert{}",
        state > 0 ? fmt::format(", but {} of optimizer state; convert the model's checkpoint, or a "
                                "folder with both (pytorch_model.bin and optimizer.pt)",
                                counted(state, "tensor"))
                  : "");
    TESSERA_CHECK(weights_only || given_.unread_state.empty(), ErrorCode::checkpoint,
                  "{} would be lost: the state of an optimizer there is not read, because its "
                  "parameters have no names, because it is not the only optimizer, or because "
                  "it has another form than the weights; --weights-only leaves it out, and to keep "
                  "it save one optimizer with the model, with names: by get_state_dict of "
                  "torch.distributed.checkpoint.state_dict, by FSDP, or by Megatron's "
                  "--dist-ckpt-optim-fully-reshardable",
                  given_.unread_state);
  }

  void rename() {
    const WrapperNames names(given_);
    std::set<std::pair<Part, std::string>> taken;
    std::size_t renamed = 0;
    std::string example;
    for (TensorInfo& tensor : plan_.contents.tensors) {
      std::string clean = names(tensor.name);
      if (clean != tensor.name) {
        if (renamed++ == 0) example = fmt::format("'{}' to '{}'", tensor.name, clean);
      }
      TESSERA_CHECK(
          taken.insert({tensor.part, clean}).second, ErrorCode::checkpoint,
          "without the wrappers' prefixes two tensors are named '{}'; one of them is '{}'", clean,
          tensor.name);
      tensor.name = std::move(clean);
      check_name(tensor);
    }
    for (const auto& [alias, name] : given_.aliases) {
      plan_.contents.aliases[names(alias)] = names(name);
    }
    rename_scalars(names);
    if (renamed > 0) {
      note(fmt::format("{} names lost the prefixes of wrappers, {} the first", renamed, example));
    }
  }

  // Step counts and parameter groups have the names of parameters, too.
  template <class Rename>
  void rename_scalars(const Rename& rename) {
    nlohmann::json& scalars = json_of(plan_.contents.scalars);
    if (const auto counts = scalars.find(step_counts_key);
        counts != scalars.end() && counts->is_object()) {
      nlohmann::json clean = nlohmann::json::object();
      for (const auto& [name, count] : counts->items()) clean[rename(name)] = count;
      *counts = std::move(clean);
    }
    if (const auto numbers = scalars.find(numbers_key);
        numbers != scalars.end() && numbers->is_object()) {
      for (auto& [of_number, values] : numbers->items()) {
        nlohmann::json clean = nlohmann::json::object();
        for (const auto& [name, value] : values.items()) clean[rename(name)] = value;
        values = std::move(clean);
      }
    }
    const auto groups = scalars.find(formats::param_groups_key);
    if (groups == scalars.end() || !groups->is_array()) return;
    for (nlohmann::json& group : *groups) {
      const auto params = group.is_object() ? group.find("params") : group.end();
      if (params == group.end() || !params->is_array()) continue;
      for (nlohmann::json& name : *params) {
        if (name.is_string()) name = rename(name.get<std::string>());
      }
    }
  }

  [[nodiscard]] std::optional<std::size_t> find(std::string_view ending) const {
    for (std::size_t i = 0; i < plan_.contents.tensors.size(); ++i) {
      const TensorInfo& tensor = plan_.contents.tensors[i];
      if (tensor.part != Part::model) continue;
      const std::string_view name = tensor.name;
      if (name == ending ||
          (name.ends_with(ending) && name[name.size() - ending.size() - 1] == '.')) {
        return i;
      }
    }
    return std::nullopt;
  }

  // A tied head is stored once. Where config.json ties it, it must equal the table. Where
  // config.json does not state it, the head is tied if it equals the table: two tables that are
  // trained apart are never equal.
  void drop_tied_head() {
    const auto head = find("lm_head.weight");
    auto table = find("wte.weight");
    if (!table) table = find("embed_tokens.weight");
    const std::optional<bool> tied = ties_head(given_);
    if (head && table && tied.value_or(true)) {
      const std::string head_name = plan_.contents.tensors[*head].name;
      const std::string table_name = plan_.contents.tensors[*table].name;
      const bool same = equal_tensors(source_, plan_.source_of[*head], plan_.source_of[*table]);
      TESSERA_CHECK(same || !tied, ErrorCode::checkpoint,
                    "config.json ties '{}' to '{}', and they differ; set tie_word_embeddings to "
                    "false in it, or remove the one that is not meant",
                    head_name, table_name);
      if (same) {
        plan_.contents.aliases[head_name] = table_name;
        erase(*head);
        note(fmt::format("'{}' was compared with '{}' and is the same", head_name, table_name));
      }
    }
    if (tied.value_or(false) && !head && table) name_tied_head(*table);
    for (const auto& [alias, name] : plan_.contents.aliases) {
      note(fmt::format("'{}' is '{}' (tied), and stored once", alias, name));
    }
  }

  // A state dict of PyTorch has a tied head under its own name, too, and a program that loads one
  // asks for it.
  void name_tied_head(std::size_t table) {
    const std::string_view target = target_.name;
    const std::string& name = plan_.contents.tensors[table].name;
    const std::string prefix = prefix_of(model_type_of(parse_config(given_)));
    if ((target != "dcp" && target != "torch") || prefix.empty()) return;
    for (const char* const ending : {"wte.weight", "embed_tokens.weight"}) {
      const std::string whole = prefix + ending;
      if (!name.ends_with(whole)) continue;
      const std::string base = name.substr(0, name.size() - whole.size());
      if (base.empty() || base.ends_with('.')) {
        plan_.contents.aliases.emplace(base + "lm_head.weight", name);
      }
    }
  }

  void erase(std::size_t index) {
    const auto at = static_cast<std::ptrdiff_t>(index);
    plan_.contents.tensors.erase(plan_.contents.tensors.begin() + at);
    plan_.source_of.erase(plan_.source_of.begin() + at);
  }

  // Models that were saved without their head have no prefix, and some were saved with masks and
  // tables that are computed. Tessera's own folders use the names of its models.
  void use_names_of_models() {
    if (target_.name != std::string_view("full") && target_.name != std::string_view("sharded") &&
        target_.encodings == nullptr) {
      return;
    }
    const std::string type = model_type_of(parse_config(given_));
    const std::string prefix = prefix_of(type);
    if (prefix.empty()) return;
    std::size_t computed = 0;
    for (std::size_t i = plan_.contents.tensors.size(); i-- > 0;) {
      const std::string_view name = plan_.contents.tensors[i].name;
      if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
          name.ends_with("rotary_emb.inv_freq")) {
        erase(i);
        ++computed;
      }
    }
    if (computed > 0)
      note(fmt::format("left behind: {}, computed from others", counted(computed, "tensor")));
    const std::string table = type == "gpt2" ? "wte.weight" : "embed_tokens.weight";
    const auto found = find(table);
    if (!found || plan_.contents.tensors[*found].name != table) return;
    const auto whole = [&](const std::string& name) {
      return name.starts_with("lm_head.") ? name : prefix + name;
    };
    for (TensorInfo& tensor : plan_.contents.tensors) tensor.name = whole(tensor.name);
    rename_scalars(whole);
    std::map<std::string, std::string> aliases;
    for (const auto& [alias, name] : plan_.contents.aliases) aliases[alias] = prefix + name;
    plan_.contents.aliases = std::move(aliases);
    note(fmt::format("names got the prefix '{}' of the whole model", prefix));
  }

  void convert_dtypes() {
    if (!options_.dtype) return;
    std::size_t converted = 0;
    for (TensorInfo& tensor : plan_.contents.tensors) {
      const auto dtype = tensor.stored->dtype;
      if (tensor.part != Part::model || !dtype || !is_floating(*dtype)) continue;
      if (*dtype != *options_.dtype) ++converted;
      tensor.stored = &stored_dtype(*options_.dtype);
    }
    if (converted > 0) {
      note(fmt::format("{} converted to {}", counted(converted, "tensor"),
                       name_of(*options_.dtype)));
    }
    nlohmann::json config = parse_config(given_);
    if (!config.is_object()) return;
    config[config.contains("dtype") ? "dtype" : "torch_dtype"] = name_of(*options_.dtype);
    if (const auto file = given_.files.find("config.json"); file != given_.files.end()) {
      plan_.contents.text_modes["config.json"] = File::open_for_reading(file->second).mode();
    }
    plan_.contents.files.erase("config.json");
    plan_.contents.texts["config.json"] = config.dump(2) + '\n';
  }

  // Formats with types of their own choose the dtypes.
  void encode() {
    if (target_.encodings == nullptr) return;
    const formats::Encodings encodings = target_.encodings(plan_.contents, options_.type);
    plan_.type = encodings.type;
    for (std::size_t i = 0; i < plan_.contents.tensors.size(); ++i) {
      plan_.contents.tensors[i].stored = encodings.tensors[i].stored;
      plan_.bytes_written += encodings.tensors[i].bytes;
    }
  }

  // ts::load requires a step count for every parameter; other programs keep one for all.
  void add_step_counts() {
    const auto& tensors = plan_.contents.tensors;
    const bool trains = std::any_of(tensors.begin(), tensors.end(), [](const TensorInfo& tensor) {
      return tensor.part == Part::optimizer;
    });
    nlohmann::json& scalars = json_of(plan_.contents.scalars);
    if (!trains || scalars.contains(step_counts_key)) return;
    if (!scalars.contains("step")) {
      note("the source does not say at which step it was: training cannot go on from the result");
      return;
    }
    nlohmann::json counts = nlohmann::json::object();
    for (const TensorInfo& tensor : tensors) {
      if (tensor.part == Part::model) counts[tensor.name] = scalars["step"];
    }
    scalars[step_counts_key] = std::move(counts);
  }

  // Sorts by the order of the data in safetensors files, so that they are written front to back.
  void order() {
    std::vector<std::size_t> order(plan_.contents.tensors.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const TensorInfo& left = plan_.contents.tensors[a];
      const TensorInfo& right = plan_.contents.tensors[b];
      return std::tuple(left.part, right.stored, std::string_view(left.name)) <
             std::tuple(right.part, left.stored, std::string_view(right.name));
    });
    std::vector<TensorInfo> tensors;
    std::vector<std::size_t> source_of;
    for (const std::size_t i : order) {
      tensors.push_back(std::move(plan_.contents.tensors[i]));
      source_of.push_back(plan_.source_of[i]);
      plan_.bytes_read += bytes_of(given_.tensors[source_of.back()]);
      if (target_.encodings == nullptr) plan_.bytes_written += bytes_of(tensors.back());
    }
    plan_.contents.tensors = std::move(tensors);
    plan_.source_of = std::move(source_of);
  }

  formats::Source& source_;
  const Contents& given_;
  const formats::Format& target_;
  const ConvertOptions& options_;
  bool foreign_;
  ConversionPlan plan_;
};

}  // namespace

std::optional<bool> ties_head(const Contents& contents) {
  const nlohmann::json config = parse_config(contents);
  if (!config.is_object()) return std::nullopt;
  const auto tied = config.find("tie_word_embeddings");
  if (tied != config.end() && tied->is_boolean()) return tied->get<bool>();
  if (model_type_of(config) == "gpt2") return true;  // gpt2's default
  return std::nullopt;
}

std::optional<std::string> model_config_text(const Contents& contents) {
  if (const auto text = contents.texts.find("config.json"); text != contents.texts.end()) {
    return text->second;
  }
  const auto file = contents.files.find("config.json");
  if (file == contents.files.end()) return std::nullopt;
  const std::filesystem::path& path = file->second;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  return read_whole(open_member(folder, path.filename().string()), config_limit);
}

std::uint64_t bytes_of(const TensorInfo& tensor) {
  return static_cast<std::uint64_t>(element_count(tensor.shape, tensor.name)) *
         tensor.stored->bits / 8;
}

ConversionPlan plan_conversion(formats::Source& source, const formats::Format& target,
                               const ConvertOptions& options, bool foreign) {
  return Planner(source, target, options, foreign).run();
}

}  // namespace tessera::checkpoint
