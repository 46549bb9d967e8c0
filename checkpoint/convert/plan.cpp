// From what a source has to what a sink is given.
#include "checkpoint/convert/plan.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "checkpoint/file.h"
#include "checkpoint/json.h"
#include "checkpoint/scalars_json.h"
#include "kernels/base/error.h"

namespace tessera::checkpoint {

namespace {

using formats::Contents;
using formats::Part;
using formats::TensorInfo;

// Components that FSDP, activation checkpointing and torch.compile put between others.
constexpr std::array<std::string_view, 3> wrapper_components{
    "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod."};
// What a model's own names may begin with after one wrapper's "model.".
constexpr std::array<std::string_view, 4> model_beginnings{"model.", "lm_head.", "transformer.",
                                                           "module."};
constexpr const char* step_counts_key = "optimizer_step_counts";  // as ts::save has it
constexpr std::uint64_t config_limit = std::uint64_t{16} << 20;
constexpr std::int64_t compare_bytes = std::int64_t{1} << 20;

void remove_component(std::string& name, std::string_view component) {
  for (std::size_t at = name.find(component); at != std::string::npos;
       at = name.find(component, at)) {
    if (at == 0 || name[at - 1] == '.') {
      name.erase(at, component.size());
    } else {
      at += component.size();
    }
  }
}

// How many wrappers' prefixes all of the names have.
struct Prefixes {
  std::size_t characters = 0;
};

bool all_begin(const std::vector<std::string>& names, std::size_t at, std::string_view prefix) {
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.compare(at, prefix.size(), prefix) == 0;
  });
}

// "module." is DistributedDataParallel's. "model." may be the model's own (Llama's weights begin
// so): it goes only where the names below it show that another one follows.
Prefixes common_prefixes(const std::vector<std::string>& names) {
  Prefixes found;
  if (names.empty()) return found;
  for (;;) {
    if (all_begin(names, found.characters, "module.")) {
      found.characters += std::string_view("module.").size();
      continue;
    }
    constexpr std::string_view prefix = "model.";
    if (!all_begin(names, found.characters, prefix)) return found;
    const std::size_t below = found.characters + prefix.size();
    const bool wraps = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return std::any_of(model_beginnings.begin(), model_beginnings.end(),
                         [&](std::string_view beginning) {
                           return name.compare(below, beginning.size(), beginning) == 0;
                         });
    });
    if (!wraps) return found;
    found.characters = below;
  }
}

std::string without_components(std::string name) {
  for (const std::string_view component : wrapper_components) remove_component(name, component);
  return name;
}

class Names {
 public:
  explicit Names(const Contents& source) {
    std::vector<std::string> model;
    for (const TensorInfo& tensor : source.tensors) {
      if (tensor.part == Part::model) model.push_back(without_components(tensor.name));
    }
    if (model.empty()) {
      for (const TensorInfo& tensor : source.tensors) {
        model.push_back(without_components(tensor.name));
      }
    }
    characters_ = common_prefixes(model).characters;
    if (characters_ > 0) prefix_ = model.front().substr(0, characters_);
  }

  std::string operator()(const std::string& name) const {
    std::string clean = without_components(name);
    if (clean.starts_with(prefix_)) clean.erase(0, characters_);
    return clean;
  }

 private:
  std::size_t characters_ = 0;
  std::string prefix_;
};

nlohmann::json parse_config(const Contents& contents) {
  if (const auto text = contents.texts.find("config.json"); text != contents.texts.end()) {
    return parse_json(text->second, "config.json");
  }
  const auto file = contents.files.find("config.json");
  if (file == contents.files.end()) return {};
  return parse_json(read_file(file->second, config_limit), file->second.string());
}

bool ties_head(const nlohmann::json& config) {
  if (!config.is_object()) return false;
  const auto tied = config.find("tie_word_embeddings");
  if (tied != config.end() && tied->is_boolean()) return tied->get<bool>();
  const auto type = config.find("model_type");
  return type != config.end() && *type == "gpt2";  // whose default it is
}

// Bytes, not values: a tie is one memory.
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
  // dump() refuses what is not UTF-8.
  bool utf8 = true;
  try {
    static_cast<void>(nlohmann::json(tensor.name).dump());
  } catch (const nlohmann::json::exception&) {
    utf8 = false;
  }
  TESSERA_CHECK(utf8 && !tensor.name.empty() && tensor.name != "__metadata__" &&
                    tensor.name.find('\0') == std::string::npos,
                ErrorCode::checkpoint,
                "a tensor in {} is named '{}', which is no name that formats agree on",
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
    drop_tied_heads();
    convert_dtypes();
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
      plan_.contents.tensors.push_back(given_.tensors[i]);
      plan_.source_of.push_back(i);
    }
    if (left > 0 && !options_.weights_only) {
      note(fmt::format("{} tensors of optimizer state stay behind: {} holds weights alone", left,
                       target_.name));
    }
    TESSERA_CHECK(!plan_.contents.tensors.empty(), ErrorCode::checkpoint,
                  "there is no tensor to convert{}", left > 0 ? " but optimizer state" : "");
  }

  void rename() {
    const Names names(given_);
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
    nlohmann::json& scalars = json_of(plan_.contents.scalars);
    if (const auto counts = scalars.find(step_counts_key);
        counts != scalars.end() && counts->is_object()) {
      nlohmann::json clean = nlohmann::json::object();
      for (const auto& [name, count] : counts->items()) clean[names(name)] = count;
      *counts = std::move(clean);
    }
    if (renamed > 0) {
      note(fmt::format("{} names lost the prefixes of wrappers, {} the first", renamed, example));
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

  // A head that config.json ties to the token table is stored once; two that differ are not tied.
  void drop_tied_heads() {
    const auto head = find("lm_head.weight");
    auto table = find("wte.weight");
    if (!table) table = find("embed_tokens.weight");
    if (head && table && ties_head(parse_config(given_))) {
      const std::string head_name = plan_.contents.tensors[*head].name;
      const std::string table_name = plan_.contents.tensors[*table].name;
      TESSERA_CHECK(equal_tensors(source_, plan_.source_of[*head], plan_.source_of[*table]),
                    ErrorCode::checkpoint,
                    "config.json ties '{}' to '{}', and they differ; set tie_word_embeddings to "
                    "false in it, or remove the one that is not meant",
                    head_name, table_name);
      plan_.contents.aliases[head_name] = table_name;
      plan_.contents.tensors.erase(plan_.contents.tensors.begin() +
                                   static_cast<std::ptrdiff_t>(*head));
      plan_.source_of.erase(plan_.source_of.begin() + static_cast<std::ptrdiff_t>(*head));
      note(fmt::format("'{}' was compared with '{}' and is the same", head_name, table_name));
    }
    for (const auto& [alias, name] : plan_.contents.aliases) {
      note(fmt::format("'{}' is '{}' (tied), and stored once", alias, name));
    }
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
      note(fmt::format("{} tensors converted to {}", converted, name_of(*options_.dtype)));
    }
    nlohmann::json config = parse_config(given_);
    if (!config.is_object()) return;
    config[config.contains("dtype") ? "dtype" : "torch_dtype"] = name_of(*options_.dtype);
    plan_.contents.files.erase("config.json");
    plan_.contents.texts["config.json"] = config.dump(2) + '\n';
  }

  // What ts::load wants of every parameter; other programs keep one count for all.
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

  // That of the data in safetensors files, so that they are written front to back.
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
      plan_.bytes_written += bytes_of(tensors.back());
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

std::vector<std::string> without_wrappers(const std::vector<std::string>& names) {
  Contents contents;
  for (const std::string& name : names)
    contents.tensors.push_back({Part::model, name, nullptr, {}, {}});
  const Names map(contents);
  std::vector<std::string> clean;
  for (const std::string& name : names) clean.push_back(map(name));
  return clean;
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
