// Converts moments block by block while they are read.
#include "checkpoint/narrow/moments_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/eight_bit.h"
#include "base/error.h"
#include "engine/optim/adamw_8bit.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {
namespace {

using formats::Contents;
using formats::Part;
using formats::TensorInfo;

const std::int64_t least_elements = optim::AdamW8BitOptions{}.min_8bit_size;
// Blocks that are converted at a time. Codes and scales lie in one file, whose checksums are those
// of large chunks: short reads in turns would verify a chunk for each of them.
constexpr std::int64_t blocks_of_run = 4096;
constexpr std::int64_t run_elements = blocks_of_run * eight_bit_block;

// A moment of AdamW, and the two tensors of AdamW8Bit in its place.
struct Moment {
  std::string_view numbers, codes, scales;
  const EightBitMap& (*map)();
};
constexpr std::array moments = {
    Moment{"exp_avg", "exp_avg_8bit", "exp_avg_scale", signed_eight_bit_map},
    Moment{"exp_avg_sq", "exp_avg_sq_8bit", "exp_avg_sq_scale", unsigned_eight_bit_map},
};

std::int64_t elements_of(const TensorInfo& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.shape) count *= size;
  return count;
}

std::int64_t blocks_of(std::int64_t elements) {
  return (elements + eight_bit_block - 1) / eight_bit_block;
}

class MomentsSource final : public formats::Source {
 public:
  MomentsSource(std::unique_ptr<formats::Source> source, Moments wanted)
      : source_(std::move(source)), contents_(source_->contents()) {
    const std::vector<TensorInfo> all = std::move(contents_.tensors);
    contents_.tensors.clear();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].part == Part::optimizer) places_of_[all[i].name] = i;
    }
    if (wanted == Moments::eight_bit) refuse_other_states(all);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool converted =
          wanted == Moments::fp32 ? add_numbers(all[i], i) : add_codes(all[i], i);
      if (!converted) add(all[i], {Kind::same, i});
    }
    TESSERA_CHECK(converted_ > 0, ErrorCode::checkpoint,
                  "--moments {}: the checkpoint has no moments of {}",
                  wanted == Moments::fp32 ? "fp32" : "8bit",
                  wanted == Moments::fp32
                      ? "8 bits"
                      : fmt::format("AdamW for parameters of {} elements or more", least_elements));
    contents_.notes.push_back(fmt::format("{} of AdamW became {}", counted(converted_, "moment"),
                                          wanted == Moments::fp32
                                              ? "fp32 numbers"
                                              : "codes of 8 bits with scales, and were rounded"));
  }

  [[nodiscard]] const Contents& contents() const override { return contents_; }

  void read(std::size_t tensor, std::int64_t first, std::int64_t count, std::byte* data) override {
    const Place& place = places_[tensor];
    if (place.kind == Kind::same) return source_->read(place.source, first, count, data);
    const std::int64_t block = place.kind == Kind::scales ? 1 : eight_bit_block;
    const std::int64_t end = first + count;
    const auto element =
        static_cast<std::int64_t>(size_of(*contents_.tensors[tensor].stored->dtype));
    for (std::int64_t at = first; at < end;) {
      const std::int64_t number = at / block;
      const std::int64_t blocks = std::min(blocks_of_run, (end - 1) / block + 1 - number);
      const std::int64_t skipped = at - number * block;
      const std::int64_t taken = std::min(blocks * block - skipped, end - at);
      const std::byte* const from = converted(place, number, blocks) + skipped * element;
      std::memcpy(data + (at - first) * element, from, static_cast<std::size_t>(taken * element));
      at += taken;
    }
  }

  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) override {
    return source_->verify(progress);
  }

 private:
  enum class Kind : std::uint8_t { same, numbers, codes, scales };
  struct Place {
    Kind kind = Kind::same;
    std::size_t source = 0;  // of the numbers, or of the codes
    std::size_t scales = 0;  // for Kind::numbers
    const Moment* moment = nullptr;
    std::int64_t elements = 0;  // of the parameter
  };

  // adamw8bit has two moments, and no place for other state: the result would not load any more.
  void refuse_other_states(const std::vector<TensorInfo>& all) const {
    for (const TensorInfo& tensor : all) {
      if (tensor.part != Part::optimizer) continue;
      bool is_moment = false;
      for (const Moment& moment : moments) {
        TESSERA_CHECK(parameter_of(tensor, moment.codes).empty(), ErrorCode::checkpoint,
                      "--moments 8bit: the checkpoint has moments of 8 bits already ('{}')",
                      tensor.name);
        is_moment = is_moment || has_moments(parameter_of(tensor, moment.numbers));
      }
      TESSERA_CHECK(is_moment, ErrorCode::checkpoint,
                    "--moments 8bit: adamw8bit has no place for '{}', which is not one of a "
                    "parameter's two moments of AdamW",
                    tensor.name);
    }
  }

  // True if a parameter has both moments, as numbers.
  [[nodiscard]] bool has_moments(std::string_view parameter) const {
    return !parameter.empty() &&
           std::all_of(moments.begin(), moments.end(), [&](const Moment& one) {
             return places_of_.contains(joined(parameter, one.numbers));
           });
  }

  void add(TensorInfo info, Place place) {
    contents_.tensors.push_back(std::move(info));
    places_.push_back(place);
  }

  // The parameter's name if the tensor is its state `key`; empty: it is not.
  static std::string_view parameter_of(const TensorInfo& tensor, std::string_view key) {
    const std::string_view name = tensor.name;
    const bool is_state = tensor.part == Part::optimizer && name.size() > key.size() + 1 &&
                          name.ends_with(key) && name[name.size() - key.size() - 1] == '.';
    return is_state ? name.substr(0, name.size() - key.size() - 1) : std::string_view();
  }

  static std::string joined(std::string_view parameter, std::string_view key) {
    return fmt::format("{}.{}", parameter, key);
  }

  bool add_codes(const TensorInfo& tensor, std::size_t index) {
    for (const Moment& moment : moments) {
      const std::string_view parameter = parameter_of(tensor, moment.numbers);
      const bool has_both = has_moments(parameter);
      const auto dtype = tensor.stored->dtype;
      const std::int64_t elements = elements_of(tensor);
      const bool fits = dtype && (*dtype == float32 || *dtype == bfloat16 || *dtype == float16);
      if (!has_both || !fits || elements < least_elements) continue;
      TensorInfo codes = tensor;
      codes.name = joined(parameter, moment.codes);
      codes.stored = &stored_dtype(uint8);
      TensorInfo scales = tensor;
      scales.name = joined(parameter, moment.scales);
      scales.stored = &stored_dtype(float32);
      scales.shape = {blocks_of(elements)};
      add(std::move(codes), {Kind::codes, index, 0, &moment, elements});
      add(std::move(scales), {Kind::scales, index, 0, &moment, elements});
      ++converted_;
      return true;
    }
    return false;
  }

  bool add_numbers(const TensorInfo& tensor, std::size_t index) {
    for (const Moment& moment : moments) {
      if (!parameter_of(tensor, moment.scales).empty()) return true;  // read with its codes
      const std::string_view parameter = parameter_of(tensor, moment.codes);
      if (parameter.empty()) continue;
      const auto scales = places_of_.find(joined(parameter, moment.scales));
      const std::int64_t elements = elements_of(tensor);
      TESSERA_CHECK(
          scales != places_of_.end() && tensor.stored->dtype == uint8 &&
              elements_of(source_->contents().tensors[scales->second]) == blocks_of(elements),
          ErrorCode::checkpoint,
          "'{}' has no scale for each {} elements: the checkpoint is damaged", tensor.name,
          eight_bit_block);
      TensorInfo numbers = tensor;
      numbers.name = joined(parameter, moment.numbers);
      numbers.stored = &stored_dtype(float32);
      add(std::move(numbers), {Kind::numbers, index, scales->second, &moment, elements});
      ++converted_;
      return true;
    }
    return false;
  }

  // These blocks in the form of the place. The memory is valid until the next call.
  const std::byte* converted(const Place& place, std::int64_t block, std::int64_t blocks) {
    const std::int64_t first = block * eight_bit_block;
    const std::int64_t count = std::min(blocks * eight_bit_block, place.elements - first);
    const EightBitMap& map = place.moment->map();
    const auto for_blocks = [&](const auto& convert) {
      for (std::int64_t i = 0; i < blocks; ++i) {
        const std::int64_t at = i * eight_bit_block;
        convert(i, at, std::min(eight_bit_block, count - at));
      }
    };
    if (place.kind == Kind::numbers) {
      source_->read(place.source, first, count, reinterpret_cast<std::byte*>(codes_.data()));
      source_->read(place.scales, block, blocks, reinterpret_cast<std::byte*>(scales_.data()));
      for_blocks([&](std::int64_t i, std::int64_t at, std::int64_t n) {
        decode_eight_bit(map, codes_.data() + at, scales_[static_cast<std::size_t>(i)], n,
                         numbers_.data() + at);
      });
      return reinterpret_cast<const std::byte*>(numbers_.data());
    }
    const DType stored = *source_->contents().tensors[place.source].stored->dtype;
    source_->read(place.source, first, count, raw_.data());
    kernels::cpu::cast({.in = raw_.data(),
                        .out = numbers_.data(),
                        .n = count,
                        .in_dtype = stored,
                        .out_dtype = float32});
    for_blocks([&](std::int64_t i, std::int64_t at, std::int64_t n) {
      scales_[static_cast<std::size_t>(i)] =
          encode_eight_bit(map, numbers_.data() + at, n, codes_.data() + at);
    });
    return place.kind == Kind::scales ? reinterpret_cast<const std::byte*>(scales_.data())
                                      : reinterpret_cast<const std::byte*>(codes_.data());
  }

  std::unique_ptr<formats::Source> source_;
  Contents contents_;
  std::map<std::string, std::size_t, std::less<>> places_of_;  // of the source's optimizer state
  std::vector<Place> places_;                                  // of each tensor
  std::size_t converted_ = 0;
  // The memory of a run.
  std::vector<std::uint8_t> codes_ = std::vector<std::uint8_t>(run_elements);
  std::vector<float> numbers_ = std::vector<float>(run_elements);
  std::vector<std::byte> raw_ = std::vector<std::byte>(run_elements * sizeof(float));
  std::vector<float> scales_ = std::vector<float>(blocks_of_run);
};

}  // namespace

std::unique_ptr<formats::Source> open_with_moments(std::unique_ptr<formats::Source> source,
                                                   Moments wanted) {
  return std::make_unique<MomentsSource>(std::move(source), wanted);
}

}  // namespace tessera::checkpoint
