// Convolutions by matrix products with columns of windows.
#include "engine/ops/products/convolution.h"

#include <algorithm>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops.h"

namespace tessera {
namespace {

constexpr std::int64_t most_column_bytes = std::int64_t{32} << 20;
// A product for each of so many groups, and beyond them one for each sample.
constexpr std::int64_t most_groups_one_by_one = 8;

// All numbers of a call. `windows` are those of one sample.
struct Convolution {
  kernels::WindowShape windows;
  std::int64_t samples, channels, outputs, groups;
  DType dtype;

  // The sizes of a group's products, [outputs, depth] x [depth, places].
  [[nodiscard]] std::int64_t group_outputs() const { return outputs / groups; }
  [[nodiscard]] std::int64_t depth() const {
    return channels / groups * windows.kernel[0] * windows.kernel[1];
  }
  [[nodiscard]] std::int64_t places() const { return windows.windows(); }
  // The columns of a sample are the sample itself.
  [[nodiscard]] bool reads_in_place() const {
    const kernels::WindowShape& w = windows;
    return w.kernel[0] * w.kernel[1] == 1 && w.stride[0] == 1 && w.stride[1] == 1 &&
           w.padding[0] == 0 && w.padding[1] == 0;
  }
  [[nodiscard]] std::int64_t samples_at_once() const {
    if (reads_in_place()) return std::max<std::int64_t>(samples, 1);
    const auto bytes = windows.columns() * static_cast<std::int64_t>(size_of(dtype));
    return std::clamp<std::int64_t>(most_column_bytes / std::max<std::int64_t>(bytes, 1), 1,
                                    std::max<std::int64_t>(samples, 1));
  }
  [[nodiscard]] kernels::WindowShape windows_of(std::int64_t count) const {
    kernels::WindowShape all = windows;
    all.planes *= count;
    return all;
  }
};

// Some of the samples, and their columns.
struct Part {
  std::int64_t first, count;
};

std::byte* at(const Tensor& tensor, std::int64_t elements) {
  return tensor.raw_data() + elements * static_cast<std::int64_t>(size_of(tensor.dtype()));
}

// Calls run(part) for the samples, a part at a time.
template <class Run>
void for_parts(const Convolution& c, const Run& run) {
  const std::int64_t most = c.samples_at_once();
  for (std::int64_t first = 0; first < c.samples; first += most) {
    run(Part{first, std::min(most, c.samples - first)});
  }
}

// Memory for the columns of a part; undefined if the samples are their own columns.
Tensor column_memory(const Convolution& c, const Tensor& like) {
  if (c.reads_in_place()) return {};
  return Tensor::empty({c.samples_at_once(), c.windows.columns()}, c.dtype, like.device());
}

// The first column of a part, after it was copied.
const std::byte* columns_of(const Convolution& c, const Tensor& x, const Part& part,
                            const Tensor& memory) {
  std::byte* const samples = at(x, part.first * c.windows.elements());
  if (c.reads_in_place()) return samples;
  TESSERA_LAUNCH(x.device(), unfold,
                 {c.windows_of(part.count), samples, memory.raw_data(), c.dtype});
  return memory.raw_data();
}

// A product of each sample and group of a part. `weight` is a's operand, which all samples share.
struct PartProduct {
  const std::byte* weight;
  const std::byte* right;  // [count, groups, k, places]
  std::byte* result;       // [count, groups, m, places]
  std::int64_t m, k;
  bool transposed;  // the weight
  bool accumulate = false;
};

// A batch is a group of all samples, or all groups of a sample. The number of samples does not
// decide, because it must not change the bits of one.
void multiply(const Convolution& c, const Part& part, const PartProduct& p, Device device) {
  const auto size = static_cast<std::int64_t>(size_of(c.dtype));
  const std::int64_t of_weight = p.m * p.k, of_right = p.k * c.places(),
                     of_result = p.m * c.places();
  const bool by_group = c.groups <= most_groups_one_by_one;
  const std::int64_t between = by_group ? c.groups : 1;
  for (std::int64_t i = 0; i < (by_group ? c.groups : part.count); ++i) {
    const std::int64_t first = by_group ? i : i * c.groups;
    TESSERA_LAUNCH(device, matmul,
                   {.a = p.weight + (by_group ? i * of_weight * size : 0),
                    .b = p.right + first * of_right * size,
                    .c = p.result + first * of_result * size,
                    .m = p.m,
                    .n = c.places(),
                    .k = p.k,
                    .lda = p.transposed ? p.m : p.k,
                    .ldb = c.places(),
                    .ldc = c.places(),
                    .transpose_a = p.transposed,
                    .accumulate = p.accumulate,
                    .dtype = c.dtype,
                    .out_dtype = c.dtype,
                    .batch = by_group ? part.count : c.groups,
                    .stride_a = by_group ? 0 : of_weight,
                    .stride_b = between * of_right,
                    .stride_c = between * of_result});
  }
}

void forward(const Convolution& c, const Tensor& x, const Tensor& weight, const Tensor& out) {
  const Tensor memory = column_memory(c, x);
  for_parts(c, [&](const Part& part) {
    if (x.is_meta()) return;
    multiply(c, part,
             {.weight = weight.raw_data(),
              .right = columns_of(c, x, part, memory),
              .result = at(out, part.first * c.outputs * c.places()),
              .m = c.group_outputs(),
              .k = c.depth(),
              .transposed = false},
             x.device());
  });
}

void input_gradient(const Convolution& c, const Tensor& dout, const Tensor& weight,
                    const autograd::GradientSink::Slot& dx) {
  const Tensor memory = column_memory(c, dout);
  for_parts(c, [&](const Part& part) {
    if (dout.is_meta()) return;
    std::byte* const gradient = at(dx.tensor, part.first * c.windows.elements());
    const bool in_place = c.reads_in_place();
    multiply(c, part,
             {.weight = weight.raw_data(),
              .right = at(dout, part.first * c.outputs * c.places()),
              .result = in_place ? gradient : memory.raw_data(),
              .m = c.depth(),
              .k = c.group_outputs(),
              .transposed = true,
              .accumulate = in_place && dx.accumulate},
             dout.device());
    if (in_place) return;
    TESSERA_LAUNCH(dout.device(), fold,
                   {c.windows_of(part.count), memory.raw_data(), gradient, c.dtype, dx.accumulate});
  });
}

// Adds the products of all samples to `sums`, one after the other.
void add_weight_gradients(const Convolution& c, const Tensor& x, const Tensor& dout,
                          const Tensor& sums, bool accumulate) {
  const Tensor memory = column_memory(c, x);
  const std::int64_t places = c.places();
  for_parts(c, [&](const Part& part) {
    if (x.is_meta()) return;
    const std::byte* const columns = columns_of(c, x, part, memory);
    for (std::int64_t sample = 0; sample < part.count; ++sample) {
      const auto sample_columns = sample * c.groups * c.depth() * places;
      TESSERA_LAUNCH(x.device(), matmul,
                     {.a = at(dout, (part.first + sample) * c.outputs * places),
                      .b = columns + sample_columns * static_cast<std::int64_t>(size_of(c.dtype)),
                      .c = sums.raw_data(),
                      .m = c.group_outputs(),
                      .n = c.depth(),
                      .k = places,
                      .lda = places,
                      .ldb = places,
                      .ldc = c.depth(),
                      .transpose_b = true,
                      .accumulate = accumulate || part.first + sample > 0,
                      .dtype = c.dtype,
                      .out_dtype = sums.dtype(),
                      .batch = c.groups,
                      .stride_a = c.group_outputs() * places,
                      .stride_b = c.depth() * places,
                      .stride_c = c.group_outputs() * c.depth()});
    }
  });
}

void cast_into(const Tensor& from, const Tensor& to) {
  TESSERA_LAUNCH(from.device(), cast,
                 {from.data(), to.raw_data(), from.elements(), from.dtype(), to.dtype()});
}

// The sum over the samples is fp32 for 16-bit weights, and rounded once.
void weight_gradient(const Convolution& c, const Tensor& x, const Tensor& dout,
                     const autograd::GradientSink::Slot& dweight) {
  if (size_of(dweight.tensor.dtype()) >= size_of(float32)) {
    if (c.samples == 0 && !dweight.accumulate)
      cast_into(Tensor::zeros(dweight.tensor.shape(), dweight.tensor.dtype(), x.device()),
                dweight.tensor);
    return add_weight_gradients(c, x, dout, dweight.tensor, dweight.accumulate);
  }
  const Tensor sums = Tensor::zeros(dweight.tensor.shape(), float32, x.device());
  if (dweight.accumulate) cast_into(dweight.tensor, sums);
  add_weight_gradients(c, x, dout, sums, true);
  cast_into(sums, dweight.tensor);
}

std::int64_t places_along(const char* op, const Tensor& x, const Tensor& weight,
                          const kernels::WindowShape& w, int dimension) {
  const std::int64_t reach = w.dilation[dimension] * (w.kernel[dimension] - 1) + 1;
  const std::int64_t padded = w.size[dimension] + 2 * w.padding[dimension];
  TESSERA_REQUIRE(reach <= padded,
                  "{}: x of shape {} with padding {} has {} elements in a dimension in which the "
                  "kernel of weight {} with dilation {} reads {}",
                  op, x.shape().to_string(), w.padding[dimension], padded,
                  weight.shape().to_string(), w.dilation[dimension], reach);
  return (padded - reach) / w.stride[dimension] + 1;
}

void check_steps(const std::string& shapes, int spatial, const Convolution2dOptions& o) {
  constexpr std::int64_t most = std::int64_t{1} << 31;  // so that places do not overflow
  const auto within = [](const RowsAndColumns& of, std::int64_t least) {
    return std::min(of.rows, of.columns) >= least && std::max(of.rows, of.columns) <= most;
  };
  const auto text = [spatial](const RowsAndColumns& of) {
    return spatial == 1 ? fmt::format("{}", of.columns) : fmt::format("{}x{}", of.rows, of.columns);
  };
  TESSERA_REQUIRE(within(o.stride, 1) && within(o.dilation, 1) && within(o.padding, 0),
                  "{} with stride {}, dilation {} and padding {}; stride and dilation must be at "
                  "least 1, the padding at least 0, and all at most {}",
                  shapes, text(o.stride), text(o.dilation), text(o.padding), most);
}

// x and weight have four dimensions; errors show the caller's shapes.
Convolution convolution_of(const char* op, const Tensor& x, const Tensor& weight, int spatial,
                           const Convolution2dOptions& o) {
  const std::string shapes = fmt::format("{}: x of shape {} and weight of shape {}", op,
                                         x.shape().to_string(), weight.shape().to_string());
  TESSERA_REQUIRE(x.dimensions() == spatial + 2 && weight.dimensions() == spatial + 2,
                  "{}; both need {} dimensions: [samples, channels, ..] and [outputs, channels / "
                  "groups, ..]",
                  shapes, spatial + 2);
  TESSERA_REQUIRE(weight.elements() > 0, "{}; the weight is empty", shapes);
  check_steps(shapes, spatial, o);
  TESSERA_REQUIRE(
      o.groups > 0 && x.size(1) == weight.size(1) * o.groups && weight.size(0) % o.groups == 0,
      "{} with {} groups; x must have the weight's channels ({}) times the groups, and "
      "the groups divide the outputs ({})",
      shapes, o.groups, weight.size(1), weight.size(0));
  const bool one = spatial == 1;
  Convolution c{{.planes = x.size(1),
                 .size = {one ? 1 : x.size(2), x.size(-1)},
                 .kernel = {one ? 1 : weight.size(2), weight.size(-1)},
                 .stride = {o.stride.rows, o.stride.columns},
                 .padding = {o.padding.rows, o.padding.columns},
                 .dilation = {o.dilation.rows, o.dilation.columns},
                 .out = {}},
                x.size(0),
                x.size(1),
                weight.size(0),
                o.groups,
                weight.dtype()};
  for (const int i : {0, 1}) c.windows.out[i] = places_along(op, x, weight, c.windows, i);
  return c;
}

Tensor convolve(const char* op, const Tensor& input, const Tensor& weight, const Tensor& bias,
                int spatial, const Convolution2dOptions& options) {
  ops::require_floating(op, input, weight);
  ops::require_same_device(op, input, weight, bias);
  const Tensor x = cast(input, weight.dtype());
  const Convolution c = convolution_of(op, x, weight, spatial, options);
  TESSERA_REQUIRE(
      !bias.defined() || (bias.shape() == Shape{c.outputs} && bias.dtype() == weight.dtype()),
      "{}: bias of {} {} for {} outputs of {}", op, name_of(bias.dtype()), bias.shape().to_string(),
      c.outputs, name_of(weight.dtype()));
  const Shape shape = spatial == 1
                          ? Shape{c.samples, c.outputs, c.windows.out[1]}
                          : Shape{c.samples, c.outputs, c.windows.out[0], c.windows.out[1]};
  Tensor out;
  autograd::compute_or_take(Op::convolution, {&out}, [&] {
    out = Tensor::empty(shape, c.dtype, x.device());
    if (autograd::value_is_needed()) forward(c, x, weight, out);
  });
  const autograd::SavedTensor saved(weight.requires_grad() ? x : Tensor{});
  autograd::record(
      {Op::convolution, op}, {x, weight}, {out},
      [c, saved, saved_weight = autograd::SavedValue(weight)](std::vector<Tensor>& dout,
                                                              autograd::GradientSink& sink) {
        if (sink.wants(1)) weight_gradient(c, saved.get(), dout[0], sink.wide_slot(1));
        if (sink.wants(0)) {
          input_gradient(c, dout[0], saved_weight.get(), sink.slot(0));
        }
      },
      autograd::Reads::inputs);
  if (!bias.defined()) return out;
  return out + (spatial == 1 ? reshape(bias, {c.outputs, 1}) : reshape(bias, {c.outputs, 1, 1}));
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Convolution2dOptions& options) {
  return convolve("conv2d", x, weight, bias, 2, options);
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Convolution1dOptions& options) {
  return convolve("conv1d", x, weight, bias, 1,
                  {.stride = {1, options.stride},
                   .padding = {0, options.padding},
                   .dilation = {1, options.dilation},
                   .groups = options.groups});
}

}  // namespace tessera
