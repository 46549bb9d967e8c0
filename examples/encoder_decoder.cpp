// A transformer with an encoder and a decoder that learns to sort: the same bits under every
// strategy, saved, and resumed on another number of ranks.
//   tessera launch --nproc-per-node 2 -- build/examples/encoder_decoder FULL_SHARD out/sorter 10
//   tessera launch --nproc-per-node 3 -- build/examples/encoder_decoder FULL_SHARD out/sorter 20
#include <tessera/tessera.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

namespace ts = tessera;

constexpr std::int64_t width = 48, heads = 4, length = 8, digits = 10, start = digits, batch = 48;

// Attention of x to the rows of `source`, and the residual.
struct LookImpl : ts::nn::Module {
  explicit LookImpl(bool causal) : causal_(causal) {
    norm = register_module("norm", ts::nn::RmsNorm(width));
    q = register_module("q", ts::nn::Linear(width, width));
    kv = register_module("kv", ts::nn::Linear(width, 2 * width));
    out = register_module("out", ts::nn::Linear(width, width));
  }
  ts::Tensor forward(const ts::Tensor& x, const ts::Tensor& source) const {
    const std::vector<ts::Tensor> rows = ts::split(kv(source), width, -1);
    return x + out(ts::attention(q(norm(x)), rows[0], rows[1],
                                 ts::AttentionOptions{.heads = heads, .causal = causal_}));
  }
  ts::nn::RmsNorm norm;
  ts::nn::Linear q, kv, out;

 private:
  bool causal_;
};
TESSERA_MODULE(Look);

// A layer of the encoder, or of the decoder, which also looks at the encoder's rows.
struct LayerImpl : ts::nn::Module {
  explicit LayerImpl(bool decodes) {
    own = register_module("own", Look(decodes));
    if (decodes) across = register_module("across", Look(false));
    norm = register_module("norm", ts::nn::RmsNorm(width));
    gate_up = register_module("gate_up", ts::nn::Linear(width, 4 * width));
    down = register_module("down", ts::nn::Linear(2 * width, width));
  }
  ts::Tensor forward(const ts::Tensor& x, const ts::Tensor& encoded) const {
    ts::Tensor h = own(x, x);
    if (across) h = across(h, encoded);
    const std::vector<ts::Tensor> inner = ts::chunk(gate_up(norm(h)), 2, -1);
    return h + down(ts::silu(inner[0]) * inner[1]);
  }
  Look own, across;  // the encoder has no `across`
  ts::nn::RmsNorm norm;
  ts::nn::Linear gate_up, down;
};
TESSERA_MODULE(Layer);

struct Net : ts::nn::Module {
  Net() {
    tokens = register_module("tokens", ts::nn::Embedding(digits + 1, width, 0.3));
    positions = register_module("positions", ts::nn::Embedding(length, width, 0.3));
    encoder = register_module(
        "encoder", ts::nn::ModuleList<Layer>(std::vector<Layer>{Layer(false), Layer(false)}));
    decoder = register_module(
        "decoder", ts::nn::ModuleList<Layer>(std::vector<Layer>{Layer(true), Layer(true)}));
    head = register_module("head", ts::nn::Linear(width, digits));
  }
  // The decoder sees the start token and the digits before its own.
  ts::Tensor loss(const ts::Tensor& given, const ts::Tensor& sorted) const {
    const std::int64_t samples = given.size(0);
    const std::vector<std::int32_t> starts(static_cast<std::size_t>(samples), start);
    const ts::Tensor begin = ts::Tensor::from(starts, {samples, 1}).to(given.device());
    ts::Tensor x = embed(given);
    for (std::size_t i = 0; i < encoder->size(); ++i) x = (*encoder)[i](x, x);
    ts::Tensor y = embed(ts::concatenate({begin, ts::narrow(sorted, 1, 0, length - 1)}, 1));
    for (std::size_t i = 0; i < decoder->size(); ++i) y = (*decoder)[i](y, x);
    return ts::cross_entropy(head(y), sorted);
  }
  ts::nn::Embedding tokens, positions;
  ts::nn::ModuleList<Layer> encoder, decoder;
  ts::nn::Linear head;

 private:
  [[nodiscard]] ts::Tensor embed(const ts::Tensor& ids) const {
    std::vector<std::int32_t> places;
    for (std::int32_t i = 0; i < length; ++i) places.push_back(i);
    return tokens(ids) + positions(ts::Tensor::from(places, {length}).to(ids.device()));
  }
};

ts::data::TensorDataset lists(std::size_t samples) {
  std::vector<std::int32_t> given, sorted;
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < samples; ++i) {
    std::vector<std::int32_t> list(length);
    for (std::int32_t& digit : list) {
      state = state * 1664525u + 1013904223u;
      digit = static_cast<std::int32_t>((state >> 16) % digits);
    }
    given.insert(given.end(), list.begin(), list.end());
    std::sort(list.begin(), list.end());
    sorted.insert(sorted.end(), list.begin(), list.end());
  }
  const ts::Shape shape{static_cast<std::int64_t>(samples), length};
  return {ts::Tensor::from(given, shape), ts::Tensor::from(sorted, shape)};
}

// `strategy` is a name of ts::strategy_table. Without a folder nothing is saved.
void train(const std::string& strategy, const std::string& folder, std::int64_t steps) {
  const ts::Context context = ts::init();
  ts::manual_seed(7);
  Net net;
  ts::TrainerOptions options;
  options.steps = steps;
  options.batch_size = batch / context.world_size();
  options.sharding.wrap = ts::WrapPolicy::transformer({"Layer"});
  options.sharding.group_size = context.world_size();
  bool known = false;
  for (const ts::StrategyRow& row : ts::strategy_table) {
    if (row.name != strategy) continue;
    options.sharding.strategy = row.strategy;
    known = true;
  }
  if (!known) throw std::invalid_argument(strategy + ": there is no such strategy");
  options.optimizer = ts::optim::AdamWOptions{.lr = 6e-3};
  options.checkpoint.dir = folder;
  options.checkpoint.every = folder.empty() ? 0 : steps;
  const auto loss = [&net](const ts::Tensor& x, const ts::Tensor& y) { return net.loss(x, y); };
  ts::Trainer trainer(ts::tasks::make_tensor_task(net, lists(480), loss), context, options);
  if (!folder.empty()) trainer.resume();
  while (trainer.position().steps < steps) {
    const auto metrics = trainer.step();
    if (metrics && context.is_main()) {
      std::printf("step %lld loss %a norm %a\n", static_cast<long long>(metrics->step),
                  metrics->loss, metrics->grad_norm);
    }
  }
  if (!folder.empty()) trainer.save();
}

int main(int argc, char** argv) {
  return ts::run([&] {
    train(argc > 1 ? argv[1] : "FULL_SHARD", argc > 2 ? argv[2] : "",
          argc > 3 ? std::stoll(argv[3]) : 20);
  });
}
