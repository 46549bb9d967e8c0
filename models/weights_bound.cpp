// Layers from the names of tensors, widths from their shapes, parameters from the sizes of files.
#include "models/weights_bound.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/byte_size.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;

// The largest model that the weights of a folder can hold.
struct WeightsBound {
  std::int64_t layers = 0;
  std::int64_t widest = 0;  // the largest dimension
  std::uint64_t bytes = 0;

  void take(std::string_view name, const std::vector<std::int64_t>& shape) {
    while (!name.empty()) {
      const std::string_view part = name.substr(0, name.find('.'));
      name.remove_prefix(std::min(name.size(), part.size() + 1));
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
      if (error != std::errc() || end != part.data() + part.size()) continue;
      layers = std::max(layers, std::clamp<std::int64_t>(number, 0, 1 << 30) + 1);
    }
    // A dimension beside one of 0 takes no bytes.
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
    for (const std::int64_t dimension : shape) widest = std::max(widest, dimension);
  }
};

// Files that a hostile header promises and that are not there count as nothing.
std::uint64_t bytes_of_weights(const fs::path& folder) {
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::error_code error;
    if (entry.path().extension() != ".safetensors") continue;
    const std::uint64_t size = fs::file_size(entry.path(), error);
    if (!error) bytes += size;
  }
  return bytes;
}

void take_headers(const fs::path& folder, WeightsBound& bound) {
  if (fs::exists(folder / checkpoint::manifest_name) && !fs::exists(folder / "model.safetensors") &&
      !fs::exists(folder / "model.safetensors.index.json")) {
    for (const auto& tensor : checkpoint::read_manifest(folder).model.tensors) {
      bound.take(tensor.name, tensor.shape);
    }
    return;
  }
  for (const auto& [name, place] : checkpoint::open_hugging_face(folder).tensors) {
    bound.take(name, place.entry->shape);
  }
}

std::optional<WeightsBound> bound_of(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return std::nullopt;
  WeightsBound bound{.bytes = bytes_of_weights(folder)};
  if (bound.bytes == 0) return std::nullopt;
  try {
    take_headers(folder, bound);
  } catch (const std::exception&) {
    // The load reports the damage, or skips the step; until then only the sizes of files count.
    bound.layers = bound.widest = std::numeric_limits<std::int64_t>::max();
  }
  return bound;
}

std::optional<std::int64_t> whole_at(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || !found->is_number_integer()) return std::nullopt;
  // The table of keys refuses larger numbers with a message of its own.
  const auto value = found->get<std::int64_t>();
  return value > 0 && value < std::int64_t{1} << 31 ? std::optional(value) : std::nullopt;
}

// The keys of an architecture that decide the sizes of its tensors.
struct SizeKeys {
  const char* layers;
  const char* width;
  const char* inner;
  const char* positions;          // null: they have no parameters
  const char* experts = nullptr;  // null: it has none
};

SizeKeys keys_of(const nlohmann::json& config) {
  const auto type = config.find("model_type");
  if (type != config.end() && *type == "gpt2")
    return {"n_layer", "n_embd", "n_inner", "n_positions"};
  // Layers without experts may have `intermediate_size`, and the model may have no such layer.
  if (type != config.end() && *type == "qwen3_moe") {
    const char* experts = config.contains("num_experts") ? "num_experts" : "num_local_experts";
    return {"num_hidden_layers", "hidden_size", "moe_intermediate_size", nullptr, experts};
  }
  if (type != config.end() && (*type == "mixtral" || *type == "gpt_oss")) {
    return {"num_hidden_layers", "hidden_size", "intermediate_size", nullptr, "num_local_experts"};
  }
  if (type != config.end() && *type == "distilbert")
    return {"n_layers", "dim", "hidden_dim", "max_position_embeddings"};
  if (type != config.end() && *type == "t5") return {"num_layers", "d_model", "d_ff", nullptr};
  constexpr std::string_view with_positions[] = {"bert", "mpnet", "roberta", "xlm-roberta",
                                                 "camembert"};
  const bool has_positions =
      type != config.end() && std::any_of(std::begin(with_positions), std::end(with_positions),
                                          [&](std::string_view name) { return *type == name; });
  return {"num_hidden_layers", "hidden_size", "intermediate_size",
          has_positions ? "max_position_embeddings" : nullptr};
}

// Large parts of every architecture, in no architecture more than it has.
double least_parameters(const nlohmann::json& config, const SizeKeys& keys) {
  const auto number = [&](const char* key) {
    return key == nullptr ? 0.0 : static_cast<double>(whole_at(config, key).value_or(0));
  };
  const double width = number(keys.width);
  const double own_heads = number("num_heads") * number("d_kv");  // T5's
  const double attention =
      own_heads > 0 ? own_heads
                    : std::max(width, number("num_attention_heads") * number("head_dim"));
  double inner = number(keys.layers) * number(keys.inner);
  if (keys.experts != nullptr) {
    const auto dense = config.find("mlp_only_layers");
    const double without = dense != config.end() ? static_cast<double>(dense->size()) : 0;
    const double step = std::max(1.0, number("decoder_sparse_step"));
    const double sparse = std::max(0.0, std::floor(number(keys.layers) / step) - without);
    inner = sparse * number(keys.experts) * number(keys.inner);
  }
  return width * (number("vocab_size") + number(keys.positions) +
                  2 * (number(keys.layers) * attention + inner));
}

// Whether a file of so many bytes can hold so many elements. A few more do no harm, and then the
// load has a message that names the tensor.
bool can_hold(std::uint64_t bytes, double elements) {
  constexpr double harmless = 1 << 26;
  constexpr double most_elements_of_a_byte = 8;
  return elements <= std::max(harmless, most_elements_of_a_byte * static_cast<double>(bytes));
}

}  // namespace

void check_weights_bound(const fs::path& folder, const nlohmann::json& config) {
  if (!config.is_object()) return;
  const std::optional<WeightsBound> bound = bound_of(folder);
  if (!bound) return;
  const std::string source = (folder / "config.json").string();
  const SizeKeys keys = keys_of(config);
  const std::int64_t layers = whole_at(config, keys.layers).value_or(0);
  TESSERA_CHECK(layers <= bound->layers, ErrorCode::checkpoint,
                "{}: {} is {}, but the weights there have {}; they do not belong together", source,
                keys.layers, layers, counted(bound->layers, "layer"));
  for (const char* key : {keys.width, keys.inner, keys.positions, keys.experts, "vocab_size"}) {
    const std::int64_t value = key == nullptr ? 0 : whole_at(config, key).value_or(0);
    TESSERA_CHECK(value <= bound->widest, ErrorCode::checkpoint,
                  "{}: {} is {}, but the largest dimension of the weights there is {}; they do not "
                  "belong together",
                  source, key, value, bound->widest);
  }
  const double least = least_parameters(config, keys);
  TESSERA_CHECK(
      can_hold(bound->bytes, least), ErrorCode::checkpoint,
      "{}: it describes at least {:.0f} parameters, but the weights there have {}; they do "
      "not belong together",
      source, least, bytes_text(bound->bytes));
}

void check_matrix_bound(const fs::path& folder, std::int64_t rows, std::int64_t columns) {
  const std::optional<WeightsBound> bound = bound_of(folder);
  if (!bound) return;
  const double elements = static_cast<double>(rows) * static_cast<double>(columns);
  TESSERA_CHECK(can_hold(bound->bytes, elements), ErrorCode::checkpoint,
                "{}: it describes a matrix of {} x {}, but the weights there have {}; they do not "
                "belong together",
                (folder / "config.json").string(), rows, columns, bytes_text(bound->bytes));
}

}  // namespace tessera::models
