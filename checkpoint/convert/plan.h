// What a conversion writes: names without wrappers, dtypes, what is left behind, in the order of
// the files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/convert/convert.h"
#include "checkpoint/formats/format.h"

namespace tessera::checkpoint {

struct ConversionPlan {
  formats::Contents contents;          // for the sink; its notes are those of the report
  std::vector<std::size_t> source_of;  // of each tensor: the source's index
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
};

// Reads from the source only to compare tensors that ought to be tied. `foreign`: its scalars are
// not those of a program that uses Tessera.
ConversionPlan plan_conversion(formats::Source& source, const formats::Format& target,
                               const ConvertOptions& options, bool foreign);

// Of the model, where there is one.
std::optional<std::string> model_config_text(const formats::Contents& contents);

std::uint64_t bytes_of(const formats::TensorInfo& tensor);

}  // namespace tessera::checkpoint
