// An op with kernels of your own, on CPUs and GPUs, in a module: the same bits under every
// strategy, saved, resumed on another number of ranks. For GPUs compile this file twice and link
// both: with -DOWN_OP_ON_GPU, and with nvcc -x cu --expt-relaxed-constexpr.
//   tessera launch --nproc-per-node 2 -- build/examples/own_op FULL_SHARD out/own-op 10
//   tessera launch --nproc-per-node 3 -- build/examples/own_op FULL_SHARD out/own-op 20
#include <cstdint>

// weight[c] * max(x[r, c], 0)^2 and its gradients. A column has one owner, which sums in order.
struct Columns {
  const float *x, *weight;
  std::int64_t rows, columns;
  float* out = nullptr;                     // null in a backward
  const float* dout = nullptr;              // null in a forward
  float *dx = nullptr, *dweight = nullptr;  // null: not wanted

  constexpr void run(std::int64_t c) const {
    float sum = 0;
    for (std::int64_t i = c; i < rows * columns; i += columns) {
      const float positive = x[i] > 0 ? x[i] : 0.0f;
      if (out != nullptr) out[i] = weight[c] * positive * positive;
      if (dx != nullptr) dx[i] = 2 * weight[c] * positive * dout[i];
      if (dweight != nullptr) sum += positive * positive * dout[i];
    }
    if (dweight != nullptr) dweight[c] = sum;
  }
};
void launch_columns(Columns a, void* stream);
#if defined(__CUDACC__)  // the GPU's part: one thread for each column
__global__ void column_kernel(Columns a) {
  const std::int64_t c = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c < a.columns) a.run(c);
}
void launch_columns(Columns a, void* stream) {
  const dim3 blocks(static_cast<unsigned>((a.columns + 127) / 128));
  void* arguments[] = {&a};
  (void)cudaLaunchKernel(reinterpret_cast<const void*>(&column_kernel), blocks, dim3(128),
                         arguments, 0, static_cast<cudaStream_t>(stream));
}
#else
#include <tessera/base/parallel.h>
#include <tessera/tessera.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ts = tessera;

struct SquaredRelu final : ts::OwnOp {
  [[nodiscard]] std::string_view name() const override { return "squared_relu"; }
  [[nodiscard]] std::vector<ts::ValueType> results(
      std::span<const ts::ValueType> in) const override {
    if (in.size() != 2 || in[0].dtype != ts::float32 || in[1].dtype != ts::float32 ||
        in[0].shape.dimensions() != 2 || in[1].shape != ts::Shape{in[0].shape[1]}) {
      throw std::logic_error("squared_relu: float32 x [rows, columns] and weight [columns]");
    }
    return {in[0]};
  }
  static Columns columns_of(const ts::OwnCall& call) {
    const ts::Shape& shape = call.inputs[0].shape();
    Columns a{call.inputs[0].data_as<float>(), call.inputs[1].data_as<float>(), shape[0], shape[1]};
    if (call.result_gradients.empty()) {  // a forward
      a.out = call.results[0].data_as<float>();
      return a;
    }
    a.dout = call.result_gradients[0].data_as<float>();
    if (ts::Tensor& dx = call.input_gradients[0]; dx.defined()) a.dx = dx.data_as<float>();
    if (ts::Tensor& dw = call.input_gradients[1]; dw.defined()) a.dweight = dw.data_as<float>();
    return a;
  }
  void forward_cpu(const ts::OwnCall& call) const override {
    const Columns a = columns_of(call);
    ts::parallel_for(0, a.columns, 16, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t c = first; c < last; ++c) a.run(c);
    });
  }
  void backward_cpu(const ts::OwnCall& call) const override { forward_cpu(call); }
#if defined(OWN_OP_ON_GPU)
  void forward_cuda(const ts::OwnCall& call, void* stream) const override {
    launch_columns(columns_of(call), stream);
  }
  void backward_cuda(const ts::OwnCall& call, void* stream) const override {
    forward_cuda(call, stream);
  }
#endif
};
struct NetImpl : ts::nn::Module {
  NetImpl() {
    in = register_module("in", ts::nn::Linear(8, 64));
    register_parameter("scale", ts::nn::make_parameter({64}, ts::nn::constant(0.5)));
    out = register_module("out", ts::nn::Linear(64, 4));
  }
  ts::Tensor forward(const ts::Tensor& x) const {
    return out(ts::call(SquaredRelu(), {in(x), parameter("scale")})[0]);
  }
  ts::nn::Linear in, out;
};
TESSERA_MODULE(Net);

void train(const std::string& strategy, const std::string& folder, std::int64_t steps) {
  const ts::Context context = ts::init();
  ts::manual_seed(7);
  Net net(std::make_shared<NetImpl>());
  std::vector<float> signals;  // of four kinds, each a wave of its own length
  std::vector<std::int32_t> kinds;
  for (std::int32_t i = 0; i < 480; ++i) {
    kinds.push_back(i % 4);
    const std::int32_t length = 2 + 2 * kinds.back();
    for (std::int32_t t = 0; t < 8; ++t) {
      signals.push_back(static_cast<float>((t + i * 7) % length) - static_cast<float>(length) / 2);
    }
  }
  ts::ShardingOptions sharding{.group_size = context.world_size()};
  const auto* const row = std::ranges::find(ts::strategy_table, strategy, &ts::StrategyRow::name);
  if (row == std::end(ts::strategy_table)) throw std::invalid_argument("no strategy " + strategy);
  sharding.strategy = row->strategy;
  ts::TrainerOptions options;
  options.steps = steps;
  options.batch_size = 48 / context.world_size();
  options.sharding = sharding;
  options.optimizer = ts::optim::AdamWOptions{.lr = 5e-3};
  options.checkpoint.dir = folder;
  options.checkpoint.every = folder.empty() ? 0 : steps;
  ts::data::TensorDataset data(ts::Tensor::from(signals, {480, 8}), ts::Tensor::from(kinds, {480}));
  ts::Trainer trainer(ts::tasks::make_tensor_task(*net, data,
                                                  [&](const ts::Tensor& x, const ts::Tensor& y) {
                                                    return ts::cross_entropy(net(x), y);
                                                  }),
                      context, options);
  if (!folder.empty()) trainer.resume();
  while (trainer.position().steps < steps) {
    const auto metrics = trainer.step();
    if (!metrics || !context.is_main()) continue;
    std::printf("step %lld loss %a norm %a\n", static_cast<long long>(metrics->step), metrics->loss,
                metrics->grad_norm);
  }
  if (!folder.empty()) trainer.save();
}

int main(int argc, char** argv) {
  return ts::run([&] {
    train(argc > 1 ? argv[1] : "FULL_SHARD", argc > 2 ? argv[2] : "",
          argc > 3 ? std::stoll(argv[3]) : 20);
  });
}
#endif
