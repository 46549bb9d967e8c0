// The table of formats.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "checkpoint/formats/known_formats.h"

namespace tessera::checkpoint::formats {

const std::vector<Format>& formats() {
  static const std::vector<Format> list = {
      sharded_format(),      full_format(),  dcp_format(),  deepspeed_format(),
      hugging_face_format(), torch_format(), llmc_format(),
  };
  return list;
}

const Format& recognise(const std::filesystem::path& path) {
  std::error_code error;
  TESSERA_CHECK(std::filesystem::exists(path, error), ErrorCode::checkpoint, "'{}' does not exist",
                path.string());
  std::vector<std::string> descriptions;
  for (const Format& format : formats()) {
    if (format.recognises(path)) return format;
    descriptions.emplace_back(format.description);
  }
  fail(ErrorCode::checkpoint, "'{}' is not a checkpoint of a known format; looked for: {}",
       path.string(), fmt::join(descriptions, "; "));
}

}  // namespace tessera::checkpoint::formats
