// A decoder that learns to repeat what it read half a sequence ago. Two ranks hold each sequence
// together, so that it may be twice as long as one rank's memory allows.
//   tessera launch --nproc-per-node 4 -- build/examples/long_sequences STEPS
#include <tessera/tessera.h>

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace ts = tessera;

namespace {

constexpr std::int64_t vocabulary = 16, length = 64, width = 64, heads = 4, batch = 8;

// All layers but the attention compute on the positions that the rank has.
struct BlockImpl : ts::nn::Module {
  explicit BlockImpl(std::int64_t size) {
    norm = register_module("norm", ts::nn::LayerNorm(size));
    qkv = register_module("qkv", ts::nn::Linear(size, 3 * size));
    projection = register_module("projection", ts::nn::Linear(size, size));
    up = register_module("up", ts::nn::Linear(size, 4 * size));
    down = register_module("down", ts::nn::Linear(4 * size, size));
  }
  ts::Tensor forward(const ts::Tensor& x, const ts::ContextParallel& sequence) const {
    const ts::AttentionOptions options{.heads = heads, .causal = true};
    const ts::Tensor y = x + projection(sequence.packed_attention(qkv(norm(x)), options));
    return y + down(ts::gelu(up(y)));
  }
  ts::nn::LayerNorm norm;
  ts::nn::Linear qkv, projection, up, down;
};
TESSERA_MODULE(Block);

struct Decoder : ts::nn::Module {
  Decoder() {
    tokens = register_module("tokens", ts::nn::Embedding(vocabulary, width));
    places = register_module("places", ts::nn::Embedding(length, width));
    first = register_module("first", Block(width));
    second = register_module("second", Block(width));
    head = register_module("head", ts::nn::Linear(width, vocabulary));
  }
  // Ids and targets are the rank's part of the sequences.
  ts::Tensor loss(const ts::Tensor& ids, const ts::Tensor& targets,
                  const ts::ContextParallel& sequence) const {
    const std::int64_t begin = sequence.first_position(ids.size(1));
    std::vector<std::int32_t> positions;
    for (std::int64_t i = 0; i < ids.size(1); ++i) {
      positions.push_back(static_cast<std::int32_t>(begin + i));
    }
    ts::Tensor x = tokens(ids) + places(ts::Tensor::from(positions, {ids.size(1)}));
    x = second(first(x, sequence), sequence);
    return ts::cross_entropy(head(x), targets);
  }
  ts::nn::Embedding tokens, places;
  Block first, second;
  ts::nn::Linear head;
};

// Batch `number`: random tokens, and the same again. Each token's target is the next one.
std::pair<ts::Tensor, ts::Tensor> repeated(std::int64_t number) {
  std::mt19937 random(static_cast<unsigned>(number));
  std::vector<std::int32_t> ids, targets;
  for (std::int64_t row = 0; row < batch; ++row) {
    std::vector<std::int32_t> half;
    for (std::int64_t i = 0; i < length / 2; ++i) {
      half.push_back(static_cast<std::int32_t>(random() % vocabulary));
    }
    for (std::size_t i = 0; i < 2 * half.size(); ++i) {
      ids.push_back(half[i % half.size()]);
      targets.push_back(half[(i + 1) % half.size()]);
    }
  }
  return {ts::Tensor::from(ids, {batch, length}), ts::Tensor::from(targets, {batch, length})};
}

int train(int steps) {
  const ts::Context context = ts::init();
  ts::manual_seed(1);
  Decoder net;
  auto model = ts::fully_shard(net, context, {.wrap = ts::WrapPolicy::transformer({"Block"})});
  ts::optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
  const ts::ContextParallel sequence(context, 2);  // ranks 0 and 1, 2 and 3, ..
  double mean = 0;
  for (int step = 0; step < steps; ++step) {
    // The ranks of a block read the same samples, and each takes its part: [batch, length / 2].
    const auto [ids, targets] = repeated(step * sequence.blocks() + sequence.block());
    const ts::Tensor loss = net.loss(sequence.part_of(ids), sequence.part_of(targets), sequence);
    loss.backward();
    model.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    mean = context.mean(loss.item());
    if (context.is_main() && (step + 1) % 50 == 0) std::printf("%d: loss %.4f\n", step + 1, mean);
  }
  // Half of the tokens are random: log(16) / 2 is the least.
  return mean < 2 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return ts::run([&] { return train(argc > 1 ? std::stoi(argv[1]) : 200); });
}
