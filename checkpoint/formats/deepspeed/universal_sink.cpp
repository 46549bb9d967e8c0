// Writes universal checkpoints: each tensor in a file of its own as it comes, buffers that are no
// floats into the model's files, which stay open for them.
#include <fmt/format.h>
#include <algorithm>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/formats/deepspeed/universal.h"
#include "checkpoint/formats/torch/torch_archive.h"
#include "checkpoint/formats/torch/torch_optimizer.h"
#include "checkpoint/io/file.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint::formats {

namespace {

namespace fs = std::filesystem;

constexpr const char* archive_folder = "archive";
// DeepSpeed requires some version in the optimizer's file. It is the one that read our files.
constexpr const char* ds_version = "0.19.8";

bool is_float(const StoredDType& stored) {
  return stored.name.starts_with("F") || stored.name.starts_with("BF");
}

// A torch.save file whose storages are appended in their order.
class ArchiveFile {
 public:
  ArchiveFile(const fs::path& path, const std::string& pickle,
              const std::vector<std::uint64_t>& storages)
      : file_(File::create(path)) {
    std::vector<ZipPlan> plan = plan_torch_archive(archive_folder, pickle.size(), storages);
    plan_zip(plan);
    zip_.emplace(file_, 0, std::move(plan));
    zip_->append(pickle);
    zip_->append(torch_byteorder);
  }
  ArchiveFile(const ArchiveFile&) = delete;  // zip_ points to file_
  ArchiveFile& operator=(const ArchiveFile&) = delete;
  void append(const void* data, std::size_t bytes) { zip_->append(data, bytes); }
  void finish() {
    zip_->append(torch_version);
    zip_->finish();
    file_.sync();
    file_.close();
  }

 private:
  File file_;
  std::optional<ZipWriter> zip_;
};

class UniversalSink : public Sink {
 public:
  UniversalSink(const fs::path& folder, const Contents& contents)
      : contents_(contents), optimizer_(contents), folder_(folder) {
    std::int64_t step = 0;
    if (contents.scalars.contains("step")) step = contents.scalars.get<std::int64_t>("step");
    steps_ = step;
    tag_ = fmt::format("global_step{}", step);
    for (const TensorInfo& tensor : contents.tensors) {
      TESSERA_CHECK(torch_dtype(*tensor.stored) != nullptr, ErrorCode::checkpoint,
                    "PyTorch has no element type {} ({}): add --dtype", tensor.stored->name,
                    shown(tensor.name));
    }
    plan_files();
    create_folder(folder_ / tag_);
    create_folder(tensors_folder());
    write_file(folder_ / universal_latest_name, tag_);
    for (const char* name : {universal_model_name, universal_stage_3_model_name}) {
      models_.emplace_back(folder_ / tag_ / name, model_pickle(), buffer_bytes_);
    }
    write_state();
  }

  void append(std::size_t tensor, const std::byte* data, std::int64_t count) override {
    const TensorInfo& info = contents_.tensors[tensor];
    const std::size_t bytes = static_cast<std::size_t>(count) * (info.stored->bits / 8);
    if (paths_[tensor].empty()) {
      for (ArchiveFile& model : models_) model.append(data, bytes);
      return;
    }
    if (open_ != tensor) begin(tensor);
    file_->append(data, bytes);
  }

  void finish() override {
    begin(contents_.tensors.size());
    for (const OptimizerLayout::Parameter& parameter : optimizer_.parameters()) {
      if (parameter.has_step) write_step(parameter);
    }
    for (ArchiveFile& model : models_) model.finish();
    for (const std::string& name : folders_) sync_folder(tensors_folder() / name);
    sync_folder(tensors_folder());
    sync_folder(folder_ / tag_);
  }

 private:
  [[nodiscard]] fs::path tensors_folder() const { return folder_ / tag_ / universal_tensors_name; }

  // The file of each tensor; none: a buffer of the model's files.
  void plan_files() {
    paths_.resize(contents_.tensors.size());
    for (std::size_t i = 0; i < contents_.tensors.size(); ++i) {
      const TensorInfo& tensor = contents_.tensors[i];
      if (tensor.part != Part::model) continue;
      if (is_float(*tensor.stored)) {
        paths_[i] = file_of(tensor.name, "fp32");
        trained_.push_back(i);
      } else {
        buffers_.push_back(i);
        buffer_bytes_.push_back(
            static_cast<std::uint64_t>(element_count(tensor.shape, tensor.name)) *
            (tensor.stored->bits / 8));
      }
    }
    for (const OptimizerLayout::Parameter& parameter : optimizer_.parameters()) {
      for (const auto& [key, tensor] : parameter.tensors) {
        paths_[tensor] = file_of(parameter.name, key);
      }
    }
  }

  static fs::path file_of(const std::string& name, const std::string& key) {
    TESSERA_CHECK(is_plain_name(name) && is_plain_name(key), ErrorCode::checkpoint,
                  "{} and {} cannot be names of a folder and a file, as in a universal checkpoint",
                  shown(name), shown(key));
    return fs::path(name) / (key + ".pt");
  }

  // Finishes the file that is open, writes those of tensors without elements before `tensor`, and
  // opens its own.
  void begin(std::size_t tensor) {
    for (; next_ <= tensor && next_ <= contents_.tensors.size(); ++next_) {
      if (file_.has_value()) file_->finish();
      file_.reset();
      if (next_ == contents_.tensors.size()) break;
      if (paths_[next_].empty()) continue;
      const TensorInfo& info = contents_.tensors[next_];
      const std::int64_t count = element_count(info.shape, info.name);
      PickleWriter pickle;
      pickle.empty_dict().text("param");
      write_tensor(pickle, *torch_dtype(*info.stored), "0", count, info.shape);
      pickle.set_item().text("cat_dim").integer(0).set_item();
      const std::string folder = paths_[next_].parent_path().string();
      if (folders_.insert(folder).second) create_folder(tensors_folder() / folder);
      file_.emplace(tensors_folder() / paths_[next_], pickle.finish(),
                    std::vector{static_cast<std::uint64_t>(count) * (info.stored->bits / 8)});
    }
    open_ = tensor;
  }

  // A tensor of one number, as torch.optim keeps it.
  void write_step(const OptimizerLayout::Parameter& parameter) const {
    PickleWriter pickle;
    write_tensor(pickle, *torch_dtype_named("float32"), "0", 1, {});
    ArchiveFile file(tensors_folder() / file_of(parameter.name, "step"), pickle.finish(),
                     {sizeof parameter.step});
    file.append(&parameter.step, sizeof parameter.step);
    file.finish();
  }

  // The groups, once for stages 1 and 2 and once for stage 3, which takes the step from here.
  void write_state() const {
    nlohmann::json groups = optimizer_.groups();
    if (!groups.is_array() || groups.empty())
      groups = nlohmann::json::array({nlohmann::json::object()});
    for (std::size_t i = 0; i < groups.size(); ++i)
      groups[i]["params"] = nlohmann::json::array({i});
    bool has_step = false;
    float step = 0;
    for (const OptimizerLayout::Parameter& parameter : optimizer_.parameters()) {
      has_step = has_step || parameter.has_step;
      step = std::max(step, parameter.step);
    }
    PickleWriter pickle;
    pickle.empty_dict().text("zero_stage").integer(2).set_item();
    pickle.text("ds_version").text(ds_version).set_item().text("param_groups");
    write_json(pickle, groups);
    pickle.set_item().text("optimizer_state_dict").empty_dict().text("param_groups");
    write_json(pickle, groups);
    pickle.set_item().text("state").empty_dict();
    if (has_step) {
      pickle.integer(0).empty_dict().text("step");
      write_tensor(pickle, *torch_dtype_named("float32"), "0", 1, {});
      pickle.set_item().set_item();
    }
    pickle.set_item().set_item();
    std::vector<std::uint64_t> storages;
    if (has_step) storages.push_back(sizeof step);
    ArchiveFile file(tensors_folder() / universal_state_name, pickle.finish(), storages);
    if (has_step) file.append(&step, sizeof step);
    file.finish();
  }

  void write_shape(PickleWriter& pickle, std::size_t tensor) const {
    pickle.text(contents_.tensors[tensor].name).global("torch", "Size").mark();
    pickle.tuple_of(contents_.tensors[tensor].shape).tuple().reduce().set_item();
  }

  // The shapes of the trained parameters by group, in the groups' order; without groups that name
  // them, all in one.
  void write_shapes(PickleWriter& pickle) const {
    std::map<std::string, std::size_t> numbers;
    for (const std::size_t tensor : trained_)
      numbers.emplace(contents_.tensors[tensor].name, tensor);
    pickle.text("param_shapes").empty_list();
    std::set<std::string> written;
    const nlohmann::json& groups = optimizer_.groups();
    for (std::size_t g = 0; groups.is_array() && g < groups.size(); ++g) {
      pickle.empty_dict();
      const nlohmann::json names = groups[g].value("params", nlohmann::json::array());
      for (const nlohmann::json& name : names) {
        const auto found = name.is_string() ? numbers.find(name.get<std::string>()) : numbers.end();
        if (found == numbers.end() || !written.insert(found->first).second) continue;
        write_shape(pickle, found->second);
      }
      pickle.append();
    }
    if (!groups.is_array() || groups.empty()) {
      pickle.empty_dict();
      for (const std::size_t tensor : trained_) write_shape(pickle, tensor);
      pickle.append();
    }
    pickle.set_item();
  }

  [[nodiscard]] std::string model_pickle() const {
    PickleWriter pickle;
    pickle.empty_dict().text("module").global("collections", "OrderedDict").empty_tuple().reduce();
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
      const TensorInfo& info = contents_.tensors[buffers_[b]];
      pickle.text(info.name);
      write_tensor(pickle, *torch_dtype(*info.stored), std::to_string(b),
                   element_count(info.shape, info.name), info.shape);
      pickle.set_item();
    }
    pickle.set_item().text("buffer_names").empty_list();
    for (const std::size_t buffer : buffers_) pickle.text(contents_.tensors[buffer].name).append();
    pickle.set_item();
    write_shapes(pickle);
    pickle.text("shared_params").empty_dict();
    for (const auto& [name, target] : contents_.aliases) pickle.text(name).text(target).set_item();
    pickle.set_item();
    for (const auto& [key, value] : {std::pair<const char*, std::int64_t>{"global_steps", steps_},
                                     {"global_samples", 0},
                                     {"skipped_steps", 0},
                                     {"dp_world_size", 1},
                                     {"mp_world_size", 1}}) {
      pickle.text(key).integer(value).set_item();
    }
    pickle.text("ds_version").text(ds_version).set_item();
    pickle.text("universal_checkpoint_info").empty_dict();
    pickle.text("universal_checkpoint_version").real(0.4).set_item().set_item();
    return pickle.finish();
  }

  const Contents& contents_;
  OptimizerLayout optimizer_;
  fs::path folder_;
  std::string tag_;
  std::int64_t steps_ = 0;
  std::vector<fs::path> paths_;  // below zero/, by tensor
  std::vector<std::size_t> trained_, buffers_;
  std::vector<std::uint64_t> buffer_bytes_;
  std::set<std::string> folders_;  // of parameters, that were made
  std::list<ArchiveFile> models_;
  std::optional<ArchiveFile> file_;  // of the tensor open_
  std::size_t open_ = ~std::size_t{0};
  std::size_t next_ = 0;  // tensor whose file is not yet begun
};

}  // namespace

bool is_universal_file(std::string_view name) {
  constexpr std::string_view tag = "global_step";
  if (name == universal_latest_name) return true;
  const std::size_t slash = name.find('/');
  if (!name.starts_with(tag) || slash == std::string_view::npos) return false;
  const std::string_view number = name.substr(tag.size(), slash - tag.size());
  if (number.find_first_not_of("0123456789") != std::string_view::npos) return false;
  name.remove_prefix(slash + 1);
  if (name == universal_model_name || name == universal_stage_3_model_name) return true;
  const bool inside = name.starts_with(std::string(universal_tensors_name) + "/");
  return inside && name.ends_with(".pt") && std::count(name.begin(), name.end(), '/') <= 2;
}

std::unique_ptr<Sink> create_universal(const fs::path& folder, const Contents& contents,
                                       const WriteOptions& options) {
  TESSERA_CHECK(options.max_file_size == 0, ErrorCode::checkpoint,
                "a universal checkpoint has a file for each tensor: leave out --max-shard-size");
  return std::make_unique<UniversalSink>(folder, contents);
}

}  // namespace tessera::checkpoint::formats
