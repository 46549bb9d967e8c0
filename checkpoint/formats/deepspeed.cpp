// DeepSpeed's folders. Every rank's optimizer file has its partition of the flat fp32 weights and
// moments; the ranks' model files say which parameters lie there, in which order.
#include "checkpoint/formats/deepspeed.h"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/formats/torch_state.h"
#include "checkpoint/manifest.h"
#include "checkpoint/scalars_json.h"
#include "kernels/base/error.h"

namespace tessera::checkpoint::formats {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view optimizer_ending = "_optim_states.pt";
constexpr std::string_view model_ending = "model_states.pt";
constexpr std::size_t ranks_limit = 1 << 16;

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

// The number that follows `mark` in a file's name.
std::optional<std::size_t> number_after(std::string_view name, std::string_view mark) {
  const std::size_t at = name.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  std::size_t value = 0;
  const char* first = name.data() + at + mark.size();
  const auto [end, error] = std::from_chars(first, name.data() + name.size(), value);
  if (error != std::errc{} || end == first || value >= ranks_limit) return std::nullopt;
  return value;
}

struct ZeroFiles {
  fs::path folder;
  std::map<std::size_t, fs::path> optimizer, model;  // by data-parallel rank
};

ZeroFiles list_files(const fs::path& folder) {
  ZeroFiles files{folder, {}, {}};
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool optimizer = name.ends_with(optimizer_ending);
    if (!optimizer && !name.ends_with(model_ending)) continue;
    if (number_after(name, "mp_rank_").value_or(0) != 0) {
      fail(ErrorCode::checkpoint,
           "'{}' has files of several model-parallel ranks ({}), which are not joined: make a "
           "universal checkpoint without tensor parallelism first",
           folder.string(), shown(name));
    }
    const std::size_t rank = number_after(name, "zero_pp_rank_").value_or(0);
    auto& list = optimizer ? files.optimizer : files.model;
    TESSERA_CHECK(list.emplace(rank, entry.path()).second, ErrorCode::checkpoint,
                  "'{}' has two files of rank {}: {} and {}", folder.string(), rank, shown(name),
                  shown(list[rank].filename().string()));
  }
  return files;
}

// The folder itself, or the one that its file `latest` names.
fs::path tag_folder(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path / "latest", error)) return path;
  std::string tag = read_file(path / "latest", 4096);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' ')) {
    tag.pop_back();
  }
  TESSERA_CHECK(is_plain_name(tag), ErrorCode::checkpoint,
                "'{}' names {}, which is no folder beside it", (path / "latest").string(),
                shown(tag));
  return path / tag;
}

bool recognises_deepspeed(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return false;
  try {
    const fs::path folder = tag_folder(path);
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(optimizer_ending) || name.ends_with("mp_rank_00_model_states.pt")) {
        return true;
      }
    }
  } catch (const Error&) {
    return false;  // a file `latest` of somebody else's
  }
  return false;
}

// Runs of elements in records, one after the other.
class Lane {
 public:
  void add(std::size_t record, const TorchTensor& tensor) {
    runs_.push_back({record, tensor.first, tensor.strides[0], tensor.shape[0], size_});
    size_ += tensor.shape[0];
  }
  void append(const Lane& other) {
    for (Run run : other.runs_) {
      run.begin += size_;
      runs_.push_back(run);
    }
    size_ += other.size_;
  }
  [[nodiscard]] std::int64_t size() const { return size_; }
  // Elements [first, first + count) as pieces of a tensor that begin at its element `at`.
  void cut(std::int64_t first, std::int64_t count, std::int64_t at,
           std::vector<Piece>& pieces) const {
    auto run = std::upper_bound(runs_.begin(), runs_.end(), first,
                                [](std::int64_t f, const Run& r) { return f < r.begin; });
    if (run != runs_.begin()) --run;
    for (; run != runs_.end() && count > 0; ++run) {
      const std::int64_t skip = first - run->begin;
      const std::int64_t part = std::min(count, run->count - skip);
      if (part <= 0) continue;
      pieces.push_back(
          {{{at}, {part}}, run->record, run->first + skip * run->stride, {run->stride}});
      first += part;
      at += part;
      count -= part;
    }
  }

 private:
  struct Run {
    std::size_t record;
    std::int64_t first, stride, count, begin;
  };
  std::vector<Run> runs_;
  std::int64_t size_ = 0;
};

// What lies in the ranks' partitions: the weights, and each tensor of state.
using Lanes = std::map<std::string, Lane>;
constexpr const char* weights_lane = "";

class ZeroOpener {
 public:
  std::unique_ptr<Source> open(const fs::path& path) {
    const fs::path folder = tag_folder(path);
    files_ = list_files(folder);
    source_ = fmt::format("'{}'", folder.string());
    check_ranks();
    for (const auto& [rank, file] : files_.optimizer) read_partition(file);
    read_model();
    if (stage_ == 3) {
      join_stage_3();
    } else {
      join_stage_2();
    }
    finish();
    add_model_files(state_.contents, folder);
    add_model_files(state_.contents, path);
    return make_source(std::move(store_), std::move(state_));
  }

 private:
  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) {
      fail(ErrorCode::checkpoint, "{}: {}", source_,
           fmt::format(format, std::forward<Args>(args)...));
    }
  }

  void check_ranks() const {
    check(!files_.model.empty(), "no model_states.pt: the checkpoint is not whole");
    check(!files_.optimizer.empty(),
          "no *_optim_states.pt, where the fp32 weights are: convert its 16-bit weights "
          "(mp_rank_00_model_states.pt) as a torch.save file instead");
    std::size_t next = 0;
    for (const auto& [rank, file] : files_.optimizer) {
      check(rank == next,
            "the optimizer file of rank {} is missing: a process did not save, or "
            "files of an older checkpoint were overwritten",
            next);
      ++next;
    }
  }

  TorchArchive archive(const fs::path& path) {
    FileTable& files = store_.files();
    const std::size_t file = files.add(path);
    return {files, file, 0, files.size(file), fmt::format("'{}'", path.string()), deepspeed_rules};
  }

  static std::int64_t enumerated(const PickleValue& value) {
    return value.is(PickleKind::object) ? value.argument(0).integer() : value.integer();
  }

  // A flat tensor of the partition, added to a lane. Of moments, the first `elements`: they are
  // saved with the padding at the end of the last partitions, the weights without.
  void add_to(Lane& lane, const TorchArchive& from, const PickleValue& value,
              std::optional<std::int64_t> elements = {}) {
    auto tensor = from.tensor(value);
    check(tensor.has_value() && tensor->shape.size() == 1 && tensor->strides[0] >= 1,
          "{} has something else than flat tensors in its partition", from.source());
    check(stored_ == nullptr || stored_ == tensor->stored, "its partitions have two dtypes");
    stored_ = tensor->stored;
    if (elements.has_value()) {
      check(tensor->shape[0] >= *elements, "{} has {} elements of state for {} weights",
            from.source(), tensor->shape[0], *elements);
      tensor->shape[0] = *elements;
    }
    lane.add(store_.add_record(from.storage(tensor->key)), *tensor);
  }

  void read_partition(const fs::path& path) {
    const TorchArchive from = archive(path);
    const PickleValue state = from.root().require("optimizer_state_dict");
    const int stage = static_cast<int>(enumerated(state.require("zero_stage")));
    check(stage >= 1 && stage <= 3, "ZeRO stage {} is unknown", stage);
    check(partitions_.empty() || stage == stage_, "its ranks were saved under two stages");
    stage_ = stage;
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
    partitions_.emplace_back();
    for (std::size_t group = 0; group < flat.size(); ++group) {
      Lanes& lanes = partitions_.back().emplace_back();
      add_to(lanes[weights_lane], from, flat.at(group));
      if (base.has_value()) read_moments(lanes, from, *base, group);
    }
    if (base.has_value() && groups_.empty()) read_hyperparameters(*base);
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
    step_ = std::max(step_.value_or(0), static_cast<std::int64_t>(step));
  }

  void read_hyperparameters(const PickleValue& base) {
    const auto groups = base.find("param_groups");
    if (!groups.has_value()) return;
    PickleToJson json;
    for (std::size_t i = 0; i < groups->size(); ++i) {
      nlohmann::json group = json.convert(groups->at(i));
      if (!group.is_object()) continue;
      if (const auto step = group.find("step"); step != group.end() && step->is_number_integer()) {
        step_ = std::max(step_.value_or(0), step->get<std::int64_t>());
      }
      group.erase("params");
      group.erase("step");
      groups_.push_back(std::move(group));
    }
  }

  struct NamedShape {
    std::string name;
    std::vector<std::int64_t> shape;
    std::int64_t count = 0;
  };

  std::vector<NamedShape> shapes_of(const PickleValue& dict) const {
    check(dict.is(PickleKind::dict), "its param_shapes are no dicts");
    std::vector<NamedShape> out;
    for (std::size_t i = 0; i < dict.size(); ++i) {
      NamedShape named{dict.key(i).text(), integers_of(dict.value(i)), 0};
      named.count = element_count(named.shape, named.name);
      out.push_back(std::move(named));
    }
    return out;
  }

  void read_model() {
    const TorchArchive from = archive(files_.model.begin()->second);
    const PickleValue root = from.root();
    const PickleValue shapes = root.require("param_shapes");
    if (shapes.is(PickleKind::dict)) {
      shapes_.push_back(shapes_of(shapes));
    } else {
      for (std::size_t i = 0; i < shapes.size(); ++i) shapes_.push_back(shapes_of(shapes.at(i)));
    }
    if (!step_.has_value()) {
      if (const auto steps = root.find("global_steps"); steps && steps->is(PickleKind::integer)) {
        step_ = steps->integer();
      }
    }
    read_buffers(from);
    read_frozen(from);
    if (const auto shared = root.find("shared_params"); shared && shared->is(PickleKind::dict)) {
      for (std::size_t i = 0; i < shared->size(); ++i) {
        shared_[shared->key(i).text()] = shared->value(i).text();
      }
    }
    if (const auto version = root.find("ds_version"); version && version->is(PickleKind::text)) {
      note("written by DeepSpeed {}", shown(version->text()));
    }
  }

  void read_buffers(const TorchArchive& from) {
    const auto names = from.root().find("buffer_names");
    const auto module = from.root().find("module");
    if (!names || !names->is(PickleKind::list) || names->size() == 0) return;
    check(module && module->is(PickleKind::dict), "{} has no module", from.source());
    std::set<std::string> wanted;
    for (std::size_t i = 0; i < names->size(); ++i) wanted.insert(names->at(i).text());
    for (std::size_t i = 0; i < module->size(); ++i) {
      const std::string& name = module->key(i).text();
      if (wanted.erase(name) == 0) continue;
      const auto tensor = from.tensor(module->value(i));
      check(tensor.has_value(), "buffer {} is no tensor", shown(name));
      add(Part::model, name, tensor->stored, tensor->shape,
          add_torch_tensor(store_, from, *tensor, from.source() + ": " + shown(name)));
    }
    check(wanted.empty(), "buffer {} is not in the module",
          wanted.empty() ? "" : shown(*wanted.begin()));
  }

  // Parameters that are not trained have no part in the flat weights. Under stage 3 every rank's
  // model file has a fragment.
  void read_frozen(const TorchArchive& first) {
    const auto shapes = first.root().find("frozen_param_shapes");
    if (!shapes || !shapes->is(PickleKind::dict) || shapes->size() == 0) return;
    std::vector<NamedShape> frozen = shapes_of(*shapes);
    std::map<std::string, Lane> lanes;
    std::map<std::string, const StoredDType*> dtypes;
    for (const auto& [rank, path] : files_.model) {
      const TorchArchive from = archive(path);
      const PickleValue fragments = from.root().require("frozen_param_fragments");
      for (const NamedShape& each : frozen) {
        const auto tensor = from.tensor(fragments.require(each.name));
        check(tensor.has_value(), "frozen parameter {} is no tensor", shown(each.name));
        TorchTensor flat = *tensor;
        if (stage_ != 3) {
          check(flat.shape == each.shape && flat.strides == row_major_strides(flat.shape),
                "frozen parameter {} has another shape than it says", shown(each.name));
          flat.shape = {each.count};
          flat.strides = {1};
        }
        check(flat.shape.size() == 1 && flat.strides[0] >= 1, "frozen parameter {} is not flat",
              shown(each.name));
        dtypes[each.name] = flat.stored;
        lanes[each.name].add(store_.add_record(from.storage(flat.key)), flat);
      }
      if (stage_ != 3) break;
    }
    for (const NamedShape& each : frozen) {
      check(lanes[each.name].size() >= each.count, "frozen parameter {} is not whole: {} of {}",
            shown(each.name), lanes[each.name].size(), each.count);
      PiecedTensor tensor{dtypes[each.name], {each.count}, {}};
      lanes[each.name].cut(0, each.count, 0, tensor.pieces);
      add_pieced(Part::model, each.name, each.shape, std::move(tensor));
    }
    note("{} frozen parameters", frozen.size());
  }

  void add(Part part, const std::string& name, const StoredDType* stored,
           const std::vector<std::int64_t>& shape, std::size_t handle) {
    const std::string plain = plain_name(name);
    check(names_.insert({part, plain}).second, "{} is there twice", shown(plain));
    TensorInfo info;
    info.part = part;
    info.name = plain;
    info.stored = stored;
    info.shape = shape;
    state_.contents.tensors.push_back(std::move(info));
    state_.handles.push_back(handle);
  }

  void add_pieced(Part part, const std::string& name, const std::vector<std::int64_t>& shape,
                  PiecedTensor tensor) {
    const StoredDType* stored = tensor.stored;
    const std::size_t handle =
        store_.add_tensor(std::move(tensor), fmt::format("{}: {}", source_, shown(name)));
    add(part, name, stored, shape, handle);
  }

  static std::string plain_name(const std::string& name) {
    const std::string out = unwrapped_name(name);
    return out.starts_with("module.") ? out.substr(7) : out;
  }

  // The parameter's elements out of each kind of lane.
  template <class Cut>
  void add_parameter(const NamedShape& parameter, const Lanes& kinds, const Cut& cut) {
    for (const auto& [kind, unused] : kinds) {
      PiecedTensor tensor{stored_, {parameter.count}, {}};
      cut(kind, tensor.pieces);
      const bool weights = kind == weights_lane;
      add_pieced(weights ? Part::model : Part::optimizer,
                 weights ? parameter.name : plain_name(parameter.name) + "." + kind,
                 parameter.shape, std::move(tensor));
    }
  }

  // A group's flat weights are the ranks' partitions one after the other.
  void join_stage_2() {
    for (const auto& rank : partitions_) {
      check(rank.size() == shapes_.size(), "it has {} parameter groups, a rank {} partitions",
            shapes_.size(), rank.size());
    }
    for (std::size_t group = 0; group < shapes_.size(); ++group) {
      Lanes joined;
      for (const auto& rank : partitions_) {
        check(rank[group].size() == partitions_.front()[group].size(),
              "its ranks have different optimizer state");
        for (const auto& [kind, lane] : rank[group]) joined[kind].append(lane);
      }
      std::int64_t offset = 0;
      for (const NamedShape& parameter : shapes_[group]) {
        check(parameter.count <= joined.at(weights_lane).size() - offset,
              "group {} has fewer elements than its parameters", group);
        add_parameter(parameter, joined, [&](const std::string& kind, std::vector<Piece>& pieces) {
          joined.at(kind).cut(offset, parameter.count, 0, pieces);
        });
        offset += parameter.count;
      }
      const auto align = static_cast<std::int64_t>(2 * partitions_.size());
      const std::int64_t padded = (offset + align - 1) / align * align;
      const std::int64_t have = joined.at(weights_lane).size();
      check(have == offset || have == padded,
            "group {} has {} elements where its parameters need {}: the shapes do not belong to "
            "these partitions",
            group, have, offset);
    }
  }

  // Every parameter is cut into equal parts, one a rank; a rank's parts lie one after the other.
  void join_stage_3() {
    std::vector<Lanes> ranks;
    for (const auto& groups : partitions_) {
      Lanes& joined = ranks.emplace_back();
      for (const Lanes& lanes : groups) {
        check(lanes.size() == groups.front().size(), "its groups have different optimizer state");
        for (const auto& [kind, lane] : lanes) joined[kind].append(lane);
      }
      check(joined.size() == ranks.front().size(), "its ranks have different optimizer state");
    }
    check(!ranks.front().empty(), "it has no partitions");
    const auto world = static_cast<std::int64_t>(ranks.size());
    std::int64_t offset = 0;
    for (const auto& group : shapes_) {
      for (const NamedShape& parameter : group) {
        const std::int64_t part = (parameter.count + world - 1) / world;
        add_parameter(parameter, ranks.front(),
                      [&](const std::string& kind, std::vector<Piece>& pieces) {
                        for (std::int64_t rank = 0; rank < world; ++rank) {
                          const std::int64_t at = std::min(rank * part, parameter.count);
                          const std::int64_t count = std::min(part, parameter.count - at);
                          const auto& lanes = ranks[static_cast<std::size_t>(rank)];
                          const auto lane = lanes.find(kind);
                          check(lane != lanes.end() && offset <= lane->second.size() &&
                                    part <= lane->second.size() - offset,
                                "rank {} has fewer elements than its parameters", rank);
                          lane->second.cut(offset, count, at, pieces);
                        }
                      });
        offset += part;
      }
    }
    for (const Lanes& lanes : ranks) {
      check(
          lanes.at(weights_lane).size() == offset,
          "a rank has {} elements where its parameters need {}: the shapes do not belong to these "
          "partitions",
          lanes.at(weights_lane).size(), offset);
    }
  }

  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    state_.contents.notes.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void finish() {
    for (const auto& [name, target] : shared_) {
      const std::string plain = plain_name(name);
      const std::string to = plain_name(target);
      check(names_.contains({Part::model, to}), "{} shares {}, which is not there", shown(name),
            shown(target));
      if (!names_.contains({Part::model, plain})) state_.contents.aliases[plain] = to;
    }
    if (step_.has_value()) state_.contents.scalars.set("step", *step_);
    note("ZeRO stage {}, {} ranks; the weights are the optimizer's, in {}", stage_,
         partitions_.size(), stored_->name);
    for (std::size_t i = 0; i < groups_.size() && i < shapes_.size(); ++i) {
      nlohmann::json& names = groups_[i]["params"] = nlohmann::json::array();
      for (const NamedShape& parameter : shapes_[i]) names.push_back(plain_name(parameter.name));
      nlohmann::json shown_group = groups_[i];
      shown_group.erase("params");
      note("parameter group {}: {} parameters, {}", i, names.size(),
           shown_group.dump(-1, ' ', true));
    }
    if (!groups_.empty() && groups_.size() == shapes_.size()) {
      json_of(state_.contents.scalars)[param_groups_key] = groups_;
    }
  }

  ZeroFiles files_;
  std::string source_;
  PieceStore store_;
  NamedState state_;
  std::set<std::pair<Part, std::string>> names_;
  int stage_ = 0;
  const StoredDType* stored_ = nullptr;          // of the partitions
  std::vector<std::vector<Lanes>> partitions_;   // by rank, then by group
  std::vector<std::vector<NamedShape>> shapes_;  // by group
  std::map<std::string, std::string> shared_;
  std::vector<nlohmann::json> groups_;
  std::optional<std::int64_t> step_;
};

std::unique_ptr<Source> open_deepspeed(const fs::path& path) {
  return ZeroOpener().open(path);
}

}  // namespace

const Format& deepspeed_format() {
  static const Format format{
      "deepspeed",    "a DeepSpeed ZeRO checkpoint (*_optim_states.pt), read only",
      false,          recognises_deepspeed,
      open_deepspeed, nullptr};
  return format;
}

}  // namespace tessera::checkpoint::formats
