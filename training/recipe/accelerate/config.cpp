// Reads Accelerate's files: looks up every key in the table, which gives its meaning.
#include "training/recipe/accelerate/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/text/nearest.h"
#include "base/text/small_file.h"
#include "training/recipe/accelerate/keys.h"
#include "training/recipe/values.h"

namespace tessera::training {
namespace {

bool names(const AccelerateKey& key, const std::string& word) {
  return key.name == word ||
         std::find(key.aliases.begin(), key.aliases.end(), word) != key.aliases.end();
}

const AccelerateKey* find_key(const std::string& group, const std::string& word) {
  for (const AccelerateKey& key : accelerate_keys()) {
    if (key.group == group && names(key, word)) return &key;
  }
  return nullptr;
}

// The keys behind the first unknown one that are unknown as well.
std::string also_unknown(const std::string& group, const YamlNode& mapping, std::size_t first) {
  std::string list;
  const auto& groups = accelerate_groups();
  for (std::size_t i = first + 1; i < mapping.keys.size(); ++i) {
    const std::string& name = mapping.keys[i].text;
    const bool known = find_key(group, name) != nullptr ||
                       (group.empty() && std::ranges::find(groups, name) != groups.end());
    if (!known) list += fmt::format("{}{}", list.empty() ? "" : ", ", name);
  }
  return list.empty() ? "" : fmt::format(" (unknown too: {})", list);
}

[[noreturn]] void refuse_key(const std::string& group, const YamlNode& mapping, std::size_t at) {
  const YamlNode& key = mapping.keys[at];
  std::vector<std::string> siblings;
  for (const AccelerateKey& row : accelerate_keys()) {
    if (row.group == group) siblings.push_back(row.name);
  }
  if (group.empty()) {
    const auto& groups = accelerate_groups();
    siblings.insert(siblings.end(), groups.begin(), groups.end());
  }
  std::string way_out = did_you_mean(key.text, siblings);
  if (way_out.empty()) {
    for (const AccelerateKey& row : accelerate_keys()) {
      if (!names(row, key.text)) continue;
      way_out = fmt::format("; it belongs {}",
                            row.group.empty() ? "at the top of the file" : "into " + row.group);
    }
  }
  fail(ErrorCode::configuration, "{}: unknown key {}{}{}{}", key.where,
       group.empty() ? "" : group + ".", key.text,
       way_out.empty() ? "; docs/from-accelerate.md lists the keys" : way_out,
       also_unknown(group, mapping, at));
}

bool is_empty(const YamlNode& value) {
  return value.kind == YamlNode::Kind::null ||
         ((value.kind == YamlNode::Kind::mapping || value.kind == YamlNode::Kind::sequence) &&
          value.items.empty());
}

class FileReader {
 public:
  explicit FileReader(const std::string& source) { config_.source = source; }

  AccelerateConfig read(const YamlNode& root) {
    TESSERA_CHECK(root.kind == YamlNode::Kind::mapping, ErrorCode::configuration,
                  "{}: an Accelerate configuration is a group of keys (distributed_type, "
                  "num_processes, fsdp_config, ...), got {}",
                  config_.source, describe(root));
    refuse_other_kinds(root);
    collect("", root);
    TESSERA_CHECK(entry_of("distributed_type") != nullptr, ErrorCode::configuration,
                  "{}: distributed_type is missing; write distributed_type: FSDP, MULTI_CPU or "
                  "MULTI_GPU",
                  config_.source);
    // Keys that decide about other keys come first.
    for (const char* first :
         {"distributed_type", "mixed_precision", "fsdp_version", "fsdp_sharding_strategy"}) {
      if (const AccelerateEntry* entry = entry_of(first)) interpret(*entry);
    }
    for (const AccelerateEntry& entry : config_.given) interpret(entry);
    drop_classes_of_other_policies();
    assume_defaults();
    if (!unused_.empty()) {
      config_.notes.push_back(
          fmt::format("{}: no effect here: {}", config_.source, fmt::join(unused_, ", ")));
    }
    return std::move(config_);
  }

 private:
  // A file that is given by mistake.
  void refuse_other_kinds(const YamlNode& root) const {
    const auto has = [&](std::initializer_list<std::string_view> keys) {
      return std::any_of(root.keys.begin(), root.keys.end(), [&](const YamlNode& key) {
        return std::find(keys.begin(), keys.end(), key.text) != keys.end();
      });
    };
    TESSERA_CHECK(!has({"base_model"}) || !has({"datasets", "micro_batch_size", "sequence_len"}),
                  ErrorCode::configuration,
                  "{}: is a configuration of axolotl, and --config-file takes one of Accelerate; "
                  "its fsdp_config goes into such a file, the rest into a recipe",
                  config_.source);
    if (has({"distributed_type", "compute_environment", "fsdp_config"})) return;
    TESSERA_CHECK(!has({"data", "train", "sharding", "checkpoint"}), ErrorCode::configuration,
                  "{}: is a recipe, and --config-file takes a configuration of Accelerate; name it "
                  "without the option, as in tessera train {}",
                  config_.source, config_.source);
    TESSERA_CHECK(!has({"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu",
                        "gradient_clipping", "bf16", "fp16"}),
                  ErrorCode::configuration,
                  "{}: is a configuration of DeepSpeed, and --config-file takes one of Accelerate; "
                  "put its values into the recipe (ZeRO's stage 1 is SHARD_OPTIMIZER, 2 is "
                  "SHARD_GRAD_OP, 3 is FULL_SHARD)",
                  config_.source);
  }

  void collect(const std::string& group, const YamlNode& mapping) {
    std::map<std::string, std::string> places;
    for (std::size_t i = 0; i < mapping.keys.size(); ++i) {
      const YamlNode& key = mapping.keys[i];
      const YamlNode& value = mapping.items[i];
      const auto& groups = accelerate_groups();
      if (group.empty() && std::find(groups.begin(), groups.end(), key.text) != groups.end()) {
        if (is_empty(value)) continue;
        TESSERA_CHECK(value.kind == YamlNode::Kind::mapping, ErrorCode::configuration,
                      "{}: {} must be a group of keys, got {}", key.where, key.text,
                      describe(value));
        collect(key.text, value);
        continue;
      }
      const AccelerateKey* row = find_key(group, key.text);
      if (row == nullptr) refuse_key(group, mapping, i);
      const auto [earlier, inserted] = places.emplace(row->name, key.where);
      TESSERA_CHECK(inserted, ErrorCode::configuration,
                    "{}: {} is given twice under two names, first at {}; keep one", key.where,
                    row->name, earlier->second);
      YamlNode placed = value;
      placed.where = key.where;
      if (!is_empty(value) || row->elsewhere) {
        config_.given.push_back({row, key.text, key.where, std::move(placed)});
      }
    }
  }

  [[nodiscard]] const AccelerateEntry* entry_of(const std::string& name) const {
    for (const AccelerateEntry& entry : config_.given) {
      if (entry.key->name == name) return &entry;
    }
    return nullptr;
  }

  void interpret(const AccelerateEntry& entry) {
    if (!read_.insert(entry.key->name).second) return;
    const AccelerateKey& key = *entry.key;
    const bool ignored = !key.group.empty() && !config_.fsdp;
    if (key.elsewhere || ignored) {
      if (ignored && !key.elsewhere) {
        no_fsdp_.push_back(entry.written);
      } else {
        unused_.push_back(entry.written);
      }
      return;
    }
    if (entry.written != key.name) {
      config_.notes.push_back(fmt::format(
          "warning: {}: {} is another name for {}; accepted, but Accelerate itself may not read it",
          entry.where, entry.written, key.name));
    } else if (key.version != 0 && key.version != config_.version) {
      config_.notes.push_back(
          fmt::format("warning: {}: {} is a key of fsdp_version {}; accepted anyway", entry.where,
                      entry.written, key.version));
    }
    key.read(entry, config_);
  }

  // Accelerate ignores the classes under another policy.
  void drop_classes_of_other_policies() {
    const AccelerateEntry* policy = entry_of("fsdp_auto_wrap_policy");
    const AccelerateEntry* classes = entry_of("fsdp_transformer_layer_cls_to_wrap");
    if (policy == nullptr || classes == nullptr || !config_.fsdp ||
        lower_case(policy->value.text) == "transformer_based_wrap") {
      return;
    }
    std::erase_if(config_.settings, [](const OuterSetting& setting) {
      return setting.recipe_key == "sharding.transformer_layer_cls_to_wrap";
    });
    unused_.push_back(classes->written);
  }

  void assume(const std::string& recipe_key, const std::string& value, const std::string& why) {
    const auto same = [&](const OuterSetting& one) { return one.recipe_key == recipe_key; };
    if (std::any_of(config_.settings.begin(), config_.settings.end(), same)) return;
    YamlNode node;
    node.kind = YamlNode::Kind::scalar;
    node.text = value;
    node.where = config_.source;
    config_.settings.push_back({recipe_key, std::move(node), config_.source, why, true});
  }

  void assume_defaults() {
    if (!no_fsdp_.empty()) {
      config_.notes.push_back(
          fmt::format("warning: {}: no effect without distributed_type: FSDP: {}", config_.source,
                      fmt::join(no_fsdp_, ", ")));
    }
    if (!config_.fsdp) return;
    const std::string why = fmt::format("fsdp_version {}'s default", config_.version);
    assume("sharding.sharding_strategy", "FULL_SHARD", why);
    assume("checkpoint.state_dict_type",
           config_.version == 1 ? "FULL_STATE_DICT" : "SHARDED_STATE_DICT", why);
  }

  AccelerateConfig config_;
  std::set<std::string> read_;
  std::vector<std::string> unused_, no_fsdp_;
};

}  // namespace

AccelerateConfig parse_accelerate_config(std::string_view text, const std::string& source) {
  // JSON may be indented with tabs and has no tabs elsewhere.
  std::string plain(text);
  if (source.ends_with(".json")) std::replace(plain.begin(), plain.end(), '\t', ' ');
  return FileReader(source).read(parse_yaml(plain, source));
}

AccelerateConfig read_accelerate_config(const std::filesystem::path& path) {
  return parse_accelerate_config(read_small_file(path, "configuration"), path.string());
}

std::string chosen_config_file(const std::string& option) {
  if (!option.empty()) return option;
  const char* handed_on = std::getenv(config_file_variable);
  return handed_on == nullptr ? "" : handed_on;
}

Recipe load_recipe(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                   const std::string& config_file) {
  if (config_file.empty()) return load_recipe(path, overrides);
  const AccelerateConfig config = read_accelerate_config(config_file);
  return parse_recipe(read_small_file(path, "recipe"), path.string(), overrides, &config);
}

std::vector<std::string> configuration_notes(const Recipe& recipe, int world_size) {
  std::vector<std::string> notes = recipe.notes;
  if (recipe.configured_ranks && *recipe.configured_ranks != world_size) {
    notes.push_back(
        fmt::format("warning: the configuration file says num_processes: {}, and the world has {} "
                    "rank{}; tessera launch --config-file FILE starts that many ranks",
                    *recipe.configured_ranks, world_size, world_size == 1 ? "" : "s"));
  }
  return notes;
}

}  // namespace tessera::training
