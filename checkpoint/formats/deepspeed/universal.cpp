// Opens universal checkpoints of DeepSpeed.
#include "checkpoint/formats/deepspeed/universal.h"

#include <fmt/format.h>
#include <algorithm>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/formats/deepspeed/zero_files.h"
#include "checkpoint/formats/deepspeed/zero_model.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/io/file.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint::formats {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view tensor_ending = ".pt";
constexpr const char* weights_file = "fp32.pt";

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// `path` itself, or the folder in it that latest_universal names. A file `latest` beside that means
// the ordinary checkpoint.
fs::path universal_tag_folder(const fs::path& path) {
  std::error_code error;
  if (is_folder(path / universal_tensors_name) || fs::is_regular_file(path / "latest", error) ||
      !fs::is_regular_file(path / universal_latest_name, error)) {
    return path;
  }
  return zero_tag_folder(path, universal_latest_name);
}

bool recognises_universal(const fs::path& path) {
  try {
    const fs::path folder = universal_tag_folder(path);
    if (folder != path && !is_folder(folder)) return true;  // refused with the reason
    const fs::path tensors = folder / universal_tensors_name;
    std::error_code error;
    if (fs::is_regular_file(tensors / universal_state_name, error)) return true;
    for (const fs::directory_entry& entry : fs::directory_iterator(tensors, error)) {
      if (fs::is_regular_file(entry.path() / weights_file, error)) return true;
    }
  } catch (const Error&) {
    return false;  // a file latest_universal of another program
  }
  return false;
}

class UniversalOpener {
 public:
  explicit UniversalOpener(fs::path folder)
      : folder_(std::move(folder)),
        source_(fmt::format("'{}'", folder_.string())),
        contents_(store_, source_) {}

  std::unique_ptr<Source> open(const fs::path& path) {
    find_model_files();
    read_state();
    model_ = read_zero_model(store_, files_, stage_, contents_);
    for (const auto& group : model_.shapes) {
      for (const NamedShape& parameter : group) {
        check(shapes_.emplace(parameter.name, &parameter).second, "{} has two shapes",
              shown(parameter.name));
        add_parameter(parameter.name, &parameter);
      }
    }
    add_others();
    note_missing_moments();
    finish_zero_contents(contents_, model_, std::move(groups_), step_);
    keep_step_counts(steps_, contents_.state().contents);
    add_model_files(contents_.state().contents, folder_);
    add_model_files(contents_.state().contents, path);
    return make_source(std::move(store_), std::move(contents_.state()));
  }

 private:
  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    check_zero(source_, condition, format, std::forward<Args>(args)...);
  }
  [[nodiscard]] fs::path tensors_folder() const { return folder_ / universal_tensors_name; }

  // The one of stages 1 and 2, or those of stage 3. Our own have both, with the same contents.
  void find_model_files() {
    std::error_code error;
    const auto is_there = [&](const char* name) {
      return fs::is_regular_file(folder_ / name, error);
    };
    check(!is_there("mp_rank_01_model_states.pt"),
          "it was made of several model-parallel ranks (mp_rank_01_model_states.pt), whose model "
          "files state the shapes of parts: make it from a run without tensor parallelism");
    if (is_there(universal_model_name)) {
      files_ = {folder_, {}, {{0, folder_ / universal_model_name}}};
    } else {
      files_ = list_zero_files(folder_);
    }
    check(!files_.model.empty(), "no model_states.pt: the checkpoint is incomplete");
  }

  // The hyperparameters, and the step if the parameters have no files of it (stage 3).
  void read_state() {
    stage_ = files_.model.begin()->second.filename().string().starts_with("zero_pp_rank") ? 3 : 2;
    std::error_code error;
    const fs::path path = tensors_folder() / universal_state_name;
    if (!fs::is_regular_file(path, error)) {
      contents_.note("no {}: hyperparameters are unknown", universal_state_name);
      return;
    }
    const TorchArchive from = open_zero_file(store_, path);
    PickleToJson converter;
    if (const auto groups = from.root().find("param_groups")) {
      for (std::size_t i = 0; i < groups->size(); ++i) {
        nlohmann::json group = converter.convert(groups->at(i));
        if (!group.is_object()) continue;
        group.erase("params");
        group.erase("step");
        groups_.push_back(std::move(group));
      }
    }
    const auto base = from.root().find("optimizer_state_dict");
    const auto states = base ? base->find("state") : std::nullopt;
    if (!states || !states->is(PickleKind::dict) || states->size() == 0) return;
    if (const auto step = states->value(0).find("step")) {
      StepCounts counts;
      add_step_count(counts, "the optimizer", number_of(from, *step), source_);
      step_ = counts.begin()->second;
    }
  }

  double number_of(const TorchArchive& from, const PickleValue& value) {
    const auto tensor = from.tensor(value);
    if (!tensor) return value.number();
    return store_.number(add_torch_tensor(store_, from, *tensor, from.source() + ": step"));
  }

  // The files of a parameter; `shape` as the model's file states it, if it does.
  void add_parameter(const std::string& name, const NamedShape* shape) {
    check(is_plain_name(name), "the name {} is not that of a folder", shown(name));
    const fs::path folder = tensors_folder() / name;
    check(is_folder(folder), "parameter {} has no folder {}/{}", shown(name),
          universal_tensors_name, shown(name));
    std::vector<std::string> keys;
    for (const std::string& file : names_in_folder(folder)) {
      if (file.ends_with(tensor_ending)) {
        keys.push_back(file.substr(0, file.size() - tensor_ending.size()));
      }
    }
    std::sort(keys.begin(), keys.end());
    check(std::find(keys.begin(), keys.end(), "fp32") != keys.end(), "parameter {} has no {}",
          shown(name), weights_file);
    if (shape != nullptr) files_of_[name].insert(keys.begin(), keys.end());
    for (const std::string& key : keys) {
      const TorchArchive from = open_zero_file(store_, folder / (key + std::string(tensor_ending)));
      if (key == "step") {
        add_step_count(steps_, ZeroContents::plain_name(name), number_of(from, from.root()),
                       source_);
      } else {
        add_tensor(from, name, key, shape);
      }
    }
  }

  void add_tensor(const TorchArchive& from, const std::string& name, const std::string& key,
                  const NamedShape* shape) {
    const auto inner = from.root().find("param");
    const auto tensor = from.tensor(inner ? *inner : from.root());
    check(tensor.has_value(), "{} has no tensor \"param\"", from.source());
    const bool weights = key == "fp32";
    const std::string what = fmt::format("{}: {}", from.source(), shown(name));
    const std::string full =
        ZeroContents::plain_name(name) + "." + (key == "momentum_buffer" ? "momentum" : key);
    const std::string& as = weights ? name : full;
    const Part part = weights ? Part::model : Part::optimizer;
    const std::vector<std::int64_t>* wanted = shape != nullptr ? &shape->shape : nullptr;
    // NAdam and ASGD have a state of one number.
    const bool number = !weights && tensor->shape.empty();
    if (wanted == nullptr || tensor->shape == *wanted || number) {
      contents_.add(part, as, tensor->stored, tensor->shape,
                    add_torch_tensor(store_, from, *tensor, what));
      return;
    }
    check(tensor->shape == std::vector<std::int64_t>{shape->count},
          "{} has the shape {}, and the model's file states {}", from.source(),
          describe_shape(tensor->shape), describe_shape(*wanted));
    PiecedTensor flat{tensor->stored, tensor->shape, {}};
    flat.pieces.push_back({{{0}, {shape->count}},
                           store_.add_record(from.storage(tensor->key)),
                           tensor->first,
                           tensor->strides});
    contents_.add_pieced(part, as, *wanted, std::move(flat));
  }

  // Folders that are not of trained parameters: DeepSpeed makes them of all tensors of the model's
  // file, in fp32. Buffers and frozen parameters were read from that file, as they are there.
  void add_others() {
    std::size_t others = 0;
    for (const std::string& name : names_in_folder(tensors_folder())) {
      if (!is_folder(tensors_folder() / name) || shapes_.contains(name) ||
          model_.shared.contains(name) || contents_.has(Part::model, name)) {
        continue;
      }
      add_parameter(name, nullptr);
      ++others;
    }
    if (others > 0) {
      contents_.note("{} of no parameter group: buffers, or parameters that are not trained",
                     counted(others, "tensor"));
    }
    contents_.note("a universal checkpoint; the weights are the optimizer's");
  }

  // Trained parameters have the same kinds of moments, unless some were frozen at first.
  void note_missing_moments() {
    std::set<std::string> all;
    for (const auto& [name, files] : files_of_) all.insert(files.begin(), files.end());
    all.erase("step");
    std::size_t lacking = 0;
    std::string example;
    for (const auto& each : files_of_) {
      const auto& files = each.second;
      const auto lost = std::find_if(all.begin(), all.end(),
                                     [&](const std::string& key) { return !files.contains(key); });
      if (lost == all.end()) continue;
      if (lacking++ == 0)
        example = fmt::format("{} has no {}{}", shown(each.first), *lost, tensor_ending);
    }
    if (lacking > 0) {
      contents_.note(
          "moments of {} are not there, and others have them ({}): not trained, or a file is "
          "missing",
          counted(lacking, "parameter"), example);
    }
  }

  fs::path folder_;
  std::string source_;
  PieceStore store_;
  ZeroContents contents_;
  ZeroFiles files_;
  int stage_ = 2;
  ZeroModel model_;
  std::map<std::string, const NamedShape*> shapes_;
  std::vector<nlohmann::json> groups_;
  StepCounts steps_;
  std::optional<std::int64_t> step_;
  std::map<std::string, std::set<std::string>> files_of_;  // of each trained parameter
};

std::unique_ptr<Source> open_universal(const fs::path& path) {
  const fs::path folder = universal_tag_folder(path);
  TESSERA_CHECK(
      is_folder(folder), ErrorCode::checkpoint,
      "'{}' does not exist, and {} beside it names that folder: write the name of another "
      "one into the file, or give the folder itself",
      folder.string(), universal_latest_name);
  return UniversalOpener(folder).open(path);
}

}  // namespace

const Format& universal_format() {
  static const Format format{"universal",    "a DeepSpeed universal checkpoint (zero/NAME/fp32.pt)",
                             false,          recognises_universal,
                             open_universal, create_universal};
  return format;
}

}  // namespace tessera::checkpoint::formats
