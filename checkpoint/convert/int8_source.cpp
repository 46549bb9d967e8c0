// Finds the linear layers' weights, and rounds them.
#include "checkpoint/convert/int8_source.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/convert/names.h"
#include "checkpoint/convert/plan.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"
#include "checkpoint/safetensors/safetensors.h"
#include "engine/nn/output_head.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {
namespace {

using formats::Contents;
using formats::Part;
using formats::TensorInfo;
using nlohmann::json;

constexpr std::int64_t int8_elements = std::int64_t{1} << 17;  // at a time
constexpr float largest_integer = 127.0f;
constexpr std::string_view weight_ending = ".weight";

const StoredDType& stored_int8() {
  static const StoredDType* const stored = find_stored_dtype("I8");
  TESSERA_REQUIRE(stored != nullptr, "safetensors has no dtype I8");
  return *stored;
}

// The quantization_config of compressed-tensors for 8-bit weights by channel and activations by
// token.
json int8_scheme(std::vector<std::string> ignored, const std::string& layer_class) {
  const json common = {{"num_bits", 8}, {"type", "int"}, {"symmetric", true}};
  json weights = common;
  weights.update({{"strategy", "channel"}, {"dynamic", false}});
  json activations = common;
  activations.update({{"strategy", "token"}, {"dynamic", true}});
  return {{"quant_method", "compressed-tensors"},
          {"format", "int-quantized"},
          {"quantization_status", "compressed"},
          {"ignore", std::move(ignored)},
          {"config_groups",
           {{"group_0",
             {{"targets", json::array({layer_class})},
              {"weights", weights},
              {"input_activations", activations},
              {"output_activations", nullptr}}}}}};
}

class Int8Source final : public formats::Source {
 public:
  Int8Source(std::unique_ptr<formats::Source> source, const std::map<std::string, bool>& layers)
      : source_(std::move(source)) {
    const Contents& all = source_->contents();
    contents_.files = all.files;
    contents_.texts = all.texts;
    contents_.text_modes = all.text_modes;
    contents_.aliases = all.aliases;
    contents_.notes = all.notes;
    contents_.unread_state = all.unread_state;
    std::vector<std::string> ignored;
    const WrapperNames names(all);
    for (std::size_t i = 0; i < all.tensors.size(); ++i) {
      add(i, names(all.tensors[i].name), layers, ignored);
    }
    TESSERA_CHECK(quantized_ > 0, ErrorCode::checkpoint,
                  "--dtype int8: the model has no linear layers that Tessera knows{}",
                  layers.empty() ? ": it needs a config.json of an architecture of "
                                   "docs/pretrained.md"
                                 : "");
    write_config(std::move(ignored));
    contents_.notes.push_back(
        fmt::format("{} of linear layers stored as int8, with a scale for each output",
                    counted(quantized_, "weight")));
  }

  [[nodiscard]] const Contents& contents() const override { return contents_; }

  void read(std::size_t tensor, std::int64_t first, std::int64_t count, std::byte* data) override {
    const Place& place = places_[tensor];
    if (place.kind == Kind::same) {
      source_->read(place.source, first, count, data);
      return;
    }
    const std::vector<float>& scales = scales_of(place);
    if (place.kind == Kind::scales) {
      std::memcpy(data, scales.data() + first, static_cast<std::size_t>(count) * sizeof(float));
      return;
    }
    for (std::int64_t done = 0; done < count; done += int8_elements) {
      const std::int64_t n = std::min(int8_elements, count - done);
      round_weights(place, scales, first + done, n, data + done);
    }
  }

  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) override {
    return source_->verify(progress);
  }

 private:
  enum class Kind : std::uint8_t { same, integers, scales };
  struct Place {
    Kind kind = Kind::same;
    std::size_t source = 0;  // index there
    bool in_out = false;
  };

  // A name may lack the prefix of the whole model, or have one.
  static std::optional<bool> layer_of(const std::map<std::string, bool>& layers,
                                      const std::string& name) {
    if (const auto found = layers.find(name); found != layers.end()) return found->second;
    const auto ends_after_dot = [](std::string_view whole, std::string_view end) {
      return whole.size() > end.size() && whole.ends_with(end) &&
             whole[whole.size() - end.size() - 1] == '.';
    };
    for (const auto& [layer, in_out] : layers) {
      if (ends_after_dot(layer, name) || ends_after_dot(name, layer)) return in_out;
    }
    return std::nullopt;
  }

  // `name` is without the prefixes of wrappers.
  void add(std::size_t index, const std::string& name, const std::map<std::string, bool>& layers,
           std::vector<std::string>& ignored) {
    const TensorInfo& given = source_->contents().tensors[index];
    if (given.part != Part::model) return;
    TESSERA_CHECK(
        given.name.find(".experts.") == std::string::npos, ErrorCode::checkpoint,
        "--dtype int8: '{}' belongs to an expert, and models of experts are not quantised; "
        "--dtype bf16 halves them",
        given.name);
    const auto layer = layer_of(layers, name);
    const bool is_matrix = given.shape.size() == 2 && given.stored->dtype &&
                           is_floating(*given.stored->dtype) && given.name.ends_with(weight_ending);
    const std::string module = name.substr(0, name.rfind('.'));
    if (!layer || !is_matrix || nn::is_output_head(module) || given.shape[0] == 0 ||
        given.shape[1] == 0) {
      if (is_matrix) ignored.push_back(module);
      contents_.tensors.push_back(given);
      places_.push_back({Kind::same, index, false});
      return;
    }
    ++quantized_;
    any_in_out_ = any_in_out_ || *layer;
    TensorInfo integers = given;
    integers.stored = &stored_int8();
    contents_.tensors.push_back(std::move(integers));
    places_.push_back({Kind::integers, index, *layer});
    TensorInfo scales = given;
    scales.name += "_scale";
    scales.stored = &stored_dtype(float32);
    scales.shape = *layer ? std::vector{std::int64_t{1}, given.shape[1]}
                          : std::vector{given.shape[0], std::int64_t{1}};
    contents_.tensors.push_back(std::move(scales));
    places_.push_back({Kind::scales, index, *layer});
  }

  void write_config(std::vector<std::string> ignored) {
    const std::optional<std::string> text = model_config_text(source_->contents());
    TESSERA_CHECK(text.has_value(), ErrorCode::checkpoint,
                  "--dtype int8: the source has no config.json, which has to say how the weights "
                  "are stored");
    json config = parse_json(*text, "config.json");
    if (std::find(ignored.begin(), ignored.end(), "lm_head") == ignored.end()) {
      ignored.emplace_back("lm_head");
    }
    config["quantization_config"] =
        int8_scheme(std::move(ignored), any_in_out_ ? "Conv1D" : "Linear");
    if (const auto file = contents_.files.find("config.json"); file != contents_.files.end()) {
      contents_.text_modes["config.json"] = File::open_for_reading(file->second).mode();
      contents_.files.erase(file);
    }
    contents_.texts["config.json"] = config.dump(2) + '\n';
  }

  // Elements of the source as fp32, in values_.
  void read_values(std::size_t tensor, std::int64_t first, std::int64_t count) {
    const TensorInfo& given = source_->contents().tensors[tensor];
    const DType stored = *given.stored->dtype;
    raw_.resize(static_cast<std::size_t>(count) * size_of(stored));
    values_.resize(static_cast<std::size_t>(count));
    source_->read(tensor, first, count, raw_.data());
    kernels::cpu::cast({.in = raw_.data(),
                        .out = reinterpret_cast<std::byte*>(values_.data()),
                        .n = count,
                        .in_dtype = stored,
                        .out_dtype = float32});
  }

  // Calls body(place in values_, scale's index, number) for each run of elements of one row.
  template <class Body>
  void for_rows(std::int64_t columns, std::int64_t first, std::int64_t count, const Body& body) {
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t row = (first + done) / columns;
      const std::int64_t column = (first + done) % columns;
      const std::int64_t run = std::min(columns - column, count - done);
      body(done, row, column, run);
      done += run;
    }
  }

  const std::vector<float>& scales_of(const Place& place) {
    std::vector<float>& scales = scales_[place.source];
    if (!scales.empty()) return scales;
    const TensorInfo& given = source_->contents().tensors[place.source];
    const std::int64_t columns = given.shape[1];
    const std::int64_t elements = given.shape[0] * columns;
    std::vector<float> largest(static_cast<std::size_t>(given.shape[place.in_out ? 1 : 0]), 0.0f);
    bool finite = true;
    for (std::int64_t first = 0; first < elements; first += int8_elements) {
      const std::int64_t n = std::min(int8_elements, elements - first);
      read_values(place.source, first, n);
      for_rows(columns, first, n, [&](auto at, auto row, auto column, auto run) {
        for (std::int64_t i = 0; i < run; ++i) {
          const float magnitude = std::abs(values_[static_cast<std::size_t>(at + i)]);
          finite = finite && std::isfinite(magnitude);
          float& most = largest[static_cast<std::size_t>(place.in_out ? column + i : row)];
          most = std::max(most, magnitude);
        }
      });
    }
    TESSERA_CHECK(finite, ErrorCode::checkpoint,
                  "--dtype int8: '{}' has a value that is not finite", given.name);
    for (float& most : largest) most = scale_for(most);
    scales = std::move(largest);
    return scales;
  }

  // Also 1 for an output whose largest weight is too small to divide by.
  static float scale_for(float largest) {
    const float scale = largest / largest_integer;
    return std::isfinite(1.0f / scale) ? scale : 1.0f;
  }

  void round_weights(const Place& place, const std::vector<float>& scales, std::int64_t first,
                     std::int64_t count, std::byte* out) {
    const std::int64_t columns = source_->contents().tensors[place.source].shape[1];
    read_values(place.source, first, count);
    for_rows(columns, first, count, [&](auto at, auto row, auto column, auto run) {
      const float* const of_columns = scales.data() + (place.in_out ? column : row);
      for (std::int64_t i = 0; i < run; ++i) {
        const float scale = of_columns[place.in_out ? i : 0];
        const float whole = std::nearbyint(values_[static_cast<std::size_t>(at + i)] / scale);
        const auto integer =
            static_cast<std::int8_t>(std::clamp(whole, -largest_integer, largest_integer));
        out[at + i] = static_cast<std::byte>(integer);
      }
    });
  }

  std::unique_ptr<formats::Source> source_;
  Contents contents_;
  std::vector<Place> places_;  // of each tensor
  std::size_t quantized_ = 0;
  bool any_in_out_ = false;
  std::map<std::size_t, std::vector<float>> scales_;  // by the source's index
  std::vector<std::byte> raw_;
  std::vector<float> values_;
};

}  // namespace

std::unique_ptr<formats::Source> open_int8(std::unique_ptr<formats::Source> source,
                                           const std::map<std::string, bool>& layers) {
  return std::make_unique<Int8Source>(std::move(source), layers);
}

}  // namespace tessera::checkpoint
