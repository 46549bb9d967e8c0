// Quantises weights while they are read.
#include "checkpoint/narrow/quantized_base.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/load/quantizing_reader.h"
#include "engine/nn/output_head.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {
namespace {

using formats::Contents;
using formats::Part;
using formats::TensorInfo;

constexpr std::int64_t numbers_at_a_time = std::int64_t{1} << 17;
constexpr std::string_view end_of_weights = ".weight";

bool is_end_of(std::string_view end, std::string_view whole) {
  return whole.size() > end.size() && whole.ends_with(end) &&
         whole[whole.size() - end.size() - 1] == '.';
}

// Names in a file may lack a prefix of the model's.
bool is_layer(const std::map<std::string, bool>& layers, std::string_view name) {
  if (!name.ends_with(end_of_weights)) return false;
  if (nn::is_output_head(name.substr(0, name.size() - end_of_weights.size()))) return false;
  return std::any_of(layers.begin(), layers.end(), [&](const auto& layer) {
    return layer.first == name || is_end_of(layer.first, name) || is_end_of(name, layer.first);
  });
}

class QuantizedBase final : public NumbersOfCodes {
 public:
  QuantizedBase(std::unique_ptr<formats::Source> base, QuantizedFormat format,
                const std::map<std::string, bool>& layers)
      : base_(std::move(base)), format_(format), contents_(base_->contents()) {
    std::size_t quantized = 0;
    for (const TensorInfo& tensor : contents_.tensors) {
      const bool floats = tensor.stored->dtype && is_floating(*tensor.stored->dtype);
      const auto& shape = tensor.shape;
      of_layer_.push_back(tensor.part == Part::model && floats && shape.size() == 2 &&
                          can_quantize(shape[0], shape[1]) && is_layer(layers, tensor.name));
      quantized += of_layer_.back() ? 1 : 0;
    }
    TESSERA_CHECK(
        quantized > 0, ErrorCode::configuration,
        "the adapter was trained over a base in {}, and the base here has no linear layers "
        "that Tessera knows",
        name_of(format));
    contents_.notes.push_back(fmt::format(
        "{} weights of the base are the numbers of {} that the adapter was trained over", quantized,
        name_of(format)));
  }

  [[nodiscard]] const Contents& contents() const override { return contents_; }

  void read(std::size_t tensor, std::int64_t first, std::int64_t count, std::byte* data) override {
    if (!of_layer_[tensor]) return base_->read(tensor, first, count, data);
    const DType stored = *contents_.tensors[tensor].stored->dtype;
    std::vector<float> numbers(static_cast<std::size_t>(std::min(count, numbers_at_a_time)));
    for (std::int64_t done = 0; done < count; done += numbers_at_a_time) {
      const std::int64_t n = std::min(numbers_at_a_time, count - done);
      read_numbers(tensor, first + done, n, numbers.data());
      kernels::cpu::cast({.in = numbers.data(),
                          .out = data + static_cast<std::size_t>(done) * size_of(stored),
                          .n = n,
                          .in_dtype = float32,
                          .out_dtype = stored});
    }
  }

  [[nodiscard]] bool is_of_codes(std::size_t tensor) const override { return of_layer_[tensor]; }

  void read_numbers(std::size_t tensor, std::int64_t first, std::int64_t count,
                    float* numbers) override {
    if (open_ != tensor) {
      const TensorInfo& info = contents_.tensors[tensor];
      open_ = tensor;
      reader_.emplace(info.name, QuantizedFrom{format_, info.shape}, *info.stored->dtype,
                      [this, tensor](std::int64_t begin, std::int64_t n, std::byte* out) {
                        base_->read(tensor, begin, n, out);
                      });
    }
    reader_->read_numbers(first, count, numbers);
  }

  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) override {
    return base_->verify(progress);
  }

 private:
  std::unique_ptr<formats::Source> base_;
  QuantizedFormat format_;
  Contents contents_;
  std::vector<bool> of_layer_;  // for each tensor
  std::optional<std::size_t> open_;
  std::optional<QuantizingReader> reader_;  // of that tensor
};

}  // namespace

std::unique_ptr<NumbersOfCodes> open_numbers_of_codes(std::unique_ptr<formats::Source> base,
                                                      QuantizedFormat format,
                                                      const std::map<std::string, bool>& layers) {
  return std::make_unique<QuantizedBase>(std::move(base), format, layers);
}

}  // namespace tessera::checkpoint
