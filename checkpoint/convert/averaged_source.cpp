// Finds each tensor in every input, and adds the elements while they are read.
#include "checkpoint/convert/averaged_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "checkpoint/convert/names.h"
#include "checkpoint/convert/plan.h"
#include "checkpoint/io/json.h"
#include "checkpoint/safetensors/safetensors.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {
namespace {

using formats::Contents;
using formats::Part;
using formats::TensorInfo;

constexpr std::int64_t averaged_elements = std::int64_t{1} << 17;  // at a time

bool is_floating_tensor(const TensorInfo& tensor) {
  return tensor.stored->dtype && is_floating(*tensor.stored->dtype);
}

template <class Value>
void add_terms(std::vector<std::byte>& sum, const std::vector<std::byte>& terms,
               std::int64_t count) {
  auto* const to = reinterpret_cast<Value*>(sum.data());
  const auto* const from = reinterpret_cast<const Value*>(terms.data());
  for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

template <class Value>
void divide_by(std::vector<std::byte>& sum, std::size_t number, std::int64_t count) {
  auto* const values = reinterpret_cast<Value*>(sum.data());
  for (std::int64_t i = 0; i < count; ++i) values[i] /= static_cast<Value>(number);
}

// Keys that tell of the program that wrote config.json, of training, or of the ends of texts.
constexpr std::array<std::string_view, 16> bookkeeping{
    "_name_or_path",      "name_or_path", "transformers_version",
    "torch_dtype",        "dtype",        "architectures",
    "use_cache",          "_commit_hash", "bos_token_id",
    "eos_token_id",       "pad_token_id", "attention_dropout",
    "resid_pdrop",        "embd_pdrop",   "attn_pdrop",
    "quantization_config"};

// config.json with the rotary positions in one spelling, and without null and bookkeeping.
nlohmann::json described_model(const Contents& contents, const std::string& path) {
  const std::optional<std::string> text = model_config_text(contents);
  nlohmann::json config =
      text ? parse_json(*text, "'" + path + "': config.json") : nlohmann::json();
  if (!config.is_object()) return nlohmann::json::object();
  nlohmann::json rope = nlohmann::json::object();
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (config.contains(key) && config[key].is_object()) rope.update(config[key]);
    config.erase(key);
  }
  if (rope.contains("type")) rope.emplace("rope_type", rope["type"]);
  rope.erase("type");
  for (const auto& [key, value] : rope.items()) config["rope_parameters." + key] = value;
  if (rope.contains("rope_theta")) config["rope_theta"] = rope["rope_theta"];
  config.erase("rope_parameters.rope_theta");
  if (!config.contains("rope_parameters.rope_type") && config.contains("rope_theta")) {
    config["rope_parameters.rope_type"] = "default";
  }
  for (const std::string_view key : bookkeeping) config.erase(std::string(key));
  for (auto each = config.begin(); each != config.end();) {
    each = each->is_null() ? config.erase(each) : std::next(each);
  }
  return config;
}

class AveragedSource final : public formats::Source {
 public:
  AveragedSource(std::vector<AveragedInput> inputs, std::optional<DType> dtype)
      : inputs_(std::move(inputs)) {
    const Contents& first = inputs_.front().source->contents();
    contents_.files = first.files;
    contents_.texts = first.texts;
    contents_.text_modes = first.text_modes;
    contents_.aliases = first.aliases;
    contents_.notes = first.notes;
    require_one_model();
    std::vector<TensorIndex> indexes;
    for (const AveragedInput& input : inputs_) {
      indexes.emplace_back(input.source->contents(), true, input.path);
    }
    for (const auto& [key, tensor] : indexes.front().tensors()) add(indexes, key, tensor, dtype);
    for (std::size_t i = 1; i < inputs_.size(); ++i) {
      for (const auto& entry : indexes[i].tensors()) {
        (void)require(indexes.front(), 0, entry.first.second, i);
      }
    }
    std::vector<std::string> paths;
    for (const AveragedInput& input : inputs_) paths.push_back(input.path);
    contents_.notes.push_back(
        fmt::format("the mean of {} checkpoints: {}", paths.size(), fmt::join(paths, ", ")));
    const bool trains = std::any_of(inputs_.begin(), inputs_.end(), [](const auto& input) {
      const auto& tensors = input.source->contents().tensors;
      return std::any_of(tensors.begin(), tensors.end(),
                         [](const TensorInfo& tensor) { return tensor.part != Part::model; });
    });
    if (trains) contents_.notes.emplace_back("training state is left behind: a mean has none");
  }

  [[nodiscard]] const Contents& contents() const override { return contents_; }

  void read(std::size_t tensor, std::int64_t first, std::int64_t count, std::byte* data) override {
    const std::size_t size = contents_.tensors[tensor].stored->bits / 8;
    for (std::int64_t done = 0; done < count; done += averaged_elements) {
      const std::int64_t n = std::min(averaged_elements, count - done);
      std::byte* const out = data + static_cast<std::size_t>(done) * size;
      if (is_floating_tensor(contents_.tensors[tensor])) {
        read_mean(tensor, first + done, n, out);
      } else {
        read_equal(tensor, first + done, n, out);
      }
    }
  }

  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) override {
    std::vector<std::string> damages;
    for (const AveragedInput& input : inputs_) {
      std::vector<std::string> more = input.source->verify(progress);
      damages.insert(damages.end(), more.begin(), more.end());
    }
    return damages;
  }

 private:
  [[nodiscard]] const TensorInfo& info(std::size_t input, std::size_t tensor) const {
    return inputs_[input].source->contents().tensors[tensor];
  }

  // Weights of one shape mean different things under another number of heads or another base of
  // positions. A key that only one config.json has may be the default of the other.
  void require_one_model() const {
    const nlohmann::json mine =
        described_model(inputs_.front().source->contents(), inputs_.front().path);
    for (std::size_t i = 1; i < inputs_.size(); ++i) {
      const nlohmann::json other = described_model(inputs_[i].source->contents(), inputs_[i].path);
      for (const auto& [key, value] : mine.items()) {
        const auto found = other.find(key);
        TESSERA_CHECK(found == other.end() || *found == value, ErrorCode::checkpoint,
                      "config.json has {} {} in '{}' and {} in '{}'; only checkpoints of one model "
                      "are averaged",
                      key, value.dump(-1, ' ', true).substr(0, 80), inputs_.front().path,
                      found->dump(-1, ' ', true).substr(0, 80), inputs_[i].path);
      }
    }
  }

  // The tensor in an input, which `other` has.
  [[nodiscard]] std::size_t require(const TensorIndex& index, std::size_t input,
                                    const std::string& name, std::size_t other) const {
    const auto found = index.find({Part::model, name});
    TESSERA_CHECK(found.has_value(), ErrorCode::checkpoint,
                  "'{}' has no tensor '{}', which '{}' has; only checkpoints of one model are "
                  "averaged",
                  inputs_[input].path, name, inputs_[other].path);
    return *found;
  }

  void add(const std::vector<TensorIndex>& indexes, const TensorIndex::Key& key, std::size_t tensor,
           std::optional<DType> dtype) {
    std::vector<std::size_t> places{tensor};
    TensorInfo mean = info(0, tensor);
    for (std::size_t i = 1; i < inputs_.size(); ++i) {
      places.push_back(require(indexes[i], i, key.second, 0));
      const TensorInfo& other = info(i, places.back());
      TESSERA_CHECK(other.shape == mean.shape, ErrorCode::checkpoint,
                    "tensor '{}' has the shape {} in '{}' and {} in '{}'; only checkpoints of one "
                    "model are averaged",
                    key.second, describe_shape(mean.shape), inputs_[0].path,
                    describe_shape(other.shape), inputs_[i].path);
      TESSERA_CHECK(is_floating_tensor(other) == is_floating_tensor(mean) &&
                        (is_floating_tensor(mean) || other.stored == mean.stored),
                    ErrorCode::checkpoint, "tensor '{}' is {} in '{}' and {} in '{}'", key.second,
                    mean.stored->name, inputs_[0].path, other.stored->name, inputs_[i].path);
    }
    if (is_floating_tensor(mean) && dtype) mean.stored = &stored_dtype(*dtype);
    contents_.tensors.push_back(std::move(mean));
    places_.push_back(std::move(places));
  }

  void read_mean(std::size_t tensor, std::int64_t first, std::int64_t count, std::byte* out) {
    const std::vector<std::size_t>& places = places_[tensor];
    DType compute = float32;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (*info(i, places[i]).stored->dtype == float64) compute = float64;
    }
    sum_.resize(static_cast<std::size_t>(count) * size_of(compute));
    terms_.resize(sum_.size());
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const DType stored = *info(i, places[i]).stored->dtype;
      raw_.resize(static_cast<std::size_t>(count) * size_of(stored));
      inputs_[i].source->read(places[i], first, count, raw_.data());
      std::vector<std::byte>& to = i == 0 ? sum_ : terms_;
      kernels::cpu::cast({.in = raw_.data(),
                          .out = to.data(),
                          .n = count,
                          .in_dtype = stored,
                          .out_dtype = compute});
      if (i == 0) continue;
      compute == float64 ? add_terms<double>(sum_, terms_, count)
                         : add_terms<float>(sum_, terms_, count);
    }
    compute == float64 ? divide_by<double>(sum_, inputs_.size(), count)
                       : divide_by<float>(sum_, inputs_.size(), count);
    kernels::cpu::cast({.in = sum_.data(),
                        .out = out,
                        .n = count,
                        .in_dtype = compute,
                        .out_dtype = *contents_.tensors[tensor].stored->dtype});
  }

  void read_equal(std::size_t tensor, std::int64_t first, std::int64_t count, std::byte* out) {
    const TensorInfo& whole = contents_.tensors[tensor];
    const std::size_t bytes = static_cast<std::size_t>(count) * (whole.stored->bits / 8);
    raw_.resize(bytes);
    inputs_[0].source->read(places_[tensor][0], first, count, out);
    for (std::size_t i = 1; i < inputs_.size(); ++i) {
      inputs_[i].source->read(places_[tensor][i], first, count, raw_.data());
      TESSERA_CHECK(std::memcmp(raw_.data(), out, bytes) == 0, ErrorCode::checkpoint,
                    "tensor '{}' is {}, of which there is no mean, and differs between '{}' and "
                    "'{}'",
                    whole.name, whole.stored->name, inputs_[0].path, inputs_[i].path);
    }
  }

  std::vector<AveragedInput> inputs_;
  Contents contents_;
  std::vector<std::vector<std::size_t>> places_;  // of each tensor: its index in each input
  std::vector<std::byte> raw_, sum_, terms_;
};

}  // namespace

std::unique_ptr<formats::Source> open_averaged(std::vector<AveragedInput> inputs,
                                               std::optional<DType> dtype) {
  return std::make_unique<AveragedSource>(std::move(inputs), dtype);
}

}  // namespace tessera::checkpoint
