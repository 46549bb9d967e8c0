// Ops with kernels of a program's own: gradients, several results, workspaces, recomputation,
// plans, and refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "engine/autograd.h"
#include "engine/interop/own_op.h"
#include "engine/ops.h"
#include "engine/planned/work_log.h"
#include "engine/recompute.h"
#include "support/gradient_check.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

using testing::leaf;
using testing::misuse_of;
using testing::weighted_sum;

// out[r, c] = factor * weight[c] * x[r, c]^2, in fp64, and counts its runs.
struct ScaledSquare final : OwnOp {
  explicit ScaledSquare(double by, int* runs = nullptr) : factor(by), forward_runs(runs) {}

  [[nodiscard]] std::string_view name() const override { return "scaled_square"; }
  [[nodiscard]] std::vector<ValueType> results(std::span<const ValueType> in) const override {
    TESSERA_REQUIRE(in.size() == 2 && in[0].shape.dimensions() == 2 &&
                        in[1].shape == Shape{in[0].shape[1]} && in[0].dtype == float64 &&
                        in[1].dtype == float64,
                    "scaled_square: x and weight are float64 [rows, columns] and [columns]");
    return {in[0]};
  }
  void forward_cpu(const OwnCall& call) const override {
    if (forward_runs != nullptr) ++*forward_runs;
    const double* const x = call.inputs[0].data_as<double>();
    const double* const weight = call.inputs[1].data_as<double>();
    double* const out = call.results[0].data_as<double>();
    const std::int64_t columns = call.inputs[1].elements();
    parallel_for(0, call.inputs[0].elements(), 64, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        out[i] = factor * weight[i % columns] * x[i] * x[i];
    });
  }
  void backward_cpu(const OwnCall& call) const override {
    const double* const x = call.inputs[0].data_as<double>();
    const double* const weight = call.inputs[1].data_as<double>();
    const double* const dout = call.result_gradients[0].data_as<double>();
    const std::int64_t columns = call.inputs[1].elements(), elements = call.inputs[0].elements();
    Tensor &dx = call.input_gradients[0], &dweight = call.input_gradients[1];
    if (dweight.defined()) std::fill_n(dweight.data_as<double>(), columns, 0.0);
    for (std::int64_t i = 0; i < elements; ++i) {
      const std::int64_t c = i % columns;
      if (dx.defined()) dx.data_as<double>()[i] = 2 * factor * weight[c] * x[i] * dout[i];
      if (dweight.defined()) dweight.data_as<double>()[c] += factor * x[i] * x[i] * dout[i];
    }
  }
  [[nodiscard]] OwnCost cost(OwnPass pass, std::span<const ValueType> in) const override {
    const auto elements = static_cast<double>(in[0].shape.elements());
    return {.operations = (pass == OwnPass::forward ? 3 : 6) * elements, .bytes = {}};
  }

  double factor;
  int* forward_runs;
};

// (x + 1, 2 x), whose backward reads its first result; it needs a workspace of one byte an element.
struct TwoResults final : OwnOp {
  [[nodiscard]] std::string_view name() const override { return "two_results"; }
  [[nodiscard]] std::vector<ValueType> results(std::span<const ValueType> in) const override {
    return {in[0], in[0]};
  }
  void forward_cpu(const OwnCall& call) const override {
    EXPECT_EQ(call.workspace.dtype(), uint8);
    EXPECT_EQ(call.workspace.elements(), call.inputs[0].elements());
    for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
      const double x = call.inputs[0].data_as<double>()[i];
      call.results[0].data_as<double>()[i] = x + 1;
      call.results[1].data_as<double>()[i] = (x + 1) * x;
    }
  }
  void backward_cpu(const OwnCall& call) const override {
    EXPECT_FALSE(call.inputs[0].defined());
    EXPECT_FALSE(call.results[1].defined());
    EXPECT_FALSE(call.workspace.defined());
    for (std::int64_t i = 0; i < call.results[0].elements(); ++i) {
      const double slope = 2 * call.results[0].data_as<double>()[i] - 1;
      call.input_gradients[0].data_as<double>()[i] =
          call.result_gradients[0].data_as<double>()[i] +
          slope * call.result_gradients[1].data_as<double>()[i];
    }
  }
  [[nodiscard]] bool reads_input(std::size_t /*input*/) const override { return false; }
  [[nodiscard]] bool reads_result(std::size_t result) const override { return result == 0; }
  [[nodiscard]] std::size_t workspace_bytes(OwnPass pass,
                                            std::span<const ValueType> in) const override {
    return pass == OwnPass::forward ? static_cast<std::size_t>(in[0].shape.elements()) : 0;
  }
};

// (2 x, the number of each element as int32): only the first has a gradient.
struct Numbered final : OwnOp {
  [[nodiscard]] std::string_view name() const override { return "numbered"; }
  [[nodiscard]] std::vector<ValueType> results(std::span<const ValueType> in) const override {
    return {in[0], {in[0].shape, int32}};
  }
  void forward_cpu(const OwnCall& call) const override {
    for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
      call.results[0].data_as<double>()[i] = 2 * call.inputs[0].data_as<double>()[i];
      call.results[1].data_as<std::int32_t>()[i] = static_cast<std::int32_t>(i);
    }
  }
  // A second input holds the numbers of another call and has no gradient.
  void backward_cpu(const OwnCall& call) const override {
    if (call.input_gradients.size() > 1) {
      EXPECT_FALSE(call.input_gradients[1].defined());
    }
    for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
      call.input_gradients[0].data_as<double>()[i] =
          2 * call.result_gradients[0].data_as<double>()[i];
    }
  }
};

// Which elements are positive, without a gradient.
struct Positive final : OwnOp {
  [[nodiscard]] std::string_view name() const override { return "positive"; }
  [[nodiscard]] std::vector<ValueType> results(std::span<const ValueType> in) const override {
    return {{in[0].shape, uint8}};
  }
  void forward_cpu(const OwnCall& call) const override {
    for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
      call.results[0].data_as<std::uint8_t>()[i] = call.inputs[0].data_as<double>()[i] > 0 ? 1 : 0;
    }
  }
  [[nodiscard]] bool differentiable() const override { return false; }
};

// Has no kernels, and a result of another type.
struct Empty final : OwnOp {
  [[nodiscard]] std::string_view name() const override { return "empty"; }
  [[nodiscard]] std::vector<ValueType> results(std::span<const ValueType> in) const override {
    return {in.begin(), in.begin() + (in.size() > 1 ? 0 : 1)};
  }
};

TEST(OwnOp, HasGradients) {
  const Tensor x = leaf({3, 5}, 1), weight = leaf({5}, 2);
  testing::check_gradients(
      [&] {
        return weighted_sum(call(ScaledSquare(1.5), {x, weight})[0]);
      },
      {x, weight});
  // Only the gradient that is wanted is made.
  testing::check_gradients(
      [&] {
        return weighted_sum(call(ScaledSquare(1.5), {x, weight.detach()})[0]);
      },
      {x});
}

TEST(OwnOp, HasSeveralResultsAndReadsThemInBackward) {
  const Tensor x = leaf({7}, 1);
  testing::check_gradients(
      [&] {
        const std::vector<Tensor> both = call(TwoResults(), {x});
        return weighted_sum(both[0]) + weighted_sum(both[1], 5);
      },
      {x});
  // Nothing flows back to the second result.
  testing::check_gradients([&] { return weighted_sum(call(TwoResults(), {x})[0]); }, {x});
}

TEST(OwnOp, GivesGradientsToFloatingTensorsAlone) {
  const Tensor x = leaf({4}, 3);
  const std::vector<Tensor> first = call(Numbered(), {x});
  EXPECT_TRUE(first[0].requires_grad());
  EXPECT_FALSE(first[1].requires_grad());
  const std::vector<Tensor> second = call(Numbered(), {first[0], first[1]});
  sum(second[0]).backward();
  EXPECT_EQ(x.grad().to_vector(), std::vector<double>(4, 4.0));
}

TEST(OwnOp, MayHaveNoGradient) {
  const Tensor x = leaf({4}, 1);
  const Tensor positive = call(Positive(), {x})[0];
  EXPECT_FALSE(positive.requires_grad());
  EXPECT_EQ(positive.dtype(), uint8);
}

TEST(OwnOp, IsRecomputed) {
  int runs = 0;
  const auto gradients = [&](bool again) {
    const Tensor x = leaf({3, 5}, 1), weight = leaf({5}, 2);
    const auto function = [&](const Tensor& in) {
      // The exponential reads its result, and with it the op's.
      return exp(call(ScaledSquare(0.5, &runs), {in, weight})[0]);
    };
    weighted_sum(again ? recompute(function, x) : function(x)).backward();
    std::vector<double> all = x.grad().to_vector();
    const std::vector<double> of_weight = weight.grad().to_vector();
    all.insert(all.end(), of_weight.begin(), of_weight.end());
    return all;
  };
  const std::vector<double> plain = gradients(false);
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(gradients(true), plain);
  EXPECT_EQ(runs, 3);
}

TEST(OwnOp, IsPlannedWithoutItsKernels) {
  WorkLog log;
  const WorkLogGuard guard(&log);
  const DeviceGuard planned(Device::planned());
  int runs = 0;
  const Tensor x = leaf({3, 5}, 1), weight = leaf({5}, 2);
  log.begin();
  sum(call(ScaledSquare(0.5, &runs), {x, weight})[0]).backward();
  EXPECT_EQ(runs, 0);
  std::vector<KernelWork> own;
  for (const LoggedWork& work : log.entries()) {
    if (work.kind == LoggedWork::Kind::kernel && work.kernel.kernel == KernelId::own_op) {
      own.push_back(work.kernel);
    }
  }
  ASSERT_EQ(own.size(), 2U);
  EXPECT_EQ(own[0].operations, 45);
  EXPECT_EQ(own[0].bytes, 8 * (15 + 5 + 15));
  EXPECT_EQ(own[1].operations, 90);
  EXPECT_EQ(own[1].bytes, 2 * 8 * (15 + 5 + 15));
  EXPECT_EQ(own[0].dtype, float64);
}

TEST(OwnOp, HasShapesOnTheMetaDevice) {
  const Tensor x = Tensor::empty({3, 5}, float64, Device::meta());
  const Tensor out = call(ScaledSquare(1), {x, Tensor::empty({5}, float64, Device::meta())})[0];
  EXPECT_TRUE(out.is_meta());
  EXPECT_EQ(out.shape(), (Shape{3, 5}));
}

TEST(OwnOp, RefusesWrongCallsByName) {
  const Tensor x = leaf({3, 5}, 1), weight = leaf({4}, 2);
  EXPECT_EQ(misuse_of([&] {
              (void)call(ScaledSquare(1), {x, weight});
            }),
            "scaled_square: x and weight are float64 [rows, columns] and [columns]");
  EXPECT_EQ(misuse_of([&] { (void)call(Empty(), {}); }),
            "empty: no inputs; a call has at least one");
  EXPECT_EQ(misuse_of([&] {
              (void)call(Empty(), {x, x});
            }),
            "empty: no results; results() gives at least one");
  EXPECT_EQ(misuse_of([&] { (void)call(Empty(), {x}); }),
            "empty: there is no kernel for cpu; override forward_cpu()");
  EXPECT_EQ(misuse_of([&] {
              (void)call(Empty(), {Tensor()});
            }).find("empty: input 1 is an undefined tensor"),
            0U);
  EXPECT_EQ(misuse_of([&] {
              (void)call(ScaledSquare(1), {x, Tensor::empty({5}, float64, Device::meta())});
            }),
            "scaled_square: inputs on cpu and meta; move one of them with Tensor::to(device)");
  EXPECT_EQ(misuse_of([] { (void)call(std::shared_ptr<const OwnOp>(), {}); }),
            "call: the op is null");
}

struct Failing final : OwnOp {
  explicit Failing(int kind) : kind_(kind) {}
  [[nodiscard]] std::string_view name() const override { return "failing"; }
  [[nodiscard]] std::vector<ValueType> results(std::span<const ValueType> in) const override {
    return {in[0]};
  }
  void forward_cpu(const OwnCall& call) const override {
    if (kind_ == 0) throw std::runtime_error("no table");
    if (kind_ == 1) throw Error(ErrorCode::data, "id 7");
    (void)call.inputs[0].data_as<float>();
  }
  int kind_;
};

TEST(OwnOp, ErrorsOfKernelsHaveItsName) {
  const Tensor x = leaf({3, 5}, 1);
  const auto message = [&](int kind, ErrorCode code) {
    return testing::error_of([&] { return call(Failing(kind), {x}); }, code);
  };
  EXPECT_EQ(message(0, ErrorCode::runtime), "failing: no table");
  EXPECT_EQ(message(1, ErrorCode::data), "failing: id 7");
  const std::string wrong = misuse_of([&] { (void)call(Failing(2), {x}); });
  EXPECT_EQ(wrong.find("failing: tensor holds float64, float32 asked for"), 0U) << wrong;
}

// The backward reads x, which has changed since.
TEST(OwnOp, RefusesABackwardThatReadsChangedValues) {
  Tensor x = leaf({3, 5}, 1);
  const Tensor weight = leaf({5}, 2);
  const Tensor loss = sum(call(ScaledSquare(1), {x, weight})[0]);
  {
    const NoGradGuard no_grad;
    x.copy_from(Tensor::zeros({3, 5}, float64));
  }
  const std::string message = misuse_of([&] { loss.backward(); });
  EXPECT_EQ(message.find("scaled_square: "), 0U) << message;
}

}  // namespace
}  // namespace tessera
