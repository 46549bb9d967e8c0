// The plan of a conversion: names without wrappers, dtypes and omissions, in the order of the
// files.
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
  std::string type;  // for the sink, of formats with encodings
};

// Reads from the source only to compare tensors that should be tied. `foreign`: the scalars are not
// those of a program that uses Tessera.
ConversionPlan plan_conversion(formats::Source& source, const formats::Format& target,
                               const ConvertOptions& options, bool foreign);

// The text of the model's config.json, where there is one.
std::optional<std::string> model_config_text(const formats::Contents& contents);

// True if config.json ties the head to the token table; none if it does not state it.
std::optional<bool> ties_head(const formats::Contents& contents);

std::uint64_t bytes_of(const formats::TensorInfo& tensor);

}  // namespace tessera::checkpoint
