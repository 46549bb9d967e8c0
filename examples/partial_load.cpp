// Loads parts of checkpoints: a new head on a pretrained trunk, the head's moments after the trunk
// is frozen, and a trunk from a Hugging Face folder.
//   tessera launch --nproc-per-node 2 -- build/examples/partial_load
#include <tessera/tessera.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace ts = tessera;

struct TrunkImpl : ts::nn::Module {
  TrunkImpl() {
    in = register_module("in", ts::nn::Linear(8, 32));
    out = register_module("out", ts::nn::Linear(32, 16));
  }
  ts::Tensor forward(const ts::Tensor& x) const { return ts::gelu(out(ts::gelu(in(x)))); }
  ts::nn::Linear in, out;
};
TESSERA_MODULE(Trunk);

struct Net : ts::nn::Module {
  explicit Net(std::int64_t outputs) {
    trunk = register_module("trunk", Trunk(std::make_shared<TrunkImpl>()));
    head = register_module("head", ts::nn::Linear(16, outputs));
  }
  ts::Tensor forward(const ts::Tensor& x) const { return head(trunk(x)); }
  Trunk trunk;
  ts::nn::Linear head;
};

// Points [first, first + count) of an endless data set, and sines of their sums.
struct Points {
  ts::Tensor inputs, targets;
};
Points points(std::int64_t first, std::int64_t count, std::int64_t outputs) {
  std::vector<float> inputs;
  std::vector<float> targets;
  for (std::int64_t number = first; number < first + count; ++number) {
    double sum = 0;
    for (std::int64_t j = 0; j < 8; ++j) {
      inputs.push_back(static_cast<float>(std::sin(static_cast<double>(37 * number + 11 * j))));
      sum += inputs.back();
    }
    for (std::int64_t k = 0; k < outputs; ++k) {
      targets.push_back(static_cast<float>(std::sin(sum + static_cast<double>(k))));
    }
  }
  return {ts::Tensor::from(inputs, {count, 8}), ts::Tensor::from(targets, {count, outputs})};
}

ts::Tensor squares(const Net& net, const Points& batch) {
  return ts::square(net.forward(batch.inputs) + batch.targets * -1.0);
}

constexpr std::int64_t batch_of_all = 32;

// Trains steps begin + 1 ... end; returns the last step's loss.
double train(const ts::Context& context, const Net& net, std::int64_t outputs,
             ts::optim::Optimizer& optimizer, int begin, int end, const char* what) {
  const std::int64_t batch = batch_of_all / context.world_size();
  double last = 0;
  for (int step = begin; step < end; ++step) {
    const std::int64_t first = step * batch_of_all + context.rank() * batch;
    const ts::Tensor loss = ts::mean(squares(net, points(first, batch, outputs)));
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    last = context.mean(loss.detach()).item();
    if (context.is_main()) std::printf("%s: step %d, loss %.6f\n", what, step + 1, last);
  }
  return last;
}

// The mean error over `samples` points, divided among the ranks, possibly unevenly.
double evaluate(const ts::Context& context, const Net& net, std::int64_t samples) {
  const ts::NoGradGuard no_grad;
  const std::int64_t part = (samples + context.world_size() - 1) / context.world_size();
  const std::int64_t first = std::min(samples, part * context.rank());
  const std::int64_t mine = std::min(part, samples - first);
  // Every rank runs the forward; a rank without points of its own uses another rank's.
  const ts::Tensor errors = squares(net, points(first, std::max<std::int64_t>(mine, 1), 1));
  const ts::Tensor all = context.gather_for_metrics(errors, mine);
  double sum = 0;
  for (const double error : all.to_vector()) sum += error;
  return sum / static_cast<double>(all.size(0));
}

// A new head of three outputs on the pretrained trunk; the trunk's moments are loaded too.
void new_head(const ts::Context& context, const std::string& out, const std::string& pretrained) {
  Net net(3);
  ts::ShardedModel model = ts::fully_shard(net, context);
  ts::optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
  const auto in_trunk = [](const std::string& name) { return name.starts_with("trunk."); };
  ts::load(context, pretrained, model, optimizer, {.model = in_trunk, .optimizer = in_trunk});
  ts::save(context, out + "/new_head", model, optimizer, {.step = 0});
  train(context, net, 3, optimizer, 0, 20, "new head");
  ts::save(context, out + "/new_head", model, optimizer, {.step = 20});
}

// From here on the trunk is frozen, and the head continues from its state.
void frozen_trunk(const ts::Context& context, const std::string& out) {
  Net net(3);
  ts::freeze(*net.trunk);
  ts::ShardedModel model = ts::fully_shard(net, context);
  ts::optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
  const auto in_head = [](const std::string& name) { return name.starts_with("head."); };
  ts::load(context, out + "/new_head/step-20", model, optimizer, {.optimizer = in_head});
  train(context, net, 3, optimizer, 20, 40, "frozen trunk");
}

// Only the trunk, under its own names, as a folder like the ones that transformers writes.
void export_trunk(const ts::Context& context, const ts::ShardedModel& model,
                  const std::string& folder) {
  const ts::checkpoint::State state = ts::checkpoint::state_of(
      model, nullptr, ts::checkpoint::Direction::save, [](const std::string& name, bool) {
        return name.starts_with("trunk.") ? name.substr(6) : std::string();
      });
  ts::checkpoint::export_model(context.communicator(), folder, state.model, {});
}

// Loads that folder into a net whose head it does not contain.
bool from_hugging_face(const ts::Context& context, const std::string& folder) {
  Net net(1);
  ts::ShardedModel model = ts::fully_shard(net, context);
  const std::string prefix = "trunk.";
  const ts::LoadResult loaded =
      ts::load(context, folder, model,
               {.strict = false, .names = [&](const std::string& name, bool /*trained*/) {
                  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
                }});
  if (context.is_main()) {
    for (const std::string& name : loaded.model.missing) std::printf("new: %s\n", name.c_str());
  }
  return loaded.model.missing.size() == 2 && loaded.model.unexpected.empty();
}

int main(int argc, char** argv) {
  const ts::Context context = ts::init();
  const std::string out = argc > 1 ? argv[1] : "out/partial_load";
  if (context.is_main()) std::filesystem::remove_all(out);
  context.barrier();
  ts::manual_seed(7);
  {
    Net net(1);
    ts::ShardedModel model = ts::fully_shard(net, context);
    ts::optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
    train(context, net, 1, optimizer, 0, 60, "pretrained");
    ts::save(context, out + "/pretrained", model, optimizer, {.step = 60});
    export_trunk(context, model, out + "/hugging_face");
    const double error = evaluate(context, net, 101);
    if (context.is_main()) std::printf("pretrained: error %.6f\n", error);
  }
  new_head(context, out, out + "/pretrained/step-60");
  frozen_trunk(context, out);
  return from_hugging_face(context, out + "/hugging_face") ? 0 : 1;
}
