// The table of formats.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "checkpoint/formats/beside.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/io/file.h"

namespace tessera::checkpoint::formats {

const std::vector<Format>& formats() {
  static const std::vector<Format> list = {
      sharded_format(),   full_format(),      megatron_format(), dcp_format(),
      universal_format(), deepspeed_format(), verl_format(),     hugging_face_format(),
      torch_format(),     llmc_format(),      gguf_format(),
  };
  return list;
}

namespace {

// Files that are known by their names or first bytes, and not read.
struct OtherFormat {
  std::string_view ending;     // of the name; empty: any
  std::string_view beginning;  // of the contents; empty: any
  const char* words;
  const char* way_out;
};

constexpr const char* from_its_model =
    "convert the Hugging Face folder that it was made from, or save the weights by safetensors";
constexpr std::array<OtherFormat, 8> other_formats{{
    {"", "\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes them", from_its_model},
    {"", "\x93NUMPY", "an array of NumPy", "save it with a name by safetensors.numpy.save_file"},
    {".onnx", "", "an ONNX program", from_its_model},
    {".msgpack", "", "a msgpack file, as Flax writes them",
     "load it with transformers (from_flax=True) and save it with save_pretrained"},
    {".tflite", "", "a TensorFlow Lite program", from_its_model},
    {".pkl", "", "a plain pickle", "save the state dict by torch.save or safetensors"},
    {".pickle", "", "a plain pickle", "save the state dict by torch.save or safetensors"},
    {".nemo", "", "a NeMo archive",
     "unpack it with tar and convert the distributed checkpoint in it"},
}};

const OtherFormat* other_format(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return nullptr;
  std::array<char, 8> head{};
  try {
    const File file = File::open_for_reading(path);
    if (file.size() >= head.size()) file.read_at(0, head.data(), head.size());
  } catch (const Error&) {
    return nullptr;
  }
  const std::string_view text(head.data(), head.size());
  const std::string ending = path.extension().string();
  for (const OtherFormat& format : other_formats) {
    const bool named = format.ending.empty() || format.ending == ending;
    if (named && text.starts_with(format.beginning)) return &format;
  }
  return nullptr;
}

}  // namespace

const Format& recognise(const std::filesystem::path& path) {
  std::error_code error;
  TESSERA_CHECK(std::filesystem::exists(path, error), ErrorCode::checkpoint, "'{}' does not exist",
                path.string());
  require_contents(path);
  std::vector<std::string> descriptions;
  for (const Format& format : formats()) {
    if (format.recognises(path)) return format;
    descriptions.emplace_back(format.description);
  }
  const OtherFormat* const other = other_format(path);
  TESSERA_CHECK(other == nullptr, ErrorCode::checkpoint, "'{}' is {}, which is not read; {}",
                path.string(), other->words, other->way_out);
  fail(ErrorCode::checkpoint, "'{}' is not a checkpoint of a known format; looked for: {}",
       path.string(), fmt::join(descriptions, "; "));
}

}  // namespace tessera::checkpoint::formats
