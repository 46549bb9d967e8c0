// Finds the tensor that each adapter is for, and merges its product during reads.
#include "checkpoint/convert/merged_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/convert/plan.h"
#include "checkpoint/load/adapter_product.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/load/peft.h"
#include "checkpoint/narrow/quantized_base.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using formats::Contents;
using formats::Part;
using formats::TensorInfo;

constexpr std::int64_t merge_slice = 1 << 16;  // elements

bool ends_after_dot(std::string_view name, std::string_view end) {
  return name.ends_with(end) && name.size() > end.size() &&
         name[name.size() - end.size() - 1] == '.';
}

class MergedSource final : public formats::Source {
 public:
  MergedSource(const fs::path& adapter, std::unique_ptr<formats::Source> base,
               std::map<std::string, bool> lies_in_out)
      : lies_in_out_(std::move(lies_in_out)),
        folder_(adapter.string()),
        config_(read_peft_config(folder_)),
        opened_(open_peft(folder_)),
        base_(std::move(base)),
        codes_(dynamic_cast<NumbersOfCodes*>(base_.get())) {
    keep_weights();
    std::map<std::string, AdapterTensors> layers;
    for (PeftTensor& tensor : list_peft_tensors(opened_, config_)) {
      switch (tensor.kind) {
        case PeftTensor::Kind::other:
          add_saved(tensor);
          break;
        case PeftTensor::Kind::factor_a:
          layers[layer_of(tensor)].a = std::move(tensor);
          break;
        case PeftTensor::Kind::factor_b:
          layers[layer_of(tensor)].b = std::move(tensor);
          break;
        case PeftTensor::Kind::magnitude:
          layers[layer_of(tensor)].magnitude = std::move(tensor);
          break;
      }
    }
    for (auto& [layer, found] : layers) add_layer(layer, std::move(found));
    contents_.notes.push_back(
        fmt::format("{} adapters of {} merged from {}", of_tensor_.size(), ranks(), folder_));
    if (!saved_.empty()) {
      contents_.notes.push_back(fmt::format("{} of modules_to_save replaced those of the base",
                                            counted(saved_.size(), "tensor")));
    }
    if (std::error_code error; std::filesystem::is_directory(adapter / "classifier", error)) {
      contents_.notes.push_back(fmt::format(
          "the classifier that was trained with them is not part of the model and stays in {}",
          (adapter / "classifier").string()));
    }
  }

  [[nodiscard]] const Contents& contents() const override { return contents_; }

  void read(std::size_t tensor, std::int64_t first, std::int64_t count, std::byte* data) override {
    if (const auto saved = saved_.find(tensor); saved != saved_.end()) {
      return read_saved(saved->second, *contents_.tensors[tensor].stored->dtype, first, count,
                        data);
    }
    const std::size_t in_base = index_in_base_[tensor];
    const auto found = of_tensor_.find(tensor);
    if (found == of_tensor_.end()) return base_->read(in_base, first, count, data);
    load_product(found->first, found->second);
    const DType stored = *contents_.tensors[tensor].stored->dtype;
    std::vector<float> values(static_cast<std::size_t>(std::min(count, merge_slice)));
    for (std::int64_t done = 0; done < count; done += merge_slice) {
      const std::int64_t n = std::min(merge_slice, count - done);
      std::byte* const place = data + static_cast<std::size_t>(done) * size_of(stored);
      read_base(in_base, first + done, n, stored, place, values.data());
      product_->merge(first + done, n, values.data());
      kernels::cpu::cast({.in = reinterpret_cast<std::byte*>(values.data()),
                          .out = place,
                          .n = n,
                          .in_dtype = float32,
                          .out_dtype = stored});
    }
  }

  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) override {
    return base_->verify(progress);  // the adapter's files were verified when they were opened
  }

 private:
  // As fp32. The numbers of codes are not rounded to the stored dtype before the product is added.
  void read_base(std::size_t tensor, std::int64_t first, std::int64_t n, DType stored,
                 std::byte* raw, float* values) {
    if (codes_ != nullptr && codes_->is_of_codes(tensor)) {
      return codes_->read_numbers(tensor, first, n, values);
    }
    base_->read(tensor, first, n, raw);
    kernels::cpu::cast({.in = raw,
                        .out = reinterpret_cast<std::byte*>(values),
                        .n = n,
                        .in_dtype = stored,
                        .out_dtype = float32});
  }

  // Keeps the model's part of the base: moments and position belong to the base's own training.
  void keep_weights() {
    const Contents& all = base_->contents();
    contents_.files = all.files;
    contents_.aliases = all.aliases;
    contents_.notes = all.notes;
    contents_.texts = all.texts;
    for (std::size_t i = 0; i < all.tensors.size(); ++i) {
      if (all.tensors[i].part != Part::model) continue;
      contents_.tensors.push_back(all.tensors[i]);
      index_in_base_.push_back(i);
    }
  }

  // "rank 8", or "ranks 4 to 8" with a pattern of ranks.
  [[nodiscard]] std::string ranks() const {
    const auto [least, most] = std::minmax_element(
        of_tensor_.begin(), of_tensor_.end(),
        [](const auto& a, const auto& b) { return a.second.rank < b.second.rank; });
    if (least == of_tensor_.end()) return fmt::format("rank {}", config_.rank);
    const std::int64_t low = least->second.rank, high = most->second.rank;
    return low == high ? fmt::format("rank {}", low) : fmt::format("ranks {} to {}", low, high);
  }

  // Finds a tensor by its own name, or by one with or without a prefix: a model without its head.
  [[nodiscard]] std::size_t find_tensor(const std::string& wanted) const {
    std::vector<std::size_t> similar;
    for (std::size_t i = 0; i < contents_.tensors.size(); ++i) {
      const std::string& name = contents_.tensors[i].name;
      if (name == wanted) return i;
      if (ends_after_dot(name, wanted) || ends_after_dot(wanted, name)) similar.push_back(i);
    }
    TESSERA_CHECK(similar.size() == 1, ErrorCode::checkpoint,
                  "{}: it is for '{}', and the base has {} tensors of that name; it was made for "
                  "another model",
                  folder_, wanted, similar.empty() ? "no" : "several");
    return similar.front();
  }

  // `lies_in_out_` decides. For a model that this library does not build, the shape decides, and
  // for a square weight, the adapter's config.
  [[nodiscard]] bool lies_in_out(const TensorInfo& weight, std::int64_t in,
                                 std::int64_t out) const {
    if (const auto found = lies_in_out_.find(weight.name); found != lies_in_out_.end()) {
      return found->second;
    }
    for (const auto& [name, in_out] : lies_in_out_) {
      if (ends_after_dot(name, weight.name) || ends_after_dot(weight.name, name)) {
        return in_out;
      }
    }
    if (in != out && weight.shape == std::vector{in, out}) return true;
    if (in != out && weight.shape == std::vector{out, in}) return false;
    return config_.fan_in_fan_out;
  }

  void add_layer(const std::string& layer, AdapterTensors adapter) {
    TESSERA_CHECK(adapter.a && adapter.b, ErrorCode::checkpoint,
                  "{}: '{}' has only one of its factors", folder_, layer);
    const auto& a = adapter.a->shape;
    const auto& b = adapter.b->shape;
    adapter.rank = config_.rank_of(layer);
    adapter.scaling = static_cast<float>(config_.scaling_of(layer));
    TESSERA_CHECK(
        a.size() == 2 && b.size() == 2 && a[0] == adapter.rank && b[1] == adapter.rank,
        ErrorCode::checkpoint,
        "{}: the factors of '{}' are not of rank {}, which r and rank_pattern of its {} give it",
        folder_, layer, adapter.rank, peft_config_file);
    TESSERA_CHECK(!adapter.magnitude || adapter.magnitude->shape == std::vector{b[0]},
                  ErrorCode::checkpoint, "{}: '{}' has shape [{}] for a layer of {} outputs",
                  folder_, adapter.magnitude->name, fmt::join(adapter.magnitude->shape, ", "),
                  b[0]);
    const std::size_t tensor = find_tensor(layer + ".weight");
    const TensorInfo& weight = contents_.tensors[tensor];
    adapter.in_out = lies_in_out(weight, a[1], b[0]);
    const std::vector<std::int64_t> wanted =
        adapter.in_out ? std::vector{a[1], b[0]} : std::vector{b[0], a[1]};
    TESSERA_CHECK(
        weight.shape == wanted, ErrorCode::checkpoint,
        "{}: the adapter of '{}' is for a weight [{}, {}], but the base's has another shape",
        folder_, layer, wanted[0], wanted[1]);
    TESSERA_CHECK(weight.stored->dtype && is_floating(*weight.stored->dtype), ErrorCode::checkpoint,
                  "'{}' is stored as {}, which is not a floating dtype", weight.name,
                  weight.stored->name);
    TESSERA_CHECK(!saved_.contains(tensor) && of_tensor_.emplace(tensor, std::move(adapter)).second,
                  ErrorCode::checkpoint, "{}: two adapters for '{}'", folder_, weight.name);
  }

  // A parameter of a module that was trained beside the adapters takes the place of the base's.
  void add_saved(const PeftTensor& saved) {
    const std::string name = saved.name.substr(peft_prefix.size());
    refuse_tied(name);
    const std::size_t tensor = find_tensor(name);
    const TensorInfo& info = contents_.tensors[tensor];
    const StoredWeight& stored = opened_.tensors.at(saved.name);
    TESSERA_CHECK(info.shape == saved.shape, ErrorCode::checkpoint,
                  "{}: '{}' of its modules_to_save has shape [{}], and the base's is [{}]; give "
                  "the base that it was trained over",
                  folder_, name, fmt::join(saved.shape, ", "), fmt::join(info.shape, ", "));
    for (const StoredDType* dtype : {info.stored, stored.entry->stored}) {
      TESSERA_CHECK(dtype->dtype && is_floating(*dtype->dtype), ErrorCode::checkpoint,
                    "{}: '{}' of its modules_to_save is stored as {}, which is not a floating "
                    "dtype",
                    folder_, name, dtype->name);
    }
    TESSERA_CHECK(saved_.emplace(tensor, stored).second, ErrorCode::checkpoint,
                  "{}: two tensors for '{}'", folder_, info.name);
  }

  // In a merged model head and table are one tensor or two, and its config.json says which.
  void refuse_tied(const std::string& name) const {
    const auto ends_with = [&](const char* end) {
      return name == end || ends_after_dot(name, end);
    };
    if (!ends_with("lm_head.weight") && !ends_with("wte.weight") &&
        !ends_with("embed_tokens.weight")) {
      return;
    }
    const auto& tensors = contents_.tensors;
    const bool has_head = std::any_of(tensors.begin(), tensors.end(), [](const TensorInfo& tensor) {
      return tensor.name == "lm_head.weight" || ends_after_dot(tensor.name, "lm_head.weight");
    });
    TESSERA_CHECK(!ties_head(contents_).value_or(!has_head), ErrorCode::configuration,
                  "{}: '{}' of its modules_to_save is a copy that is not tied, and the base's "
                  "config.json ties its head to its token table; merge it with PEFT, which unties "
                  "them, or train it over a base with tie_word_embeddings = false",
                  folder_, name);
  }

  static void read_saved(const StoredWeight& saved, DType wanted, std::int64_t first,
                         std::int64_t count, std::byte* data) {
    const DType dtype = *saved.entry->stored->dtype;
    if (dtype == wanted) return saved.read(first, count, data);
    std::vector<std::byte> raw(static_cast<std::size_t>(std::min(count, merge_slice)) *
                               size_of(dtype));
    for (std::int64_t done = 0; done < count; done += merge_slice) {
      const std::int64_t n = std::min(merge_slice, count - done);
      saved.read(first + done, n, raw.data());
      kernels::cpu::cast({.in = raw.data(),
                          .out = data + static_cast<std::size_t>(done) * size_of(wanted),
                          .n = n,
                          .in_dtype = dtype,
                          .out_dtype = wanted});
    }
  }

  void load_product(std::size_t tensor, const AdapterTensors& adapter) {
    if (loaded_ == tensor) return;
    loaded_.reset();
    product_.emplace(folder_, opened_, adapter);
    if (product_->needs_norms()) {
      const std::size_t in_base = index_in_base_[tensor];
      const DType stored = *contents_.tensors[tensor].stored->dtype;
      std::vector<std::byte> raw;
      product_->find_norms([&](std::int64_t first, std::int64_t count, float* values) {
        raw.resize(static_cast<std::size_t>(count) * size_of(stored));
        read_base(in_base, first, count, stored, raw.data(), values);
      });
    }
    loaded_ = tensor;
  }

  const std::map<std::string, bool> lies_in_out_;  // by weight, in its model's names
  std::string folder_;
  PeftConfig config_;
  HuggingFaceFolder opened_;
  std::unique_ptr<formats::Source> base_;
  NumbersOfCodes* codes_;  // base_, if the adapter was trained over codes
  Contents contents_;
  std::vector<std::size_t> index_in_base_;
  std::map<std::size_t, AdapterTensors> of_tensor_;
  std::map<std::size_t, StoredWeight> saved_;
  std::optional<std::size_t> loaded_;  // the tensor whose product is loaded
  std::optional<AdapterProduct> product_;
};

}  // namespace

std::unique_ptr<formats::Source> open_merged(const fs::path& adapter,
                                             std::unique_ptr<formats::Source> base,
                                             std::map<std::string, bool> lies_in_out) {
  return std::make_unique<MergedSource>(adapter, std::move(base), std::move(lies_in_out));
}

}  // namespace tessera::checkpoint
