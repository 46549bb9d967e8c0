// Weights from folders, for models that are used and not trained.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/language_model.h"

namespace tessera::models {

// Gives the parameters of a module that was built on `meta` memory on the device, contents
// undefined.
void materialise(nn::Module& module, Device device);

struct LoadedLanguageModel {
  std::unique_ptr<LanguageModel> model;  // in evaluation mode
  // That it came from: of a folder of steps the step's, of an adapter the base's.
  std::string folder;
  std::string adapter;               // the adapter's folder, or empty
  std::vector<std::string> skipped;  // a line for each damaged step that was passed over
};

// From a checkpoint's step folder, a folder of steps (the newest that is sound), or one that
// transformers saved. Nothing but the weights is read, and that is verified where the folder says
// how; parameters are of `dtype`. A folder may be PEFT's: find_weights() says where its base is.
LoadedLanguageModel load_language_model(const std::string& folder, DType dtype, Device device,
                                        const std::string& base = {});

}  // namespace tessera::models
