// A sentence encoder on batches of ready tokens: the sentences that it encodes and trains on per
// second of processor time (forward and backward; the optimizer separately). Prints one JSON
// object. It also writes its results, so that they can be compared
// (bench/compare_sentence_transformers.py, tests/judges/test_encoders.py).
//
//   sentence_encoder_bench FOLDER IDS.safetensors [--batch N] [--rounds N] [--threads N]
//     [--embeddings OUT.safetensors] [--states OUT.safetensors] [--save FOLDER --steps N]
//
// IDS has int32 `ids` [sentences, length] and `lengths` [sentences].
#include <fmt/format.h>

#include <time.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "bench/programs/options.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/save/export.h"
#include "checkpoint/save/model_files.h"
#include "checkpoint/sharded_state.h"
#include "engine/autograd.h"
#include "engine/optim/optimizer.h"
#include "engine/random.h"
#include "models/sentence_encoder/sentence_encoder.h"
#include "sharding/fully_shard.h"

namespace tessera::bench {
namespace {

using Values = std::vector<std::int32_t>;

// The processor time of all threads of the process: other programs hardly affect it.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Values read_int32(const checkpoint::SafetensorsFile& file, const std::string& name,
                  std::vector<std::int64_t>& shape) {
  const checkpoint::TensorEntry* entry = file.find(name);
  TESSERA_CHECK(entry != nullptr && entry->stored->dtype == int32, ErrorCode::data,
                "'{}' has no int32 tensor '{}'", file.path().string(), name);
  shape = entry->shape;
  Values values((entry->end - entry->begin) / sizeof(std::int32_t));
  file.read(*entry, 0, values.data(), values.size() * sizeof(std::int32_t));
  return values;
}

// Sentences in batches; each batch is padded to its longest sentence.
std::vector<models::TokenBatch> read_batches(const std::string& path, std::int64_t batch) {
  const checkpoint::SafetensorsFile file(path);
  std::vector<std::int64_t> shape, count;
  const Values ids = read_int32(file, "ids", shape), lengths = read_int32(file, "lengths", count);
  TESSERA_CHECK(shape.size() == 2 && count == std::vector{shape[0]}, ErrorCode::data,
                "'{}': ids is not [sentences, length] with a length for each", path);
  std::vector<models::TokenBatch> batches;
  for (std::int64_t first = 0; first < shape[0]; first += batch) {
    const std::int64_t rows = std::min(batch, shape[0] - first);
    const Values own(lengths.begin() + first, lengths.begin() + first + rows);
    const std::int64_t longest = *std::max_element(own.begin(), own.end());
    Values padded;
    for (std::int64_t r = first; r < first + rows; ++r) {
      const auto row = ids.begin() + r * shape[1];
      padded.insert(padded.end(), row, row + longest);
    }
    batches.push_back({Tensor::from(padded, {rows, longest}), Tensor::from(own, {rows})});
  }
  return batches;
}

// Consecutive rows of `dim` floats, as one tensor.
void write_rows(const std::string& path, const std::string& name, const std::vector<float>& values,
                std::int64_t dim) {
  const auto rows = static_cast<std::int64_t>(values.size()) / dim;
  checkpoint::write_safetensors(path, {{{name, float32, {rows, dim}}, values.data()}});
}

void append(std::vector<float>& all, const Tensor& values) {
  const Tensor wide = cast(values, float32);
  const auto* const data = wide.data_as<float>();
  all.insert(all.end(), data, data + wide.elements());
}

struct Arguments {
  std::string folder, ids, embeddings, states, save;
  std::int64_t batch = 16, rounds = 0, steps = 1;
  int threads = 1;

  Arguments(int count, char** words) {
    read_options(
        count, words, "Sentences per second that an encoder encodes and trains on.",
        {required(text("FOLDER", folder, "a folder of Sentence Transformers")),
         required(text("IDS", ids, "safetensors: int32 `ids` [sentences, length], `lengths`")),
         number<std::int64_t>("--batch", batch, 1, "sentences of a batch"),
         number<std::int64_t>("--rounds", rounds, 0, "measurements; 0: none"),
         number("--threads", threads, 1, "threads"),
         text("--embeddings", embeddings, "a file for the embeddings"),
         text("--states", states, "a file for the hidden states"),
         text("--save", save, "trains first, and saves the folder here"),
         number<std::int64_t>("--steps", steps, 0, "steps of that training")});
  }
};

class Bench {
 public:
  Bench(const Arguments& arguments, Context context)
      : arguments_(arguments),
        context_(std::move(context)),
        batches_(read_batches(arguments.ids, arguments.batch)),
        model_(models::make_sentence_encoder(arguments.folder)),
        sharded_(fully_shard(*model_, context_, {.strategy = Strategy::no_shard})) {
    checkpoint::State state = checkpoint::state_of(sharded_, nullptr, checkpoint::Direction::load);
    models::load_sentence_encoder(arguments.folder, *model_, state.model);
  }

  void run() {
    if (!arguments_.save.empty()) train_and_save();
    write_results();
    if (arguments_.rounds > 0) time();
  }

 private:
  void write_results() {
    const NoGradGuard no_grad;
    model_->eval();
    if (const std::string path = arguments_.embeddings; !path.empty()) {
      std::vector<float> all;
      for (const auto& batch : batches_) append(all, model_->forward(batch));
      write_rows(path, "embeddings", all, model_->dimension());
    }
    if (const std::string path = arguments_.states; !path.empty()) {
      std::vector<float> all;
      for (const auto& batch : batches_) {
        append(all, model_->transformer().forward(model_->transformer().rows_of(batch)));
      }
      write_rows(path, "states", all, model_->transformer().width());
    }
  }

  // The mean of squares has no meaning as a loss, but its gradient reaches every parameter.
  static Tensor loss_of(const Tensor& embeddings) { return mean(square(embeddings + 0.5)); }

  void train_and_save() {
    optim::AdamW optimizer(sharded_.parameters(), {.lr = 1e-3});
    for (std::int64_t step = 0; step < arguments_.steps; ++step) {
      const auto& batch = batches_[static_cast<std::size_t>(step) % batches_.size()];
      begin_batch({static_cast<std::uint64_t>(step), 0, batch.ids.size(0)});
      loss_of(model_->forward(batch)).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    checkpoint::State state = checkpoint::state_of(sharded_, nullptr, checkpoint::Direction::save);
    checkpoint::ExportOptions options;
    options.files = checkpoint::read_model_files(arguments_.folder).contents;
    for (const auto& [name, text] : model_->files()) options.files[name] = text;
    options.files["config.json"] = model_->config().dump(2);
    options.tensor_folders = model_->tensor_folders();
    checkpoint::export_model(context_.communicator(), arguments_.save, state.model, options);
  }

  // The fastest pass over all batches: disturbances only add time.
  template <class Body>
  double fastest(Body body) const {
    double best = 0;
    for (std::int64_t round = 0; round < arguments_.rounds; ++round) {
      const double start = processor_seconds();
      for (const auto& batch : batches_) body(batch);
      const double seconds = processor_seconds() - start;
      best = round == 0 ? seconds : std::min(best, seconds);
    }
    return best;
  }

  void time() {
    std::int64_t sentences = 0;
    for (const auto& batch : batches_) sentences += batch.ids.size(0);
    model_->eval();
    const double encode = fastest([&](const auto& batch) {
      const NoGradGuard no_grad;
      (void)model_->forward(batch);
    });
    model_->train();
    optim::AdamW optimizer(sharded_.parameters(), {.lr = 1e-5});
    double optimizing = 0;
    const double train = fastest([&](const auto& batch) {
      begin_batch({0, 0, batch.ids.size(0)});
      loss_of(model_->forward(batch)).backward();
      optimizer.zero_grad();
    });
    loss_of(model_->forward(batches_.front())).backward();
    optimizer.step();
    const double start = processor_seconds();
    optimizer.step();
    optimizing = processor_seconds() - start;
    const auto count = static_cast<double>(sentences);
    const nlohmann::ordered_json result = {{"threads", compute_threads()},
                                           {"batch", arguments_.batch},
                                           {"sentences", sentences},
                                           {"encoded_per_second", count / encode},
                                           {"trained_per_second", count / train},
                                           {"optimizer_ms", 1e3 * optimizing}};
    fmt::print("{}\n", result.dump());
  }

  const Arguments& arguments_;
  Context context_;
  std::vector<models::TokenBatch> batches_;
  std::unique_ptr<models::SentenceEncoder> model_;
  ShardedModel sharded_;
};

}  // namespace
}  // namespace tessera::bench

int main(int count, char** texts) {
  try {
    const tessera::bench::Arguments arguments(count, texts);
    tessera::set_compute_threads(arguments.threads);
    tessera::bench::Bench(arguments, tessera::init()).run();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "sentence_encoder_bench: {}\n", error.what());
    return 1;
  }
}
