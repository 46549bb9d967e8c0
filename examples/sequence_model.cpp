// A small transformer of your own that learns to continue arithmetic progressions: trained on any
// number of ranks, stopped and resumed, evaluated. docs/cpp-api.md explains it part by part.
//   tessera launch --nproc-per-node 2 -- build/examples/sequence_model train FOLDER STEPS [cuda]
//   build/examples/sequence_model evaluate FOLDER RANKS
//   build/examples/sequence_model plan RANKS
//   build/examples/sequence_model trace FILE RANKS
#include <tessera/tessera.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace ts = tessera;

namespace {

constexpr std::int64_t vocabulary = 32;
constexpr std::int64_t length = 16;
constexpr std::int64_t width = 64;
constexpr std::int64_t heads = 4;
constexpr int layers = 2;

// x as it is; its gradient is multiplied by `factor`.
ts::Tensor scale_gradient(const ts::Tensor& x, double factor) {
  ts::Tensor out = x.detach();  // the same memory, outside the graph
  ts::autograd::record(
      {ts::Op::custom, "scale_gradient"}, {x}, {out},
      [factor](std::vector<ts::Tensor>& gradients, ts::autograd::GradientSink& sink) {
        sink.add(0, gradients[0] * factor);
      });
  return out;
}

struct BlockImpl : ts::nn::Module {
  explicit BlockImpl(std::int64_t size) {
    attention_norm = register_module("attention_norm", ts::nn::LayerNorm(size));
    qkv = register_module("qkv", ts::nn::Linear(size, 3 * size));
    projection = register_module("projection", ts::nn::Linear(size, size));
    feed_norm = register_module("feed_norm", ts::nn::LayerNorm(size));
    up = register_module("up", ts::nn::Linear(size, 4 * size));
    down = register_module("down", ts::nn::Linear(4 * size, size));
  }
  ts::Tensor forward(const ts::Tensor& x) const {
    const ts::Tensor seen =
        ts::packed_attention(qkv(attention_norm(x)), {.heads = heads, .causal = true});
    const ts::Tensor y = x + projection(seen);
    const ts::Tensor z = feed_norm(y);
    return y + ts::recompute([this](const ts::Tensor& in) { return down(ts::gelu(up(in))); }, z);
  }
  ts::nn::LayerNorm attention_norm, feed_norm;
  ts::nn::Linear qkv, projection, up, down;
};
TESSERA_MODULE(Block);

struct SequenceModel : ts::nn::Module {
  SequenceModel() {
    tokens = register_module("tokens", ts::nn::Embedding(vocabulary, width));
    register_parameter("positions",
                       ts::nn::make_parameter({length, width}, ts::nn::normal(0, 0.02)));
    dropout = register_module("dropout", ts::nn::Dropout(0.1));
    for (int i = 0; i < layers; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), Block(width)));
    norm = register_module("norm", ts::nn::LayerNorm(width));
    head = register_module("head", ts::nn::Linear(width, vocabulary));
  }
  ts::Tensor forward(const ts::Tensor& ids) const {  // [batch, length] -> [.., vocabulary]
    ts::Tensor x = dropout(scale_gradient(tokens(ids), 0.5) + parameter("positions"));
    for (const Block& block : blocks) x = block(x);
    return head(norm(x));
  }
  ts::nn::Embedding tokens;
  ts::nn::Dropout dropout;
  std::vector<Block> blocks;
  ts::nn::LayerNorm norm;
  ts::nn::Linear head;
};

ts::ShardingOptions sharding() {
  return {.strategy = ts::Strategy::full_shard,
          .wrap = ts::WrapPolicy::transformer({"Block"}),  // a unit for each, one for the rest
          .param_dtype = ts::bfloat16,
          .reduce_dtype = ts::float32};
}

// Progressions modulo the vocabulary, with all starts and seven strides; every eighth is held out.
ts::data::TensorDataset progressions(bool held_out) {
  std::vector<std::int32_t> inputs, targets;
  for (std::int64_t i = 0; i < 7 * vocabulary; ++i) {
    if ((i % 8 == 3) != held_out) continue;
    const std::int64_t start = i % vocabulary, stride = 1 + i / vocabulary;
    for (std::int64_t t = 0; t < length; ++t) {
      inputs.push_back(static_cast<std::int32_t>((start + t * stride) % vocabulary));
      targets.push_back(static_cast<std::int32_t>((start + (t + 1) * stride) % vocabulary));
    }
  }
  const auto count = static_cast<std::int64_t>(inputs.size()) / length;
  return {ts::Tensor::from(inputs, {count, length}), ts::Tensor::from(targets, {count, length})};
}

// For each sequence 1 if the most probable token after its end is the right one, else 0.
ts::Tensor hits(const ts::Tensor& logits, const ts::Tensor& targets) {
  const std::vector<double> scores = logits.to_vector(), wanted = targets.to_vector();
  std::vector<float> result;
  for (std::int64_t row = 0; row < logits.size(0); ++row) {
    const std::int64_t last = (row + 1) * length - 1;
    const auto first = scores.begin() + last * vocabulary;
    const auto likeliest = std::max_element(first, first + vocabulary) - first;
    const double right = wanted[static_cast<std::size_t>(last)];
    result.push_back(static_cast<double>(likeliest) == right ? 1.0F : 0.0F);
  }
  return ts::Tensor::from(result, {logits.size(0)});
}

// Collective: the fraction of the loader's sequences that the model continues correctly.
double accuracy(SequenceModel& net, ts::ShardedModel& model, const ts::data::TensorLoader& loader) {
  const ts::Context& context = model.context();
  const ts::NoGradGuard no_grad;
  net.eval();
  const auto whole = model.unsharded();  // gathered once, for all batches
  double right = 0;
  std::size_t samples = 0;
  ts::data::TensorLoader batches = context.prepare(loader);
  for (auto [x, y] : batches) {
    const ts::Tensor all = context.gather_for_metrics(hits(net.forward(x), y), batches);
    for (const double hit : all.to_vector()) right += hit;
    samples += static_cast<std::size_t>(all.size(0));
  }
  net.train();
  return right / static_cast<double>(samples);
}

constexpr std::int64_t global_batch = 64;  // sequences in an optimizer step, on any world size
constexpr std::int64_t micro_batches = 2;  // backwards in one, on each rank
constexpr std::int64_t save_every = 50;

// The ranks together use the same sequences in each step as one rank would.
std::int64_t batch_of_a_rank(int ranks) {
  const std::int64_t parts = micro_batches * ranks;
  if (global_batch % parts != 0)
    throw ts::Error(ts::ErrorCode::configuration,
                    std::to_string(ranks) + " ranks do not divide the batch of a step");
  return global_batch / parts;
}

// The batches of all epochs one after the other, from number `taken` on.
class BatchStream {
 public:
  BatchStream(ts::data::TensorLoader loader, std::int64_t taken)
      : loader_(std::move(loader)), batch_(loader_.end()) {
    loader_.set_epoch(taken / loader_.steps_per_epoch());
    batch_ = loader_.begin();
    for (std::int64_t i = 0; i < taken % loader_.steps_per_epoch(); ++i) ++batch_;
  }
  BatchStream(const BatchStream&) = delete;
  BatchStream& operator=(const BatchStream&) = delete;

  std::pair<ts::Tensor, ts::Tensor> next() {
    if (!(batch_ != loader_.end())) batch_ = loader_.begin();
    auto batch = *batch_;
    ++batch_;
    return batch;
  }

 private:
  ts::data::TensorLoader loader_;
  ts::data::TensorLoader::Iterator batch_;
};

// This rank's mean loss; its gradients are reduced and ready for the optimizer.
double accumulate_gradients(const SequenceModel& net, ts::ShardedModel& model,
                            BatchStream& batches) {
  double total = 0;
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    std::optional<ts::ShardedModel::NoSync> local_sums;
    if (i + 1 < micro_batches) local_sums.emplace(model);
    auto [x, y] = batches.next();
    const ts::Tensor loss = ts::cross_entropy(net.forward(x), y) * (1.0 / micro_batches);
    loss.backward();
    total += loss.item();
  }
  return total;
}

void train(const std::filesystem::path& folder, std::int64_t steps, bool on_gpu) {
  const int local_rank = ts::comm::world_from_environment().local_rank;
  const ts::Context context = ts::init(on_gpu ? ts::Device::cuda(local_rank) : ts::Device::cpu());

  ts::manual_seed(7);
  std::unique_ptr<SequenceModel> net;
  {
    const ts::DeviceGuard deferred(ts::Device::meta());  // each rank will draw its share only
    net = std::make_unique<SequenceModel>();
  }
  ts::ShardedModel model = ts::fully_shard(*net, context, sharding());
  if (context.is_main()) std::fputs(model.describe().c_str(), stdout);

  ts::optim::AdamW optimizer(model.parameters(), {.decay = ts::optim::decay_matrices});
  const ts::optim::Schedule schedule{.kind = ts::optim::ScheduleKind::cosine,
                                     .peak = 3e-3,
                                     .warmup_steps = 20,
                                     .decay_steps = 400};

  std::int64_t first_step = 0;
  if (const auto loaded = ts::load_latest(context, folder, model, optimizer)) {
    first_step = loaded->found.step;
  }

  const std::int64_t batch_size = batch_of_a_rank(context.world_size());
  const ts::data::TensorLoader loader(progressions(false),
                                      {.batch_size = batch_size, .shuffle = true});
  BatchStream batches(context.prepare(loader), first_step * micro_batches);
  ts::AsyncSaver saver(context, model, optimizer);  // after the model: it goes first
  for (std::int64_t step = first_step; step < steps; ++step) {
    double loss = 0, norm = 0;
    {
      const ts::MemoryStep memory(context.device());  // the same addresses in every step
      loss = context.mean(accumulate_gradients(*net, model, batches));
      norm = model.clip_grad_norm(1.0);
      optimizer.set_learning_rate(schedule.at(step));
      optimizer.step();
      optimizer.zero_grad();
    }
    model.unshard({}, true);  // the root, while the next batch is read
    const std::int64_t done = step + 1;
    if (context.is_main())
      std::printf("step %d loss %.9g norm %.9g\n", static_cast<int>(done), loss, norm);
    if (done % save_every == 0 || done == steps) saver.save(folder, {.step = done, .keep = 2});
  }
  saver.wait();

  const ts::data::TensorLoader unseen(progressions(true), {.batch_size = batch_size});
  const double right = accuracy(*net, model, unseen);
  if (context.is_main()) std::printf("accuracy %.3f\n", right);
}

void load_weights(const ts::Context& context, const std::filesystem::path& folder,
                  const ts::ShardedModel& model) {
  const auto latest = ts::latest(context, folder);
  if (!latest)
    throw ts::Error(ts::ErrorCode::checkpoint, folder.string() + ": there is no checkpoint");
  ts::load(context, latest->path, model);
}

void evaluate(const std::filesystem::path& folder, int ranks) {
  ts::launch(ranks, [&](ts::Context& context) {
    SequenceModel net;
    ts::ShardedModel model = ts::fully_shard(net, context, sharding());
    load_weights(context, folder, model);
    const ts::data::TensorLoader unseen(progressions(true), {.batch_size = 5});
    const double right = accuracy(net, model, unseen);
    if (context.is_main()) std::printf("accuracy %.3f on %d ranks\n", right, ranks);
  });
}

// The memory of a rank, computed without allocating it and without the other ranks.
void plan(int ranks) {
  const ts::DeviceGuard deferred(ts::Device::meta());
  SequenceModel net;
  const auto loss = [&net, batch = batch_of_a_rank(ranks)](ts::Device device) {
    const ts::Tensor ids = ts::Tensor::empty({batch, length}, ts::int32, device);
    return ts::cross_entropy(net.forward(ids), ids);
  };
  const ts::MemoryPlan planned =
      ts::plan(net, {.ranks = ranks},
               {.sharding = sharding(), .loss = loss, .micro_batches = micro_batches});
  std::printf("%zu bytes a rank, %zu of them optimizer state, at most in %s\n", planned.total(),
              planned.memory.of(ts::MemoryKind::optimizer), planned.phase.data());
}

// The times of the fifth step, for https://ui.perfetto.dev.
void trace(const std::string& file, int ranks) {
  ts::launch(ranks, [&](ts::Context& context) {
    SequenceModel net;
    ts::ShardedModel model = ts::fully_shard(net, context, sharding());
    ts::optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
    const ts::data::TensorLoader loader(progressions(false),
                                        {.batch_size = batch_of_a_rank(ranks)});
    BatchStream batches(context.prepare(loader), 0);
    const std::shared_ptr<ts::StepRecorder> recorder = model.record();
    for (std::int64_t step = 1; step <= 5; ++step) {
      recorder->begin_step(step);
      accumulate_gradients(net, model, batches);
      model.clip_grad_norm(1.0);
      {
        const ts::ComputeScope scope(recorder.get(), ts::SpanKind::optimizer);
        optimizer.step();
        optimizer.zero_grad();
      }
      recorder->end_step();
    }
    ts::write_trace(context, *recorder, file);
    if (context.is_main())
      std::printf("%.3f ms, of them %.3f waiting\n", recorder->last().seconds() * 1e3,
                  recorder->last().exposed() * 1e3);
  });
}

std::int64_t whole_number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0)
    throw ts::Error(ts::ErrorCode::usage, text + " is not a whole number");
  return value;
}

void run(const std::vector<std::string>& words) {
  const bool on_gpu = words.size() == 4 && words[3] == "cuda";
  if ((words.size() == 3 || on_gpu) && words[0] == "train") {
    train(words[1], whole_number(words[2]), on_gpu);
  } else if (words.size() == 3 && words[0] == "evaluate") {
    evaluate(words[1], static_cast<int>(whole_number(words[2])));
  } else if (words.size() == 2 && words[0] == "plan") {
    plan(static_cast<int>(whole_number(words[1])));
  } else if (words.size() == 3 && words[0] == "trace") {
    trace(words[1], static_cast<int>(whole_number(words[2])));
  } else {
    throw ts::Error(ts::ErrorCode::usage,
                    "usage: sequence_model train FOLDER STEPS [cuda] | evaluate FOLDER RANKS | "
                    "plan RANKS | trace FILE RANKS");
  }
}

}  // namespace

int main(int argc, char** argv) {
  return ts::run([&] { run({argv + 1, argv + argc}); });
}
