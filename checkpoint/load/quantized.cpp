// Reads quantization_config, and pairs weights with their scales.
#include "checkpoint/load/quantized.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/printable.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"
#include "checkpoint/load/int8.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t quantized_config_limit = std::uint64_t{16} << 20;
constexpr std::int64_t usual_block = 128;
constexpr std::int64_t largest_block = std::int64_t{1} << 31;

struct Scheme {
  json config;                          // config.json; null: none, or not a JSON object
  const char* key = nullptr;            // of the scheme in it; null: it has none
  std::string method = {};              // quant_method
  std::optional<ScaleGrid> block = {};  // of fp8 weights
  bool rounds_activations = false;      // of integers: each row to 8 bits when it comes
};

struct RefusedMethod {
  std::string_view method;  // quant_method
  std::string_view name;
  std::string_view way_out;
};
constexpr std::string_view original_way_out =
    "use the model that it was made from, which has weights in bfloat16";
constexpr std::string_view dequantize_way_out =
    "use the model that it was made from, or load this one by transformers, call its dequantize() "
    "and save it";
constexpr std::array<RefusedMethod, 6> refused_methods{{
    {"gptq", "GPTQ", original_way_out},
    {"awq", "AWQ", original_way_out},
    {"bitsandbytes", "bitsandbytes", dequantize_way_out},
    {"bitsandbytes_4bit", "bitsandbytes", dequantize_way_out},
    {"bitsandbytes_8bit", "bitsandbytes", dequantize_way_out},
    {"compressed-tensors", "compressed-tensors", original_way_out},
}};

[[noreturn]] void refuse_method(const std::string& place, std::string_view method,
                                const std::string& detail = {}) {
  std::string name = printable(method);
  std::string_view way_out = original_way_out;
  for (const RefusedMethod& refused : refused_methods) {
    if (refused.method != method) continue;
    name = refused.name;
    way_out = refused.way_out;
  }
  fail(ErrorCode::checkpoint, "'{}': the weights are quantised by {}{}, which is not read; {}",
       place, name, detail.empty() ? "" : " " + detail, way_out);
}

// Null: there is none, or it is damaged. Its other readers report that.
json config_of(const fs::path& folder) {
  if (folder.empty() || !path_exists(folder / "config.json")) return {};
  return object_or_null(read_whole(open_member(folder, "config.json"), quantized_config_limit));
}

// [rows, columns] of a block; null is none.
std::optional<ScaleGrid> block_of(const json& given, const std::string& place) {
  if (given.is_null()) return std::nullopt;
  const auto is_size = [](const json& value) {
    return value.is_number_integer() && value.get<std::int64_t>() > 0 &&
           value.get<std::int64_t>() < largest_block;
  };
  TESSERA_CHECK(given.is_array() && given.size() == 2 && is_size(given[0]) && is_size(given[1]),
                ErrorCode::checkpoint,
                "'{}': the block of quantization_config is {}, not [rows, columns]", place,
                given.dump());
  return ScaleGrid{given[0].get<std::int64_t>(), given[1].get<std::int64_t>()};
}

// Accepts weights of 8 bits whose scales lie beside them, a few of many kinds of
// compressed-tensors: fp8, and symmetric integers.
void read_compressed_groups(const json& scheme, const std::string& place, Scheme& out) {
  const std::string sparse = text_member(scheme.value("sparsity_config", json::object()), "format");
  if (!sparse.empty() && sparse != "dense") {
    refuse_method(place, out.method, fmt::format("({}, sparse)", printable(sparse)));
  }
  const json groups = scheme.value("config_groups", json::object());
  TESSERA_CHECK(groups.is_object(), ErrorCode::checkpoint, "'{}': config_groups is not an object",
                place);
  bool first = true;
  for (const auto& [name, group] : groups.items()) {
    const json weights = group.is_object() ? group.value("weights", json()) : json();
    if (!weights.is_object()) continue;
    const json bits = weights.value("num_bits", json());
    const std::string type = text_member(weights, "type");
    const bool integers = type == "int" && weights.value("symmetric", json(true)) == true &&
                          text_member(weights, "strategy") != "group";
    if ((type != "float" && !integers) || bits != 8) {
      const bool asymmetric = weights.value("symmetric", json(true)) != true;
      refuse_method(place, out.method,
                    fmt::format("({}{} of {} bits{}, {})", asymmetric ? "asymmetric " : "",
                                printable(type.empty() ? "int" : type), printable(bits.dump()),
                                text_member(weights, "strategy") == "group" ? " in groups" : "",
                                printable(text_member(scheme, "format"))));
    }
    const json activations = group.value("input_activations", json());
    const bool rounds = activations.is_object() && activations.value("dynamic", json()) == true &&
                        activations.value("num_bits", json()) == 8 &&
                        text_member(activations, "type") == "int" &&
                        text_member(activations, "strategy") == "token" &&
                        activations.value("symmetric", json(true)) == true;
    out.rounds_activations = rounds && (out.rounds_activations || first);
    first = false;
    if (const json block = weights.value("block_structure", json()); block.is_array()) {
      out.block = block_of(block, place);
    }
  }
}

Scheme scheme_of(const fs::path& folder) {
  Scheme out{.config = config_of(folder)};
  if (out.config.is_null()) return out;
  const std::string place = (folder / "config.json").string();
  for (const char* const key : {"quantization_config", "compression_config"}) {
    const auto scheme = out.config.find(key);
    if (scheme == out.config.end() || scheme->is_null()) continue;
    TESSERA_CHECK(scheme->is_object(), ErrorCode::checkpoint, "'{}': {} is not an object", place,
                  key);
    out.key = key;
    out.method = text_member(*scheme, "quant_method");
    if (scheme->contains("load_in_8bit") || scheme->contains("load_in_4bit")) {
      out.method = "bitsandbytes";
    }
    if (out.method == "compressed-tensors") {
      read_compressed_groups(*scheme, place, out);
    } else if (out.method == "fp8") {
      out.block = block_of(scheme->value("weight_block_size", json()), place);
    } else if (out.method != "fbgemm_fp8" && out.method != "mxfp4") {
      refuse_method(place, out.method.empty() ? "a method without quant_method" : out.method);
    }
    break;
  }
  return out;
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](auto end) { return name.ends_with(end); });
}

// Methods whose tensors have names of their own, where config.json does not say it.
void refuse_packed(const HuggingFaceFolder& opened) {
  for (const auto& [name, weight] : opened.tensors) {
    const std::string place = weight.file->path().string();
    const std::string detail = fmt::format("(tensor '{}')", printable(name));
    if (name.ends_with(".qweight")) {
      const std::string layer = name.substr(0, name.size() - std::string_view("qweight").size());
      refuse_method(place, opened.tensors.contains(layer + "g_idx") ? "gptq" : "awq", detail);
    }
    if (ends_with_any(name, {".weight_packed"})) refuse_method(place, "compressed-tensors", detail);
    if (ends_with_any(name, {".SCB", ".absmax", ".quant_map"})) {
      refuse_method(place, "bitsandbytes", detail);
    }
  }
}

class Decoding {
 public:
  Decoding(HuggingFaceFolder& opened, const Scheme& scheme) : opened_(opened), scheme_(scheme) {}

  void run() {
    std::vector<std::string> names;
    for (const auto& entry : opened_.tensors) names.push_back(entry.first);
    for (const std::string& name : names) {
      const auto found = opened_.tensors.find(name);
      if (found == opened_.tensors.end()) continue;  // the scales of a former one
      const StoredDType& stored = *found->second.entry->stored;
      if (is_fp8(stored)) {
        decode_fp8(name, found->second);
      } else if (name.ends_with(blocks_ending)) {
        decode_mxfp4(name, found->second);
      } else if (stored.name == "I8") {
        decode_int8(name, found->second);
      }
    }
    if (decoded_.empty()) return;
    drop_scales_of_activations(names);
    for (const auto& [kind, number] : decoded_) {
      opened_.notes.push_back(fmt::format("{} of {} read as {}", counted(number, "tensor"),
                                          kind.first, name_of(kind.second)));
    }
    if (dropped_ > 0) {
      opened_.notes.push_back(
          fmt::format("left out: {} of activations, which decoded weights do not need",
                      counted(dropped_, "scale")));
    }
  }

 private:
  static constexpr std::string_view blocks_ending = "_blocks";
  static constexpr std::array<std::string_view, 2> scale_endings{"_scale_inv", "_scale"};

  static FileTensor part_of(const StoredWeight& weight) { return {weight.file, weight.entry}; }

  void decode_fp8(const std::string& name, const StoredWeight& weight) {
    for (const std::string_view ending : scale_endings) {
      const auto scales = opened_.tensors.find(name + std::string(ending));
      if (scales == opened_.tensors.end()) continue;
      const ScaleGrid grid = grid_of(weight, scales->second);
      const FileTensor of_scales = part_of(scales->second);
      opened_.tensors.erase(scales);
      replace(name, name, make_fp8_decoder(part_of(weight), of_scales, grid, buffers_));
      ++decoded_[{"fp8", bfloat16}];
      return;
    }
    TESSERA_CHECK(scheme_.key == nullptr, ErrorCode::checkpoint,
                  "'{}': tensor '{}' is {} without scales ('{}_scale_inv' or '{}_scale')",
                  weight.file->path().string(), name, weight.entry->stored->name, name, name);
  }

  void decode_int8(const std::string& name, const StoredWeight& weight) {
    const auto scales = opened_.tensors.find(name + "_scale");
    if (scales == opened_.tensors.end()) {
      // Without a scheme they may be what they are: integers.
      TESSERA_CHECK(scheme_.key == nullptr, ErrorCode::checkpoint,
                    "'{}': tensor '{}' is I8 without scales ('{}_scale')",
                    weight.file->path().string(), name, name);
      return;
    }
    TESSERA_CHECK(!opened_.tensors.contains(name + "_zero_point"), ErrorCode::checkpoint,
                  "'{}': tensor '{}' has zero points ('{}_zero_point'), which are not read; {}",
                  weight.file->path().string(), name, name, original_way_out);
    const FileTensor of_scales = part_of(scales->second);
    auto decoder =
        make_int8_decoder(part_of(weight), of_scales, buffers_, scheme_.rounds_activations);
    const DType dtype = *decoder->entry().stored->dtype;
    opened_.tensors.erase(scales);
    replace(name, name, std::move(decoder));
    ++decoded_[{"int8", dtype}];
  }

  // The places of the scales, from the shapes.
  [[nodiscard]] ScaleGrid grid_of(const StoredWeight& weight, const StoredWeight& scales) const {
    const std::vector<std::int64_t>& shape = weight.entry->shape;
    const std::int64_t columns = shape.empty() ? 1 : std::max<std::int64_t>(shape.back(), 1);
    const std::int64_t rows =
        shape.size() < 2 ? 1 : std::max<std::int64_t>(shape[shape.size() - 2], 1);
    const std::int64_t elements = element_count(shape, weight.entry->name);
    const std::int64_t matrices = std::max<std::int64_t>(elements / columns / rows, 1);
    const std::int64_t number = element_count(scales.entry->shape, scales.entry->name);
    const auto fits = [&](const ScaleGrid& grid) {
      // Blocks of a row and of a column, as far as the shape of the scales has both.
      const std::int64_t down = (rows - 1) / grid.block_rows + 1;
      const std::int64_t across = (columns - 1) / grid.block_columns + 1;
      const std::vector<std::int64_t>& of_scales = scales.entry->shape;
      const bool in_shape = of_scales.size() < 2 || shape.size() < 2 ||
                            (of_scales.back() == across && of_scales[of_scales.size() - 2] == down);
      return in_shape && number % down == 0 && number / down % across == 0 &&
             number / down / across == matrices;
    };
    const ScaleGrid block = scheme_.block.value_or(ScaleGrid{usual_block, usual_block});
    const ScaleGrid whole{rows, columns};
    const ScaleGrid by_row{1, columns};
    for (const ScaleGrid& grid : {whole, by_row, block}) {
      if (fits(grid) && is_scale(*scales.entry->stored)) return grid;
    }
    fail(ErrorCode::checkpoint,
         "'{}': the scales '{}' {} {} do not fit '{}' {}, neither for blocks of [{}, {}] nor for "
         "rows nor for the whole tensor",
         scales.file->path().string(), scales.entry->name, scales.entry->stored->name,
         describe_shape(scales.entry->shape), weight.entry->name, describe_shape(shape),
         block.block_rows, block.block_columns);
  }

  void decode_mxfp4(const std::string& name, const StoredWeight& blocks) {
    const std::string weight = name.substr(0, name.size() - blocks_ending.size());
    const auto scales = opened_.tensors.find(weight + "_scales");
    if (scales == opened_.tensors.end() || blocks.entry->stored->dtype != DType::uint8) {
      TESSERA_CHECK(scheme_.method != "mxfp4", ErrorCode::checkpoint,
                    "'{}': tensor '{}' is {}{}; weights in MXFP4 are U8 with scales in '{}_scales'",
                    blocks.file->path().string(), name, blocks.entry->stored->name,
                    scales == opened_.tensors.end() ? " without scales" : "", weight);
      return;
    }
    auto decoder = make_mxfp4_decoder(weight, part_of(blocks), part_of(scales->second), buffers_);
    opened_.tensors.erase(scales);
    replace(name, weight, std::move(decoder));
    ++decoded_[{"MXFP4", bfloat16}];
  }

  void replace(const std::string& stored, const std::string& name,
               std::shared_ptr<const WeightDecoder> decoder) {
    opened_.tensors.erase(stored);
    const FileTensor elements = decoder->parts().front();
    const TensorEntry* const entry = &decoder->entry();
    const bool added =
        opened_.tensors.emplace(name, StoredWeight{elements.file, entry, std::move(decoder)})
            .second;
    TESSERA_CHECK(added, ErrorCode::checkpoint, "'{}' has tensors '{}' and '{}' of one weight",
                  elements.file->path().string(), stored, name);
  }

  // They lie beside the weight of a layer, those of cached keys and values beside the layers.
  void drop_scales_of_activations(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (!ends_with_any(name, {".input_scale", ".activation_scale", ".output_scale", ".k_scale",
                                ".v_scale", ".q_scale", ".prob_output_scale"})) {
        continue;
      }
      dropped_ += opened_.tensors.erase(name);
    }
  }

  HuggingFaceFolder& opened_;
  const Scheme& scheme_;
  std::shared_ptr<DecodeBuffers> buffers_ = std::make_shared<DecodeBuffers>();
  // By kind, and the dtype that they are read as.
  std::map<std::pair<std::string, DType>, std::size_t> decoded_;
  std::size_t dropped_ = 0;
};

}  // namespace

void decode_quantized(HuggingFaceFolder& opened, const fs::path& folder) {
  Scheme scheme = scheme_of(folder);
  refuse_packed(opened);
  Decoding(opened, scheme).run();
  if (scheme.key == nullptr) return;
  scheme.config.erase("quantization_config");
  scheme.config.erase("compression_config");
  opened.config = scheme.config.dump(2) + '\n';
}

}  // namespace tessera::checkpoint
