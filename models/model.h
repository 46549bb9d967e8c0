// The interfaces of models with a Hugging Face configuration: the configuration, and the names of
// the tensors in Hugging Face folders. A model is an ordinary module; the layers below this one do
// not know it.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "engine/nn/module.h"

namespace tessera::models {

// The names of a model's tensors in a folder that transformers saved.
struct HuggingFaceNames {
  // The names that a parameter may have in a file, the most usual first.
  std::function<std::vector<std::string>(const std::string& name)> aliases;
  // Tensors in a file that are not parameters (masks, frequencies, the copy of a tied head); a '#'
  // stands for digits (checkpoint::matches_name).
  std::vector<std::string> ignored;
};

// A model that is read from Hugging Face folders and written as one.
class FolderModel : public nn::Module {
 public:
  // Hugging Face's config.json for weights stored as `weights`, which the model's configuration
  // reads back. Keys of the original configuration that this model does not use are kept.
  [[nodiscard]] virtual nlohmann::json config(DType weights = float32) const = 0;
  [[nodiscard]] virtual HuggingFaceNames hugging_face_names() const = 0;

  // The class of the repeated layer: TRANSFORMER_BASED_WRAP's default.
  [[nodiscard]] virtual std::string layer_class() const = 0;
};

// A model of token sequences: those that recipes train and the registry makes.
class Model : public FolderModel {
 public:
  [[nodiscard]] virtual std::int64_t vocabulary() const = 0;
  // The longest sequence that forward() takes.
  [[nodiscard]] virtual std::int64_t positions() const = 0;
};

}  // namespace tessera::models
