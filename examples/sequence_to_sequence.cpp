// T5 on pairs of texts: from a folder that transformers saved, or a small new one that learns to
// write numbers backwards. It is sharded, saved as a folder that transformers opens, and resumed on
// another number of ranks.
//   tessera launch --nproc-per-node 2 -- build/examples/sequence_to_sequence FULL_SHARD out/t5 10
//   build/examples/sequence_to_sequence FULL_SHARD out/t5 20 t5-small pairs.txt
//   build/examples/sequence_to_sequence read out/t5/step-20 pairs.txt logits.npy
// A line of the pairs has the ids of a source, "|" and those of its target.
#include <tessera/models/load.h>
#include <tessera/models/registry.h>
#include <tessera/models/t5.h>
#include <tessera/tessera.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace ts = tessera;
using Ids = std::vector<std::int32_t>;

constexpr std::int64_t batch_of_all = 12;

// The last element of a row of inputs is the source's length; labels are padded with -100.
ts::data::TensorDataset padded(const std::vector<Ids>& sources, const std::vector<Ids>& targets) {
  std::size_t source_length = 0, target_length = 0;
  for (const Ids& ids : sources) source_length = std::max(source_length, ids.size());
  for (const Ids& ids : targets) target_length = std::max(target_length, ids.size());
  Ids inputs, labels;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    Ids source = sources[i], target = targets[i];
    source.resize(source_length, 0);
    source.push_back(static_cast<std::int32_t>(sources[i].size()));
    target.resize(target_length, -100);
    inputs.insert(inputs.end(), source.begin(), source.end());
    labels.insert(labels.end(), target.begin(), target.end());
  }
  const auto rows = static_cast<std::int64_t>(sources.size());
  return {ts::Tensor::from(inputs, {rows, static_cast<std::int64_t>(source_length) + 1}),
          ts::Tensor::from(labels, {rows, static_cast<std::int64_t>(target_length)})};
}

ts::models::TokenBatch tokens_of(const ts::Tensor& inputs) {
  const std::int64_t length = inputs.size(1) - 1;
  return {ts::narrow(inputs, 1, 0, length), ts::reshape(ts::narrow(inputs, 1, length, 1), {-1})};
}

ts::data::TensorDataset read_pairs(const std::string& file) {
  std::vector<Ids> sources, targets;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    sources.emplace_back(), targets.emplace_back();
    std::istringstream words(line);
    Ids* into = &sources.back();
    for (std::string word; words >> word;) {
      if (word == "|") {
        into = &targets.back();
      } else {
        into->push_back(std::stoi(word));
      }
    }
  }
  if (sources.empty()) throw std::invalid_argument(file + ": there are no pairs");
  return padded(sources, targets);
}

// 1 ends a text, and 0 is padding.
ts::data::TensorDataset numbers_backwards() {
  std::vector<Ids> sources, targets;
  for (int i = 0; i < 480; ++i) {
    Ids source;
    for (int rest = 7919 * (i + 1) % 100; rest > 0; rest /= 10) source.push_back(2 + rest % 10);
    Ids target(source.rbegin(), source.rend());
    source.push_back(1), target.push_back(1);
    sources.push_back(source), targets.push_back(target);
  }
  return padded(sources, targets);
}

void train(const std::string& strategy, const std::string& folder, std::int64_t steps,
           const std::string& pretrained, const std::string& pairs) {
  const ts::Context context = ts::init();
  ts::manual_seed(7);
  ts::TrainerOptions options;
  nlohmann::json config = {{"model_type", "t5"}, {"d_model", 32},    {"d_kv", 8},
                           {"num_heads", 4},     {"num_layers", 2},  {"d_ff", 64},
                           {"n_positions", 16},  {"vocab_size", 12}, {"dropout_rate", 0.05}};
  if (!pretrained.empty()) config = ts::models::read_config(pretrained);
  const auto model = ts::models::make_sequence_to_sequence(config);
  if (!pretrained.empty()) {
    options.initial_weights.load = [&](std::vector<ts::checkpoint::LogicalTensor>& tensors) {
      ts::models::load_weights(pretrained, context.communicator(), *model, tensors);
    };
  }
  const auto row = std::find_if(std::begin(ts::strategy_table), std::end(ts::strategy_table),
                                [&](const ts::StrategyRow& each) { return each.name == strategy; });
  if (row == std::end(ts::strategy_table))
    throw std::invalid_argument(strategy + ": there is no such strategy");
  options.steps = steps;
  options.batch_size = batch_of_all / context.world_size();
  options.sharding.strategy = row->strategy;
  options.sharding.wrap = ts::WrapPolicy::transformer({model->layer_class()});
  options.sharding.group_size = context.world_size();
  options.optimizer = ts::optim::AdamWOptions{.lr = 1e-2};
  options.checkpoint.dir = folder;
  options.checkpoint.every = folder.empty() ? 0 : steps;
  options.checkpoint.save.files = {{"config.json", model->config().dump(2)}};
  const auto loss = [&](const ts::Tensor& inputs, const ts::Tensor& labels) {
    return model->loss(tokens_of(inputs), labels);
  };
  auto samples = pairs.empty() ? numbers_backwards() : read_pairs(pairs);
  ts::Trainer trainer(
      ts::tasks::make_tensor_task(*model, std::move(samples), loss, {.shuffle = pairs.empty()}),
      context, options);
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

// The logits of the targets' tokens as the decoder's input, and the text that the model writes for
// each source.
void read(const std::string& folder, const std::string& pairs, const std::string& logits) {
  const auto model = ts::models::load_sequence_to_sequence(folder, ts::float32, ts::Device::cpu());
  const ts::NoGradGuard no_grad;
  const ts::data::TensorDataset samples = read_pairs(pairs);
  const ts::models::TokenBatch sources = tokens_of(samples.inputs);
  ts::save_npy(logits, model->forward(sources, samples.targets));
  for (const Ids& text : model->write_greedily(sources, model->positions())) {
    for (const std::int32_t id : text) std::printf("%d ", id);
    std::printf("\n");
  }
}

int main(int argc, char** argv) {
  const std::vector<std::string> given(argv + 1, argv + argc);
  const auto at = [&](std::size_t i, const char* fallback) {
    return i < given.size() ? given[i] : std::string(fallback);
  };
  return ts::run([&] {
    if (at(0, "") == "read") return read(given.at(1), given.at(2), given.at(3));
    train(at(0, "FULL_SHARD"), at(1, ""), std::stoll(at(2, "20")), at(3, ""), at(4, ""));
  });
}
