// The format of the frozen weights under an adapter, as its step says. A recipe asks for it, so
// this needs no more than the manifest.
#include <filesystem>

#include "base/error.h"
#include "checkpoint/io/file.h"
#include "checkpoint/load/peft.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint {

std::optional<QuantizedFormat> quantized_base_of(const std::string& folder) {
  if (!path_exists(std::filesystem::path(folder) / manifest_name)) return std::nullopt;
  const auto format = read_manifest(folder).scalars.get<std::string>(base_format_scalar, "");
  if (format.empty()) return std::nullopt;
  for (const QuantizedFormat known : {QuantizedFormat::nf4, QuantizedFormat::int8}) {
    if (format == name_of(known)) return known;
  }
  fail(ErrorCode::checkpoint,
       "{}: its base is quantised as \"{}\", which this version does not know", folder, format);
}

}  // namespace tessera::checkpoint
