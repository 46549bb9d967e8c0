// Finds the prefixes that wrappers add.
#include "checkpoint/convert/names.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"

namespace tessera::checkpoint {

namespace {

using formats::Part;
using formats::TensorInfo;

// Components that FSDP, activation checkpointing and torch.compile put between others.
constexpr std::array<std::string_view, 3> wrapper_components{
    "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod."};
// Beginnings of a model's own names behind a wrapper's "model.".
constexpr std::array<std::string_view, 4> model_beginnings{"model.", "lm_head.", "transformer.",
                                                           "module."};

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

bool all_begin(const std::vector<std::string>& names, std::size_t at, std::string_view prefix) {
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.compare(at, prefix.size(), prefix) == 0;
  });
}

// "module." comes from DistributedDataParallel. "model." may belong to the model (Llama's weights
// begin with it): it is removed only where the names below it show that it is a wrapper's. Returns
// the number of characters to remove.
std::size_t common_prefix(const std::vector<std::string>& names) {
  std::size_t characters = 0;
  if (names.empty()) return characters;
  for (;;) {
    if (all_begin(names, characters, "module.")) {
      characters += std::string_view("module.").size();
      continue;
    }
    constexpr std::string_view prefix = "model.";
    if (!all_begin(names, characters, prefix)) return characters;
    const std::size_t below = characters + prefix.size();
    const bool wraps = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return std::any_of(model_beginnings.begin(), model_beginnings.end(),
                         [&](std::string_view beginning) {
                           return name.compare(below, beginning.size(), beginning) == 0;
                         });
    });
    if (!wraps) return characters;
    characters = below;
  }
}

std::string without_components(std::string name) {
  for (const std::string_view component : wrapper_components) remove_component(name, component);
  return name;
}

}  // namespace

WrapperNames::WrapperNames(const formats::Contents& source) {
  std::vector<std::string> model;
  for (const TensorInfo& tensor : source.tensors) {
    if (tensor.part == Part::model) model.push_back(without_components(tensor.name));
  }
  if (model.empty()) {
    for (const TensorInfo& tensor : source.tensors) {
      model.push_back(without_components(tensor.name));
    }
  }
  if (!model.empty()) prefix_ = model.front().substr(0, common_prefix(model));
}

std::string WrapperNames::operator()(const std::string& name) const {
  std::string clean = without_components(name);
  if (clean.starts_with(prefix_)) clean.erase(0, prefix_.size());
  return clean;
}

TensorIndex::TensorIndex(const formats::Contents& contents, bool weights_only,
                         const std::string& path) {
  const WrapperNames names(contents);
  for (std::size_t i = 0; i < contents.tensors.size(); ++i) {
    const formats::TensorInfo& tensor = contents.tensors[i];
    if (weights_only && tensor.part != formats::Part::model) continue;
    TESSERA_CHECK(tensors_.emplace(Key{tensor.part, names(tensor.name)}, i).second,
                  ErrorCode::checkpoint,
                  "'{}': without the wrappers' prefixes two tensors are named '{}'", path,
                  names(tensor.name));
  }
  for (const auto& [alias, name] : contents.aliases) {
    aliases_[{formats::Part::model, names(alias)}] = {formats::Part::model, names(name)};
  }
}

std::optional<std::size_t> TensorIndex::find(const Key& key) const {
  auto found = tensors_.find(key);
  if (found == tensors_.end()) {
    const auto alias = aliases_.find(key);
    if (alias != aliases_.end()) found = tensors_.find(alias->second);
  }
  if (found == tensors_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> without_wrappers(const std::vector<std::string>& names) {
  formats::Contents contents;
  for (const std::string& name : names)
    contents.tensors.push_back({Part::model, name, nullptr, {}, {}});
  const WrapperNames map(contents);
  std::vector<std::string> clean;
  for (const std::string& name : names) clean.push_back(map(name));
  return clean;
}

}  // namespace tessera::checkpoint
