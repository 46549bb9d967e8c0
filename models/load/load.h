// Weights from folders, for models that are not trained.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/language_model.h"
#include "models/sequence_to_sequence.h"

namespace tessera::models {

// Allocates the parameters of a module that was built on `meta` on the device, with undefined
// contents.
void materialise(nn::Module& module, Device device);

struct LoadedLanguageModel {
  std::unique_ptr<LanguageModel> model;  // in evaluation mode
  // The source of the weights: for a folder of steps the step's folder, for an adapter the base's.
  std::string folder;
  std::string adapter;               // the adapter's folder, or empty
  std::vector<std::string> skipped;  // one line for each damaged step that was skipped
};

// Loads from a checkpoint's step folder, a folder of steps (the newest intact step), or a folder
// that transformers saved. Reads only the weights, and verifies them if the folder has checksums.
// Parameters are of `dtype`, but linear layers that the folder stores as 8-bit integers, which a
// CPU computes with as they are (int8.h). For a PEFT folder, find_weights() finds the base.
LoadedLanguageModel load_language_model(const std::string& folder, DType dtype, Device device,
                                        const std::string& base = {});

// An encoder with a decoder, in evaluation mode, from a folder that transformers saved, or from a
// step's folder beside whose weights a program has written a config.json (Model::config()).
std::unique_ptr<SequenceToSequence> load_sequence_to_sequence(const std::string& folder,
                                                              DType dtype, Device device);

}  // namespace tessera::models
