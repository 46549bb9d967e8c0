// Both checkpoints are opened as a conversion opens its source. Elements are compared in fp64, and
// those of int64 exactly, a block at a time.
#include "checkpoint/convert/diff.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "checkpoint/convert/names.h"
#include "checkpoint/safetensors/safetensors.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t compared_elements = std::int64_t{1} << 17;  // at a time

using TensorKey = TensorIndex::Key;

struct OpenedCheckpoint {
  fs::path path;
  const formats::Format* format = nullptr;
  std::unique_ptr<formats::Source> source;
  TensorIndex index;

  [[nodiscard]] const formats::TensorInfo& info(std::size_t tensor) const {
    return source->contents().tensors[tensor];
  }
};

OpenedCheckpoint open_checkpoint(const fs::path& given, bool weights_only) {
  const fs::path path = step_of_run(given);
  const formats::Format& format = formats::recognise(path);
  auto source = format.open(path);
  TensorIndex index(source->contents(), weights_only, path.string());
  return {path, &format, std::move(source), std::move(index)};
}

std::string describe_tensor(const formats::TensorInfo& tensor) {
  return fmt::format("{} {}", tensor.stored->name, describe_shape(tensor.shape));
}

double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double difference = std::fabs(a - b);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

std::int64_t integer_at(const std::vector<std::byte>& raw, std::size_t i) {
  std::int64_t value = 0;
  std::memcpy(&value, raw.data() + i * sizeof value, sizeof value);
  return value;
}

// Exact, unlike the difference of the two in fp64.
double distance(std::int64_t a, std::int64_t b) {
  const auto larger = static_cast<std::uint64_t>(std::max(a, b));
  return static_cast<double>(larger - static_cast<std::uint64_t>(std::min(a, b)));
}

// The same for a number that may have a fraction, or lie beyond all of int64.
double distance(std::int64_t a, double b) {
  constexpr double end = 0x1p63;
  if (!std::isfinite(b)) return std::numeric_limits<double>::infinity();
  const auto to_end = [](std::uint64_t from, std::uint64_t to) {
    return static_cast<double>(to - from);
  };
  const auto bits = static_cast<std::uint64_t>(a);
  constexpr std::uint64_t least = std::uint64_t{1} << 63;  // of int64, and minus that
  if (b >= end) return (b - end) + to_end(bits, least);
  if (b < -end) return (-end - b) + to_end(least, bits);
  const double whole = std::floor(b);
  const auto integer = static_cast<std::int64_t>(whole);
  const double fraction = b - whole;
  return a > integer ? distance(a, integer) - fraction : distance(a, integer) + fraction;
}

class Comparison {
 public:
  Comparison(OpenedCheckpoint& first, OpenedCheckpoint& second, const DiffOptions& options)
      : first_(first), second_(second), options_(options) {}

  std::vector<TensorDiff> run() {
    std::map<TensorKey, bool> keys;
    for (const OpenedCheckpoint* opened : {&first_, &second_}) {
      for (const auto& entry : opened->index.tensors()) keys[entry.first] = true;
    }
    for (const auto& entry : keys) {
      const auto a = first_.index.find(entry.first);
      const auto b = second_.index.find(entry.first);
      if (a && b) total_ += bytes_in(first_, *a) + bytes_in(second_, *b);
    }
    std::vector<TensorDiff> tensors;
    for (const auto& entry : keys) tensors.push_back(compare(entry.first));
    return tensors;
  }

 private:
  static std::uint64_t bytes_in(const OpenedCheckpoint& opened, std::size_t tensor) {
    const formats::TensorInfo& info = opened.info(tensor);
    return static_cast<std::uint64_t>(element_count(info.shape, info.name)) * info.stored->bits / 8;
  }

  TensorDiff compare(const TensorKey& key) {
    TensorDiff result;
    result.part = key.first;
    result.name = key.second;
    const auto a = first_.index.find(key);
    const auto b = second_.index.find(key);
    if (a) result.first = describe_tensor(first_.info(*a));
    if (b) result.second = describe_tensor(second_.info(*b));
    if (!a || !b) {
      result.difference = a ? Difference::only_in_first : Difference::only_in_second;
    } else if (first_.info(*a).shape != second_.info(*b).shape) {
      result.difference = Difference::shape;
    } else {
      compare_values(*a, *b, result);
      // Not `largest > tolerance`: a tolerance that is not a number accepts nothing.
      if (!(result.largest <= options_.tolerance)) result.difference = Difference::values;
    }
    return result;
  }

  void compare_values(std::size_t a, std::size_t b, TensorDiff& result) {
    const std::int64_t elements = element_count(first_.info(a).shape, result.name);
    // fp64 holds all numbers but those of int64.
    const bool wide_left = first_.info(a).stored->dtype == DType::int64;
    const bool wide_right = second_.info(b).stored->dtype == DType::int64;
    for (std::int64_t first = 0; first < elements; first += compared_elements) {
      if (options_.stop && options_.stop()) fail(ErrorCode::runtime, "stopped");
      const std::int64_t count = std::min(compared_elements, elements - first);
      read_block(first_, a, first, count, left_, left_raw_);
      read_block(second_, b, first, count, right_, right_raw_);
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        result.first_norm += left_[i] * left_[i];
        result.second_norm += right_[i] * right_[i];
        const double apart = wide_left && wide_right
                                 ? distance(integer_at(left_raw_, i), integer_at(right_raw_, i))
                             : wide_left  ? distance(integer_at(left_raw_, i), right_[i])
                             : wide_right ? distance(integer_at(right_raw_, i), left_[i])
                                          : distance(left_[i], right_[i]);
        result.largest = std::max(result.largest, apart);
      }
      if (options_.progress) options_.progress({"comparing", done_, total_});
    }
    result.first_norm = std::sqrt(result.first_norm);
    result.second_norm = std::sqrt(result.second_norm);
  }

  void read_block(OpenedCheckpoint& opened, std::size_t tensor, std::int64_t first,
                  std::int64_t count, std::vector<double>& values, std::vector<std::byte>& raw) {
    const formats::TensorInfo& info = opened.info(tensor);
    TESSERA_CHECK(info.stored->dtype.has_value(), ErrorCode::checkpoint,
                  "'{}': tensor '{}' is {}, whose elements are not compared", opened.path.string(),
                  info.name, info.stored->name);
    const DType dtype = *info.stored->dtype;
    raw.resize(static_cast<std::size_t>(count) * size_of(dtype));
    values.resize(static_cast<std::size_t>(count));
    opened.source->read(tensor, first, count, raw.data());
    kernels::cpu::cast({.in = raw.data(),
                        .out = values.data(),
                        .n = count,
                        .in_dtype = dtype,
                        .out_dtype = DType::float64});
    done_ += raw.size();
  }

  OpenedCheckpoint& first_;
  OpenedCheckpoint& second_;
  const DiffOptions& options_;
  std::vector<std::byte> left_raw_, right_raw_;
  std::vector<double> left_, right_;
  std::uint64_t done_ = 0, total_ = 0;
};

}  // namespace

const char* name_of(Difference difference) {
  switch (difference) {
    case Difference::none:
      return "equal";
    case Difference::only_in_first:
      return "only in the first";
    case Difference::only_in_second:
      return "only in the second";
    case Difference::shape:
      return "other shape";
    case Difference::values:
      return "other values";
  }
  return "unknown";
}

DiffReport diff(const fs::path& first, const fs::path& second, const DiffOptions& options) {
  OpenedCheckpoint a = open_checkpoint(first, options.weights_only);
  OpenedCheckpoint b = open_checkpoint(second, options.weights_only);
  DiffReport report{a.path.string(), a.format->name, b.path.string(), b.format->name, {}, 0};
  report.tensors = Comparison(a, b, options).run();
  for (const TensorDiff& tensor : report.tensors) {
    report.different += tensor.difference == Difference::none ? 0 : 1;
  }
  return report;
}

}  // namespace tessera::checkpoint
