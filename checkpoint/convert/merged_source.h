// A model whose adapters are multiplied into its weights as these are read: W + scaling * B A, in
// fp32, rounded back to what W is stored as.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint {

// `adapter` is PEFT's folder. `base` is the model that the adapter was made for; only its weights
// are used. An adapter for a tensor that the base does not have, or has in another shape, is an
// Error(checkpoint). Memory beyond the base's: the factors of one layer. `lies_in_out` is the
// result of ConvertOptions::lies_in_out for this base.
std::unique_ptr<formats::Source> open_merged(const std::filesystem::path& adapter,
                                             std::unique_ptr<formats::Source> base,
                                             std::map<std::string, bool> lies_in_out = {});

}  // namespace tessera::checkpoint
