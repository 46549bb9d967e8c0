// Tensors that are joined, divided and padded along dimensions.
#include <algorithm>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/op_checks.h"
#include "engine/ops/strided.h"
#include "engine/tensor_ops.h"

namespace tessera {
namespace {

// A part of a dimension as it lies in the whole.
ops::Strided part_of(const Tensor& whole, int dimension, std::int64_t begin) {
  const auto strides = ops::strides_of(whole.shape());
  return {whole, begin * strides[static_cast<std::size_t>(dimension)], strides};
}
ops::Strided all_of(const Tensor& x) {
  return {x, 0, ops::strides_of(x.shape())};
}

// The parts of x: views of its memory if each is adjacent there, else new tensors.
std::vector<Tensor> parts_of(const Tensor& x, const std::vector<std::int64_t>& sizes,
                             int dimension) {
  const bool adjacent = ops::elements_between(x.shape(), 0, dimension) == 1;
  std::vector<Tensor> parts;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    const Shape shape = ops::with_size(x.shape(), dimension, size);
    const ops::Strided part = part_of(x, dimension, begin);
    if (adjacent) {
      const std::size_t offset = static_cast<std::size_t>(part.offset) * size_of(x.dtype());
      parts.push_back(Tensor::view_of(x.storage(), x.impl()->offset + offset, shape, x.dtype()));
      parts.back().share_version(x);
    } else {
      parts.push_back(Tensor::empty(shape, x.dtype(), x.device()));
      ops::copy_strided(shape, part, all_of(parts.back()));
    }
    begin += size;
  }
  return parts;
}

// `name` is the function that the program called.
std::vector<Tensor> split_as(const char* name, const Tensor& x,
                             const std::vector<std::int64_t>& sizes, int dimension) {
  std::vector<Tensor> parts = parts_of(x, sizes, dimension);
  autograd::record(
      {Op::split, name}, std::span<const Tensor>(&x, 1), parts,
      [whole = x.shape(), sizes, dimension](std::vector<Tensor>& dout,
                                            autograd::GradientSink& sink) {
        const auto some = std::find_if(dout.begin(), dout.end(),
                                       [](const Tensor& part) { return part.defined(); });
        const bool all = std::all_of(dout.begin(), dout.end(),
                                     [](const Tensor& part) { return part.defined(); });
        const Tensor dx = all ? Tensor::empty(whole, some->dtype(), some->device())
                              : Tensor::zeros(whole, some->dtype(), some->device());
        std::int64_t begin = 0;
        for (std::size_t i = 0; i < sizes.size(); begin += sizes[i++]) {
          if (dout[i].defined())
            ops::copy_strided(dout[i].shape(), all_of(dout[i]), part_of(dx, dimension, begin));
        }
        sink.add(0, dx);
      },
      autograd::Reads::nothing);
  return parts;
}

Tensor concatenate_as(const char* name, std::span<const Tensor> parts, int dimension) {
  const Tensor& first = parts.front();
  std::vector<std::int64_t> sizes;
  std::int64_t whole = 0;
  for (const Tensor& part : parts) {
    ops::require_same_device(name, first, part);
    const bool same =
        part.dtype() == first.dtype() && part.dimensions() == first.dimensions() &&
        ops::with_size(part.shape(), dimension, 0) == ops::with_size(first.shape(), dimension, 0);
    TESSERA_REQUIRE(same, "{}: {} {} and {} {} differ in more than dimension {}", name,
                    name_of(first.dtype()), first.shape().to_string(), name_of(part.dtype()),
                    part.shape().to_string(), dimension);
    sizes.push_back(part.size(dimension));
    whole += sizes.back();
  }
  Tensor out =
      Tensor::empty(ops::with_size(first.shape(), dimension, whole), first.dtype(), first.device());
  if (autograd::value_is_needed()) {
    std::int64_t begin = 0;
    for (const Tensor& part : parts) {
      ops::copy_strided(part.shape(), all_of(part), part_of(out, dimension, begin));
      begin += part.size(dimension);
    }
  }
  autograd::record(
      {Op::concatenate, name}, parts, std::span<const Tensor>(&out, 1),
      [sizes, dimension](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        const std::vector<Tensor> gradients = parts_of(dout[0], sizes, dimension);
        for (std::size_t i = 0; i < gradients.size(); ++i)
          sink.add(static_cast<int>(i), gradients[i]);
      },
      autograd::Reads::nothing);
  return out;
}

void require_parts(const char* op, std::span<const Tensor> parts) {
  TESSERA_REQUIRE(!parts.empty(), "{}: no tensors; give at least one", op);
  for (const Tensor& part : parts) ops::require_defined(op, part);
}

}  // namespace

Tensor concatenate(std::span<const Tensor> parts, int dimension) {
  require_parts("concatenate", parts);
  TESSERA_REQUIRE(parts.front().dimensions() > 0,
                  "concatenate of scalars: give them a dimension first");
  return concatenate_as("concatenate", parts,
                        ops::dimension_of("concatenate", parts.front(), dimension));
}

Tensor concatenate(std::initializer_list<Tensor> parts, int dimension) {
  return concatenate(std::span<const Tensor>(parts.begin(), parts.size()), dimension);
}

Tensor concatenate(std::initializer_list<Tensor> parts) {
  return concatenate(parts, 0);
}

Tensor stack(std::span<const Tensor> parts, int dimension) {
  require_parts("stack", parts);
  const int at = ops::dimension_of("stack", parts.front(), dimension, 1);
  std::vector<Tensor> lifted;
  for (const Tensor& part : parts) {
    TESSERA_REQUIRE(part.shape() == parts.front().shape(), "stack: shapes {} and {} differ",
                    parts.front().shape().to_string(), part.shape().to_string());
    lifted.push_back(reshape(part, ops::with_new(part.shape(), at, 1)));
  }
  return concatenate_as("stack", lifted, at);
}

Tensor stack(std::initializer_list<Tensor> parts, int dimension) {
  return stack(std::span<const Tensor>(parts.begin(), parts.size()), dimension);
}

std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, int dimension) {
  ops::require_defined("split", x);
  const int at = ops::dimension_of("split", x, dimension);
  std::int64_t whole = 0;
  for (const std::int64_t size : sizes) {
    TESSERA_REQUIRE(size >= 0, "split: a part of {} elements", size);
    whole += size;
  }
  TESSERA_REQUIRE(whole == x.size(at),
                  "split: parts of {} elements together, in dimension {} of shape {}; together "
                  "they have its {}",
                  whole, dimension, x.shape().to_string(), x.size(at));
  return split_as("split", x, sizes, at);
}

namespace {

std::vector<std::int64_t> equal_sizes(std::int64_t whole, std::int64_t size) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t begin = 0; begin < whole; begin += size)
    sizes.push_back(std::min(size, whole - begin));
  if (sizes.empty()) sizes.push_back(0);
  return sizes;
}

}  // namespace

std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dimension) {
  ops::require_defined("split", x);
  const int at = ops::dimension_of("split", x, dimension);
  TESSERA_REQUIRE(size > 0, "split: parts of {} elements of shape {}; at least 1", size,
                  x.shape().to_string());
  return split_as("split", x, equal_sizes(x.size(at), size), at);
}

std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, int dimension) {
  ops::require_defined("chunk", x);
  const int at = ops::dimension_of("chunk", x, dimension);
  TESSERA_REQUIRE(count > 0, "chunk: {} parts of shape {}; at least 1", count,
                  x.shape().to_string());
  const std::int64_t size = std::max<std::int64_t>(1, (x.size(at) + count - 1) / count);
  return split_as("chunk", x, equal_sizes(x.size(at), size), at);
}

namespace {

// Where the kept elements begin in x and in the padded tensor, and how many there are.
struct PadPlan {
  Shape padded, kept;
  std::int64_t from = 0, to = 0;  // offsets
};

PadPlan pad_plan(const Tensor& x, std::span<const Padding> paddings) {
  const int skipped = x.dimensions() - static_cast<int>(paddings.size());
  TESSERA_REQUIRE(skipped >= 0,
                  "pad: {} paddings for shape {}; one for each of its last dimensions",
                  paddings.size(), x.shape().to_string());
  PadPlan plan{x.shape(), x.shape()};
  for (int i = skipped; i < x.dimensions(); ++i) {
    const auto [before, after] = paddings[static_cast<std::size_t>(i - skipped)];
    plan.padded[i] += before + after;
    plan.kept[i] += std::min<std::int64_t>(before, 0) + std::min<std::int64_t>(after, 0);
    TESSERA_REQUIRE(plan.padded[i] >= 0, "pad: dimension {} of shape {} would have {} elements", i,
                    x.shape().to_string(), plan.padded[i]);
    plan.kept[i] = std::max<std::int64_t>(plan.kept[i], 0);
  }
  const auto x_strides = ops::strides_of(x.shape()), padded_strides = ops::strides_of(plan.padded);
  for (int i = skipped; i < x.dimensions(); ++i) {
    const std::int64_t before = paddings[static_cast<std::size_t>(i - skipped)].before;
    plan.from += std::max<std::int64_t>(-before, 0) * x_strides[static_cast<std::size_t>(i)];
    plan.to += std::max<std::int64_t>(before, 0) * padded_strides[static_cast<std::size_t>(i)];
  }
  return plan;
}

}  // namespace

Tensor pad(const Tensor& x, std::span<const Padding> paddings, double value) {
  ops::require_defined("pad", x);
  const PadPlan plan = pad_plan(x, paddings);
  Tensor out = Tensor::full(plan.padded, value, x.dtype(), x.device());
  const auto inside = ops::strides_of(x.shape()), outside = ops::strides_of(plan.padded);
  ops::copy_strided(plan.kept, {x, plan.from, inside}, {out, plan.to, outside});
  autograd::record(
      Op::pad, {x}, {out},
      [plan, whole = x.shape(), inside, outside](std::vector<Tensor>& dout,
                                                 autograd::GradientSink& sink) {
        const Tensor dx = Tensor::zeros(whole, dout[0].dtype(), dout[0].device());
        ops::copy_strided(plan.kept, {dout[0], plan.to, outside}, {dx, plan.from, inside});
        sink.add(0, dx);
      },
      autograd::Reads::nothing);
  return out;
}

Tensor pad(const Tensor& x, std::initializer_list<Padding> paddings, double value) {
  return pad(x, std::span<const Padding>(paddings.begin(), paddings.size()), value);
}

}  // namespace tessera
