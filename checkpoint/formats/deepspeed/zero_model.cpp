// Reads DeepSpeed's model files.
#include "checkpoint/formats/deepspeed/zero_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/counted.h"
#include "checkpoint/state/scalars_json.h"

namespace tessera::checkpoint::formats {

namespace {

class ModelReader {
 public:
  ModelReader(PieceStore& store, const ZeroFiles& files, int stage, ZeroContents& contents)
      : store_(store), files_(files), stage_(stage), contents_(contents) {}

  ZeroModel run() {
    const TorchArchive from = open_zero_file(store_, files_.model.begin()->second);
    const PickleValue root = from.root();
    const PickleValue shapes = root.require("param_shapes");
    if (shapes.is(PickleKind::dict)) {
      out_.shapes.push_back(shapes_of(shapes));
    } else {
      for (std::size_t i = 0; i < shapes.size(); ++i)
        out_.shapes.push_back(shapes_of(shapes.at(i)));
    }
    if (const auto steps = root.find("global_steps"); steps && steps->is(PickleKind::integer)) {
      check(steps->integer() >= 0, "{} is not a number of steps", steps->integer());
      out_.steps = steps->integer();
    }
    read_buffers(from);
    read_frozen(from);
    if (const auto shared = root.find("shared_params"); shared && shared->is(PickleKind::dict)) {
      for (std::size_t i = 0; i < shared->size(); ++i) {
        out_.shared[shared->key(i).text()] = shared->value(i).text();
      }
    }
    if (stage_ != 3) read_others(from);
    if (const auto version = root.find("ds_version"); version && version->is(PickleKind::text)) {
      contents_.note("written by DeepSpeed {}", shown(version->text()));
    }
    return std::move(out_);
  }

 private:
  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    check_zero(contents_.source(), condition, format, std::forward<Args>(args)...);
  }

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
      contents_.add(Part::model, name, tensor->stored, tensor->shape,
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
        if (stage_ != 3) {
          check(flat.shape == each.shape && flat.strides == row_major_strides(flat.shape),
                "frozen parameter {} does not have its stated shape", shown(each.name));
          flat.shape = {each.count};
          flat.strides = {1};
        }
        check(flat.shape.size() == 1, "frozen parameter {} is not flat", shown(each.name));
        dtypes[each.name] = flat.stored;
        lanes[each.name].add(store_, from, flat);
      }
      if (stage_ != 3) break;
    }
    for (const NamedShape& each : frozen) {
      check(lanes[each.name].size() >= each.count, "frozen parameter {} is not whole: {} of {}",
            shown(each.name), lanes[each.name].size(), each.count);
      PiecedTensor tensor{dtypes[each.name], {each.count}, {}};
      lanes[each.name].cut(0, each.count, 0, tensor.pieces);
      contents_.add_pieced(Part::model, each.name, each.shape, std::move(tensor));
    }
    contents_.note("{} frozen parameters", frozen.size());
  }

  // Tensors of the module that are neither trained nor listed: stage 1 does not list what is
  // frozen. Under stage 3 the module has no values. Another name of a trained parameter's memory is
  // one of that parameter.
  void read_others(const TorchArchive& from) {
    const auto module = from.root().find("module");
    if (!module || !module->is(PickleKind::dict)) return;
    std::set<std::string> trained;
    for (const auto& group : out_.shapes) {
      for (const NamedShape& each : group) trained.insert(ZeroContents::plain_name(each.name));
    }
    std::map<std::string, std::string> memory;  // of trained parameters
    std::vector<std::pair<std::string, TorchTensor>> others;
    for (std::size_t i = 0; i < module->size(); ++i) {
      if (!module->key(i).is(PickleKind::text)) continue;
      const std::string& name = module->key(i).text();
      auto tensor = from.tensor(module->value(i));
      if (!tensor.has_value()) continue;
      if (trained.contains(ZeroContents::plain_name(name))) {
        memory.emplace(memory_of(from, *tensor), name);
      } else if (!contents_.has(Part::model, name) && !out_.shared.contains(name)) {
        others.emplace_back(name, std::move(*tensor));
      }
    }
    std::size_t added = 0;
    for (const auto& [name, tensor] : others) {
      const auto same = memory.find(memory_of(from, tensor));
      if (same != memory.end()) {
        out_.shared[name] = same->second;
        continue;
      }
      contents_.add(Part::model, name, tensor.stored, tensor.shape,
                    add_torch_tensor(store_, from, tensor, from.source() + ": " + shown(name)));
      ++added;
    }
    if (added > 0) {
      contents_.note("{} of no parameter group, as in the model's file", counted(added, "tensor"));
    }
  }

  PieceStore& store_;
  const ZeroFiles& files_;
  int stage_;
  ZeroContents& contents_;
  ZeroModel out_;
};

}  // namespace

std::string ZeroContents::plain_name(const std::string& name) {
  std::string out = unwrapped_name(name);
  if (out.starts_with("module.")) out.erase(0, 7);
  return out;
}

void ZeroContents::add(Part part, const std::string& name, const StoredDType* stored,
                       const std::vector<std::int64_t>& shape, std::size_t handle) {
  const std::string plain = plain_name(name);
  check_zero(source_, names_.insert({part, plain}).second, "{} is there twice", shown(plain));
  TensorInfo info;
  info.part = part;
  info.name = plain;
  info.stored = stored;
  info.shape = shape;
  state_.contents.tensors.push_back(std::move(info));
  state_.handles.push_back(handle);
}

void ZeroContents::add_pieced(Part part, const std::string& name,
                              const std::vector<std::int64_t>& shape, PiecedTensor tensor) {
  const StoredDType* stored = tensor.stored;
  const std::size_t handle =
      store_.add_tensor(std::move(tensor), fmt::format("{}: {}", source_, shown(name)));
  add(part, name, stored, shape, handle);
}

ZeroModel read_zero_model(PieceStore& store, const ZeroFiles& files, int stage,
                          ZeroContents& contents) {
  return ModelReader(store, files, stage, contents).run();
}

void finish_zero_contents(ZeroContents& contents, const ZeroModel& model,
                          std::vector<nlohmann::json> groups, std::optional<std::int64_t> step) {
  Contents& out = contents.state().contents;
  for (const auto& [name, target] : model.shared) {
    check_zero(contents.source(), contents.has(Part::model, target),
               "{} shares {}, which is not there", shown(name), shown(target));
    if (!contents.has(Part::model, name)) {
      out.aliases[ZeroContents::plain_name(name)] = ZeroContents::plain_name(target);
    }
  }
  if (!step.has_value()) step = model.steps;
  if (step.has_value()) out.scalars.set("step", *step);
  for (std::size_t i = 0; i < groups.size() && i < model.shapes.size(); ++i) {
    nlohmann::json& names = groups[i]["params"] = nlohmann::json::array();
    for (const NamedShape& parameter : model.shapes[i]) {
      names.push_back(ZeroContents::plain_name(parameter.name));
    }
    nlohmann::json shown_group = groups[i];
    shown_group.erase("params");
    contents.note("parameter group {}: {}, {}", i, counted(names.size(), "parameter"),
                  shown_group.dump(-1, ' ', true).substr(0, 1000));
  }
  if (!groups.empty() && groups.size() == model.shapes.size()) {
    json_of(out.scalars)[param_groups_key] = groups;
  }
}

}  // namespace tessera::checkpoint::formats
