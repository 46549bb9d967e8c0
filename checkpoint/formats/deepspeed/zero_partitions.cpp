// Reads the ranks' optimizer files.
#include "checkpoint/formats/deepspeed/zero_partitions.h"

#include <algorithm>
#include <string_view>

#include "checkpoint/formats/torch/torch_state.h"

namespace tessera::checkpoint::formats {

namespace fs = std::filesystem;

namespace {

bool is_deepspeed_global(std::string_view global) {
  for (const std::string_view name : {"deepspeed.runtime.fp16.loss_scaler.LossScaler",
                                      "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
                                      "deepspeed.runtime.zero.config.ZeroStageEnum",
                                      "deepspeed.utils.tensor_fragment.fragment_address",
                                      "deepspeed.utils.tensor_fragment.tensor_fragment"}) {
    if (global == name) return true;
  }
  return is_torch_global(global);
}

const PickleRules deepspeed_rules{
    is_deepspeed_global, "a DeepSpeed checkpoint",
    "Leave out what was given to save_checkpoint as client_state, or run DeepSpeed's "
    "zero_to_fp32.py where the file was made and trusted"};

class PartitionReader {
 public:
  PartitionReader(PieceStore& store, const ZeroFiles& files, const std::string& source)
      : store_(store), files_(files), source_(source) {}

  ZeroPartitions run() {
    for (const auto& [rank, file] : files_.optimizer) read_partition(file);
    check(out_.stored != nullptr, "its optimizer files have no partition of weights");
    return std::move(out_);
  }

 private:
  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    check_zero(source_, condition, format, std::forward<Args>(args)...);
  }

  static std::int64_t enumerated(const PickleValue& value) {
    return value.is(PickleKind::object) ? value.argument(0).integer() : value.integer();
  }

  // Adds a flat tensor of the partition to a lane. Moments are cut to the first `elements`: they
  // are saved with the padding at the end of the last partitions, the weights without.
  void add_to(Lane& lane, const TorchArchive& from, const PickleValue& value,
              std::optional<std::int64_t> elements = {}) {
    auto tensor = from.tensor(value);
    check(tensor.has_value() && tensor->shape.size() == 1,
          "{} has values other than flat tensors in its partition", from.source());
    check(out_.stored == nullptr || out_.stored == tensor->stored,
          "its partitions have two dtypes");
    out_.stored = tensor->stored;
    if (elements.has_value()) {
      check(tensor->shape[0] >= *elements, "{} has {} elements of state for {} weights",
            from.source(), tensor->shape[0], *elements);
      tensor->shape[0] = *elements;
    }
    lane.add(store_, from, *tensor);
  }

  void read_partition(const fs::path& path) {
    const TorchArchive from = open_zero_file(store_, path);
    const PickleValue state = from.root().require("optimizer_state_dict");
    const int stage = static_cast<int>(enumerated(state.require("zero_stage")));
    check(stage >= 1 && stage <= 3, "ZeRO stage {} is unknown", stage);
    check(out_.of_ranks.empty() || stage == out_.stage, "its ranks were saved under two stages");
    out_.stage = stage;
    const PickleValue count = state.require("partition_count");
    std::int64_t ranks = count.is(PickleKind::list) ? 0 : count.integer();
    for (std::size_t i = 0; count.is(PickleKind::list) && i < count.size(); ++i) {
      ranks = std::max(ranks, count.at(i).integer());
    }
    check(
        ranks == static_cast<std::int64_t>(files_.optimizer.size()),
        "it was saved by {} ranks and has the files of {}: a process did not save, or files of an "
        "older checkpoint were overwritten",
        ranks, files_.optimizer.size());
    const PickleValue flat =
        state.require(stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
    check(flat.is(PickleKind::list), "{} has no list of partitions", from.source());
    const auto base = state.find(stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
    out_.of_ranks.emplace_back();
    for (std::size_t group = 0; group < flat.size(); ++group) {
      Lanes& lanes = out_.of_ranks.back().emplace_back();
      add_to(lanes[weights_lane], from, flat.at(group));
      if (base.has_value()) read_moments(lanes, from, *base, group);
    }
    if (base.has_value() && out_.groups.empty()) read_hyperparameters(*base);
  }

  // The optimizer's state of one partition: {"state": {i: ...}}, or [i] where it was saved without
  // padding.
  static std::optional<PickleValue> moments_of(const PickleValue& base, std::size_t group) {
    if (base.is(PickleKind::list)) {
      if (group < base.size()) return base.at(group);
      return std::nullopt;
    }
    const auto states = base.find("state");
    if (!states.has_value() || !states->is(PickleKind::dict)) return std::nullopt;
    for (std::size_t i = 0; i < states->size(); ++i) {
      const PickleValue key = states->key(i);
      if (key.is(PickleKind::integer) && key.integer() == static_cast<std::int64_t>(group)) {
        return states->value(i);
      }
    }
    return std::nullopt;
  }

  void read_moments(Lanes& lanes, const TorchArchive& from, const PickleValue& base,
                    std::size_t group) {
    const auto moments = moments_of(base, group);
    if (!moments.has_value() || !moments->is(PickleKind::dict)) return;
    const std::int64_t elements = lanes.at(weights_lane).size();
    for (std::size_t i = 0; i < moments->size(); ++i) {
      const std::string& key = moments->key(i).text();
      const PickleValue value = moments->value(i);
      if (key == "step") {
        note_step(from, value);
        continue;
      }
      const auto tensor = from.tensor(value);
      if (!tensor.has_value() || tensor->shape.size() != 1) continue;
      add_to(lanes[key == "momentum_buffer" ? "momentum" : key], from, value, elements);
    }
  }

  void note_step(const TorchArchive& from, const PickleValue& value) {
    double step = 0;
    if (const auto tensor = from.tensor(value)) {
      step = store_.number(add_torch_tensor(store_, from, *tensor, from.source() + ": step"));
    } else {
      step = value.number();
    }
    check(step >= 0 && step < 1e15, "a step of {}", step);
    out_.step = std::max(out_.step.value_or(0), static_cast<std::int64_t>(step));
  }

  void read_hyperparameters(const PickleValue& base) {
    const auto groups = base.find("param_groups");
    if (!groups.has_value()) return;
    PickleToJson converter;
    for (std::size_t i = 0; i < groups->size(); ++i) {
      nlohmann::json group = converter.convert(groups->at(i));
      if (!group.is_object()) continue;
      if (const auto step = group.find("step"); step != group.end() && step->is_number_integer()) {
        out_.step = std::max(out_.step.value_or(0), step->get<std::int64_t>());
      }
      group.erase("params");
      group.erase("step");
      out_.groups.push_back(std::move(group));
    }
  }

  PieceStore& store_;
  const ZeroFiles& files_;
  const std::string& source_;
  ZeroPartitions out_;
};

}  // namespace

void Lane::add(PieceStore& store, const TorchArchive& from, const TorchTensor& tensor) {
  const std::size_t record = store.add_record(from.storage(tensor.key));
  const std::int64_t count = tensor.shape.at(0);
  const std::int64_t stride = count > 1 ? tensor.strides[0] : 1;
  std::int64_t last = 0;
  const auto elements =
      static_cast<std::int64_t>(store.record(record).bytes / (tensor.stored->bits / 8));
  const bool inside = tensor.first >= 0 && stride >= 1 &&
                      !__builtin_mul_overflow(count - 1, stride, &last) &&
                      !__builtin_add_overflow(last, tensor.first, &last) && last < elements;
  TESSERA_CHECK(count == 0 || inside, ErrorCode::checkpoint,
                "{}: a flat tensor of {} elements reaches out of its storage of {}", from.source(),
                count, elements);
  runs_.push_back({record, tensor.first, stride, count, size_});
  size_ += count;
}

void Lane::append(const Lane& other) {
  for (Run run : other.runs_) {
    run.begin += size_;
    runs_.push_back(run);
  }
  size_ += other.size_;
}

void Lane::cut(std::int64_t first, std::int64_t count, std::int64_t at,
               std::vector<Piece>& pieces) const {
  auto run = std::upper_bound(runs_.begin(), runs_.end(), first,
                              [](std::int64_t f, const Run& r) { return f < r.begin; });
  if (run != runs_.begin()) --run;
  for (; run != runs_.end() && count > 0; ++run) {
    const std::int64_t skip = first - run->begin;
    const std::int64_t part = std::min(count, run->count - skip);
    if (part <= 0) continue;
    pieces.push_back({{{at}, {part}}, run->record, run->first + skip * run->stride, {run->stride}});
    first += part;
    at += part;
    count -= part;
  }
}

TorchArchive open_zero_file(PieceStore& store, const fs::path& path) {
  FileTable& files = store.files();
  const std::size_t file = files.add(path);
  return {files, file, 0, files.size(file), fmt::format("'{}'", path.string()), deepspeed_rules};
}

ZeroPartitions read_zero_partitions(PieceStore& store, const ZeroFiles& files,
                                    const std::string& source) {
  return PartitionReader(store, files, source).run();
}

}  // namespace tessera::checkpoint::formats
