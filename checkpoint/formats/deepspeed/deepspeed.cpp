// DeepSpeed's folders. Every rank's optimizer file has its partition of the flat fp32 weights and
// moments. The ranks' model files have the names and the order of the parameters in them.
#include <fmt/format.h>
#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/formats/deepspeed/zero_files.h"
#include "checkpoint/formats/deepspeed/zero_partitions.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/torch/torch_state.h"
#include "checkpoint/state/scalars_json.h"

namespace tessera::checkpoint::formats {

namespace {

namespace fs = std::filesystem;

class ZeroOpener {
 public:
  std::unique_ptr<Source> open(const fs::path& path) {
    const fs::path folder = zero_tag_folder(path);
    files_ = list_zero_files(folder);
    source_ = fmt::format("'{}'", folder.string());
    check_ranks();
    zero_ = read_zero_partitions(store_, files_, source_);
    read_model();
    if (zero_.stage == 3) {
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
    check_zero(source_, condition, format, std::forward<Args>(args)...);
  }

  void check_ranks() const {
    check(!files_.model.empty(), "no model_states.pt: the checkpoint is incomplete");
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

  struct NamedShape {
    std::string name;
    std::vector<std::int64_t> shape;
    std::int64_t count = 0;
  };

  std::vector<NamedShape> shapes_of(const PickleValue& dict) const {
    check(dict.is(PickleKind::dict), "its param_shapes are not dicts");
    std::vector<NamedShape> out;
    for (std::size_t i = 0; i < dict.size(); ++i) {
      NamedShape named{dict.key(i).text(), integers_of(dict.value(i)), 0};
      named.count = element_count(named.shape, named.name);
      out.push_back(std::move(named));
    }
    return out;
  }

  void read_model() {
    const TorchArchive from = open_zero_file(store_, files_.model.begin()->second);
    const PickleValue root = from.root();
    const PickleValue shapes = root.require("param_shapes");
    if (shapes.is(PickleKind::dict)) {
      shapes_.push_back(shapes_of(shapes));
    } else {
      for (std::size_t i = 0; i < shapes.size(); ++i) shapes_.push_back(shapes_of(shapes.at(i)));
    }
    if (!zero_.step.has_value()) {
      if (const auto steps = root.find("global_steps"); steps && steps->is(PickleKind::integer)) {
        check(steps->integer() >= 0, "{} is not a number of steps", steps->integer());
        zero_.step = steps->integer();
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
      check(tensor.has_value(), "buffer {} is not a tensor", shown(name));
      add(Part::model, name, tensor->stored, tensor->shape,
          add_torch_tensor(store_, from, *tensor, from.source() + ": " + shown(name)));
    }
    check(wanted.empty(), "buffer {} is not in the module",
          wanted.empty() ? "" : shown(*wanted.begin()));
  }

  // The flat weights do not contain parameters that are not trained. Under stage 3 every rank's
  // model file has a fragment of these.
  void read_frozen(const TorchArchive& first) {
    const auto shapes = first.root().find("frozen_param_shapes");
    if (!shapes || !shapes->is(PickleKind::dict) || shapes->size() == 0) return;
    std::vector<NamedShape> frozen = shapes_of(*shapes);
    std::map<std::string, Lane> lanes;
    std::map<std::string, const StoredDType*> dtypes;
    for (const auto& [rank, path] : files_.model) {
      const TorchArchive from = open_zero_file(store_, path);
      const PickleValue fragments = from.root().require("frozen_param_fragments");
      for (const NamedShape& each : frozen) {
        const auto tensor = from.tensor(fragments.require(each.name));
        check(tensor.has_value(), "frozen parameter {} is not a tensor", shown(each.name));
        TorchTensor flat = *tensor;
        if (zero_.stage != 3) {
          check(flat.shape == each.shape && flat.strides == row_major_strides(flat.shape),
                "frozen parameter {} does not have its stated shape", shown(each.name));
          flat.shape = {each.count};
          flat.strides = {1};
        }
        check(flat.shape.size() == 1, "frozen parameter {} is not flat", shown(each.name));
        dtypes[each.name] = flat.stored;
        lanes[each.name].add(store_, from, flat);
      }
      if (zero_.stage != 3) break;
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

  // Adds the parameter's elements from each kind of lane.
  template <class Cut>
  void add_parameter(const NamedShape& parameter, const Lanes& kinds, const Cut& cut) {
    for (const auto& [kind, unused] : kinds) {
      PiecedTensor tensor{zero_.stored, {parameter.count}, {}};
      cut(kind, tensor.pieces);
      const bool weights = kind == weights_lane;
      add_pieced(weights ? Part::model : Part::optimizer,
                 weights ? parameter.name : plain_name(parameter.name) + "." + kind,
                 parameter.shape, std::move(tensor));
    }
  }

  // A group's flat weights are the ranks' partitions one after the other.
  void join_stage_2() {
    for (const auto& rank : zero_.of_ranks) {
      check(rank.size() == shapes_.size(), "it has {} parameter groups, a rank {} partitions",
            shapes_.size(), rank.size());
    }
    for (std::size_t group = 0; group < shapes_.size(); ++group) {
      Lanes joined;
      for (const auto& rank : zero_.of_ranks) {
        check(rank[group].size() == zero_.of_ranks.front()[group].size(),
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
      const auto align = static_cast<std::int64_t>(2 * zero_.of_ranks.size());
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
    for (const auto& groups : zero_.of_ranks) {
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
        const std::int64_t part = parameter.count / world + (parameter.count % world != 0 ? 1 : 0);
        add_parameter(parameter, ranks.front(),
                      [&](const std::string& kind, std::vector<Piece>& pieces) {
                        for (std::int64_t rank = 0; rank < world; ++rank) {
                          const auto& lanes = ranks[static_cast<std::size_t>(rank)];
                          const auto lane = lanes.find(kind);
                          check(lane != lanes.end() && offset <= lane->second.size() &&
                                    part <= lane->second.size() - offset,
                                "rank {} has fewer elements than its parameters", rank);
                          const std::int64_t at = std::min(rank * part, parameter.count);
                          const std::int64_t count = std::min(part, parameter.count - at);
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
    if (zero_.step.has_value()) state_.contents.scalars.set("step", *zero_.step);
    note("ZeRO stage {}, {}; the weights are the optimizer's, in {}", zero_.stage,
         counted(zero_.of_ranks.size(), "rank"), zero_.stored->name);
    for (std::size_t i = 0; i < zero_.groups.size() && i < shapes_.size(); ++i) {
      nlohmann::json& names = zero_.groups[i]["params"] = nlohmann::json::array();
      for (const NamedShape& parameter : shapes_[i]) names.push_back(plain_name(parameter.name));
      nlohmann::json shown_group = zero_.groups[i];
      shown_group.erase("params");
      note("parameter group {}: {}, {}", i, counted(names.size(), "parameter"),
           shown_group.dump(-1, ' ', true).substr(0, 1000));
    }
    if (!zero_.groups.empty() && zero_.groups.size() == shapes_.size()) {
      json_of(state_.contents.scalars)[param_groups_key] = zero_.groups;
    }
  }

  ZeroFiles files_;
  std::string source_;
  PieceStore store_;
  NamedState state_;
  std::set<std::pair<Part, std::string>> names_;
  ZeroPartitions zero_;
  std::vector<std::vector<NamedShape>> shapes_;  // by group
  std::map<std::string, std::string> shared_;
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
