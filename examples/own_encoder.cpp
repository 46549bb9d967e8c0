// A sentence encoder of your own: trained on pairs of related texts, with the other texts of all
// ranks as negatives, and evaluated on all ranks.
//   tessera launch --nproc-per-node 2 -- build/examples/own_encoder
#include <tessera/models/text_encoder.h>
#include <tessera/tasks/evaluators.h>
#include <tessera/tasks/sentence_losses.h>
#include <tessera/tessera.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

namespace ts = tessera;

constexpr std::int64_t width = 48, heads = 4, longest = 64, batch_size = 8;
constexpr int topics = 32, steps = 150;

class LayerImpl : public ts::nn::Module {
 public:
  LayerImpl() {
    norm_ = register_module("norm", ts::nn::LayerNorm(width));
    query_ = register_module("query", ts::nn::Linear(width, width));
    key_ = register_module("key", ts::nn::Linear(width, width));
    value_ = register_module("value", ts::nn::Linear(width, width));
    out_ = register_module("out", ts::nn::Linear(width, width));
  }
  // x: one row per token, without padding.
  ts::Tensor forward(const ts::Tensor& x, const ts::Sequences& sequences) const {
    const ts::Tensor y = norm_(x);
    return x +
           out_(ts::sequence_attention(query_(y), key_(y), value_(y), sequences, {.heads = heads}));
  }

 private:
  ts::nn::LayerNorm norm_;
  ts::nn::Linear query_, key_, value_, out_;
};
TESSERA_MODULE(Layer);

class OwnEncoder : public ts::nn::Module {
 public:
  OwnEncoder() {
    bytes_ = register_module("bytes", ts::nn::Embedding(256, width, 0.1));
    positions_ = register_module("positions", ts::nn::Embedding(longest, width, 0.1));
    first_ = register_module("first", Layer(std::make_shared<LayerImpl>()));
    second_ = register_module("second", Layer(std::make_shared<LayerImpl>()));
  }
  // Rows of length 1, one per text.
  ts::Tensor forward(const ts::models::TokenBatch& tokens) const {
    const ts::models::TokenRows rows = ts::models::numbered_rows(tokens, 0, longest);
    ts::Tensor x = bytes_(rows.ids) + positions_(rows.positions);
    x = second_(first_(x, rows.sequences), rows.sequences);
    return ts::normalize_rows(ts::pool_sequences(x, rows.sequences, {ts::PoolingMode::mean}));
  }

 private:
  ts::nn::Embedding bytes_, positions_;
  Layer first_, second_;
};

// Three of a topic's eight words: two texts of one topic seldom share all of them.
std::string text_about(int topic, std::mt19937& random) {
  std::string text;
  for (int word = 0; word < 3; ++word) {
    std::mt19937 letters(static_cast<unsigned>(topic * 8 + static_cast<int>(random() % 8)));
    for (int i = 0; i < 5; ++i) text += static_cast<char>('a' + letters() % 26);
    text += ' ';
  }
  return text;
}

ts::models::TokenBatch tokens_of(const std::vector<std::string>& texts,
                                 const ts::tasks::TextTokens& tokens, ts::Device device) {
  std::vector<std::vector<std::int32_t>> sequences;
  for (const std::string& text : texts) sequences.push_back(tokens.sequence(text));
  return ts::tasks::make_token_batch(sequences, tokens.tokenizer->padding_id(), device);
}

// Pairs of texts of the same topic, and of two topics.
ts::tasks::SentencePairs evaluation_pairs() {
  ts::tasks::SentencePairs pairs;
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    const int topic = i % topics, other = (topic + 1 + i / topics) % topics;
    pairs.first.push_back(text_about(topic, random));
    pairs.second.push_back(text_about(i % 2 == 0 ? topic : other, random));
    pairs.labels.push_back(i % 2 == 0 ? 1 : 0);
  }
  return pairs;
}

int train_and_evaluate() {
  ts::Context context = ts::init();
  ts::manual_seed(1);
  OwnEncoder net;
  auto model = ts::fully_shard(net, context, {.wrap = ts::WrapPolicy::transformer({"Layer"})});
  ts::optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
  const ts::tasks::TextTokens tokens{ts::make_tokenizer("bytes"), longest};

  const auto evaluate = [&] {
    const auto encode = [&](const ts::models::TokenBatch& batch) { return net.forward(batch); };
    const auto scores =
        ts::tasks::evaluate_similarity(evaluation_pairs(), encode, {.tokens = tokens}, context);
    if (context.is_main())
      std::printf("%s %.4f\n", scores.front().first.c_str(), scores.front().second);
    return scores.front().second;
  };
  const double before = evaluate();
  for (int step = 0; step < steps; ++step) {
    std::vector<std::string> anchors, positives;
    for (std::int64_t i = 0; i < batch_size; ++i) {
      // A sample depends only on its number, so the data do not depend on the world size.
      const std::int64_t sample = (step * context.world_size() + context.rank()) * batch_size + i;
      std::mt19937 random(static_cast<unsigned>(sample));
      const int topic = static_cast<int>(sample % topics);
      anchors.push_back(text_about(topic, random));
      positives.push_back(text_about(topic, random));
    }
    const ts::Tensor loss = ts::tasks::multiple_negatives_ranking_loss(
        net.forward(tokens_of(anchors, tokens, context.device())),
        net.forward(tokens_of(positives, tokens, context.device())), context);
    loss.backward();
    model.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (context.is_main() && step % 50 == 0) std::printf("loss %.4f\n", loss.item());
  }
  return evaluate() > before + 0.2 ? 0 : 1;
}

int main() {
  return ts::run([] { return train_and_evaluate(); });
}
