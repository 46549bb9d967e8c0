// Opens torch.save's files, alone or in a folder, as a checkpoint, and writes such a file.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/beside.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/torch/legacy_file.h"
#include "checkpoint/formats/torch/torch_optimizer.h"
#include "checkpoint/formats/torch/torch_state.h"
#include "checkpoint/io/json.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint::formats {

namespace {

namespace fs = std::filesystem;

constexpr const char* torch_index_name = "pytorch_model.bin.index.json";
constexpr std::array<const char*, 5> torch_model_names{
    "pytorch_model.bin", "pytorch_model_fsdp.bin", "pytorch_model_fsdp_0.bin", "consolidated.pth",
    "consolidated.00.pth"};
constexpr std::array<const char*, 3> torch_optimizer_names{"optimizer.bin", "optimizer_0.bin",
                                                           "optimizer.pt"};
constexpr std::uint64_t torch_index_limit = std::uint64_t{1} << 28;

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

template <class Names>
std::optional<fs::path> first_of(const fs::path& folder, const Names& names) {
  for (const char* name : names) {
    if (is_file(folder / name)) return folder / name;
  }
  return std::nullopt;
}

bool looks_like_torch_file(const fs::path& path) {
  try {
    const File file = File::open_for_reading(path);
    std::array<char, legacy_head_bytes> head{};
    if (file.size() < 64) return false;
    file.read_at(0, head.data(), head.size());
    const std::string_view text(head.data(), head.size());
    const std::string ending = path.extension().string();
    const bool named = ending == ".bin" || ending == ".pt" || ending == ".pth" || ending == ".ckpt";
    // A plain pickle of such a name is recognised in order to refuse it with advice.
    return begins_as_torch_file(text) || (named && text.starts_with('\x80'));
  } catch (const Error&) {
    return false;  // opening it reports the reason
  }
}

bool recognises_torch(const fs::path& path) {
  if (is_file(path)) return looks_like_torch_file(path);
  return is_file(path / torch_index_name) || first_of(path, torch_model_names).has_value() ||
         first_of(path, torch_optimizer_names).has_value() || has_flat_shards(path);
}

// The numbered files of a folder's index, with the names that each must hold.
std::map<std::string, std::set<std::string>> files_of_index(const fs::path& path) {
  const nlohmann::json index = parse_json(read_file(path, torch_index_limit), path.string());
  const bool sound = index.is_object() && index.contains("weight_map") &&
                     index["weight_map"].is_object() && !index["weight_map"].empty();
  TESSERA_CHECK(sound, ErrorCode::checkpoint, "'{}' has no weight_map, or an empty one",
                path.string());
  std::map<std::string, std::set<std::string>> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    TESSERA_CHECK(file.is_string() && is_plain_name(file.get<std::string>()), ErrorCode::checkpoint,
                  "'{}': the file of tensor {} is {}, not a plain file name", path.string(),
                  shown(name), file.dump(-1, ' ', true));
    files[file.get<std::string>()].insert(name);
  }
  return files;
}

std::vector<std::string> names_of_index(const fs::path& folder) {
  std::vector<std::string> names;
  if (!is_file(folder / torch_index_name)) return names;
  for (const auto& [name, tensors] : files_of_index(folder / torch_index_name)) {
    names.push_back(name);
  }
  return names;
}

class TorchOpener {
 public:
  std::unique_ptr<Source> open(const fs::path& path) {
    if (is_file(path)) {
      add(path, {});
    } else {
      add_folder(path);
    }
    std::string source = fmt::format("'{}'", path.string());
    if (!optimizer_file_.empty()) source += " with " + optimizer_file_;
    NamedState state = name_state(
        std::move(items_), [this](std::size_t handle) { return store_.number(handle); }, source);
    if (!is_file(path)) {
      add_model_files(state.contents, path);
      note_unread_state(state.contents);
      note_other_optimizers(state.contents, path, {optimizer_file_});
      note_other_weights(state.contents, path, model_files_);
    }
    return make_source(std::move(store_), std::move(state));
  }

 private:
  // The state of a file beside the weights that has values and could not be named.
  void note_unread_state(Contents& contents) const {
    const bool read = std::any_of(contents.tensors.begin(), contents.tensors.end(),
                                  [](const auto& t) { return t.part == Part::optimizer; });
    if (read || optimizer_tensors_ == 0) return;
    if (contents.unread_state.empty()) contents.unread_state = optimizer_file_;
    contents.notes.push_back(unread_state_note(optimizer_file_));
  }

  void add_folder(const fs::path& folder) {
    refuse_several_models(folder, names_of_index(folder));
    refuse_flat_shards(folder);
    if (const auto model = first_of(folder, torch_model_names)) {
      add(*model, {});
      model_files_ = {model->filename().string()};
    } else if (is_file(folder / torch_index_name)) {
      add_indexed(folder);
    }
    if (const auto optimizer = first_of(folder, torch_optimizer_names)) {
      const std::size_t before = items_.tensors.size();
      add(*optimizer, {"optimizer"});
      optimizer_tensors_ = items_.tensors.size() - before;
      optimizer_file_ = optimizer->filename().string();
    }
  }

  void add(const fs::path& path, const StatePath& inside) {
    require_contents(path);
    FileTable& files = store_.files();
    const std::size_t file = files.add(path);
    const TorchArchive archive(files, file, 0, files.size(file),
                               fmt::format("'{}'", path.string()));
    add_state(items_, store_, archive, archive.root(), inside);
  }

  void add_indexed(const fs::path& folder) {
    for (const auto& [name, tensors] : files_of_index(folder / torch_index_name)) {
      const std::size_t before = items_.tensors.size();
      add(folder / name, {});
      model_files_.push_back(name);
      std::set<std::string> found;
      for (std::size_t i = before; i < items_.tensors.size(); ++i) {
        found.insert(items_.tensors[i].path.back());
      }
      for (const std::string& tensor : tensors) {
        TESSERA_CHECK(found.contains(tensor), ErrorCode::checkpoint,
                      "'{}' says that {} holds {}, and it does not",
                      (folder / torch_index_name).string(), shown(name), shown(tensor));
      }
      for (const std::string& tensor : found) {
        TESSERA_CHECK(tensors.contains(tensor), ErrorCode::checkpoint,
                      "'{}' does not list {}, which {} holds", (folder / torch_index_name).string(),
                      shown(tensor), shown(name));
      }
    }
  }

  PieceStore store_;
  StateItems items_;
  std::vector<std::string> model_files_;  // of a folder
  std::string optimizer_file_;            // beside the weights
  std::size_t optimizer_tensors_ = 0;
};

std::unique_ptr<Source> open_torch(const fs::path& path) {
  return TorchOpener().open(path);
}

// {"model": ..., "optimizer": ...}, or the model's state dict alone.
class TorchSink : public Sink {
 public:
  TorchSink(const fs::path& path, const Contents& contents)
      : contents_(contents), file_(File::create(path)) {
    for (const TensorInfo& tensor : contents.tensors) {
      const TorchDType* dtype = torch_dtype(*tensor.stored);
      TESSERA_CHECK(dtype != nullptr, ErrorCode::checkpoint,
                    "PyTorch has no element type {} ({}): add --dtype", tensor.stored->name,
                    shown(tensor.name));
      dtypes_.push_back(dtype);
      counts_.push_back(element_count(tensor.shape, tensor.name));
      storages_.push_back(static_cast<std::uint64_t>(counts_.back()) * (tensor.stored->bits / 8));
    }
    optimizer_ = OptimizerLayout(contents);
    const std::string pickle = compose();
    const std::string folder = "archive";
    std::vector<ZipPlan> plan = plan_torch_archive(folder, pickle.size(), storages_);
    plan_zip(plan);
    zip_.emplace(file_, 0, std::move(plan));
    zip_->append(pickle);
    zip_->append(torch_byteorder);
  }

  void append(std::size_t tensor, const std::byte* data, std::int64_t count) override {
    zip_->append(data,
                 static_cast<std::size_t>(count) * (contents_.tensors[tensor].stored->bits / 8));
  }

  void finish() override {
    for (const OptimizerLayout::Parameter& parameter : optimizer_.parameters()) {
      if (parameter.has_step) zip_->append(&parameter.step, sizeof parameter.step);
    }
    zip_->append(torch_version);
    zip_->finish();
    file_.sync();
    file_.close();
  }

 private:
  void write(PickleWriter& pickle, std::size_t tensor) {
    write_tensor(pickle, *dtypes_[tensor], std::to_string(tensor), counts_[tensor],
                 contents_.tensors[tensor].shape);
  }

  std::string compose() {
    PickleWriter pickle;
    if (optimizer_.parameters().empty()) {
      write_model(pickle);
      return pickle.finish();
    }
    pickle.empty_dict().text("model");
    write_model(pickle);
    pickle.set_item().text("optimizer").empty_dict().text("state").empty_dict();
    for (const OptimizerLayout::Parameter& parameter : optimizer_.parameters()) {
      pickle.text(parameter.name).empty_dict();
      if (parameter.has_step) {
        pickle.text("step");
        write_tensor(pickle, *torch_dtype_named("float32"), std::to_string(storages_.size()), 1,
                     {});
        pickle.set_item();
        storages_.push_back(sizeof parameter.step);
      }
      for (const auto& [key, tensor] : parameter.tensors) {
        pickle.text(key);
        write(pickle, tensor);
        pickle.set_item();
      }
      pickle.set_item();
    }
    pickle.set_item().text("param_groups");
    write_json(pickle, optimizer_.groups());
    pickle.set_item().set_item();
    return pickle.finish();
  }

  void write_model(PickleWriter& pickle) {
    pickle.global("collections", "OrderedDict").empty_tuple().reduce();
    std::map<std::string, std::size_t> numbers;
    for (std::size_t i = 0; i < contents_.tensors.size(); ++i) {
      if (contents_.tensors[i].part != Part::model) continue;
      numbers[contents_.tensors[i].name] = i;
      pickle.text(contents_.tensors[i].name);
      write(pickle, i);
      pickle.set_item();
    }
    for (const auto& [name, target] : contents_.aliases) {
      const auto found = numbers.find(target);
      TESSERA_REQUIRE(found != numbers.end(), "'{}' stands for '{}', which is not there", name,
                      target);
      pickle.text(name);
      write(pickle, found->second);
      pickle.set_item();
    }
  }

  const Contents& contents_;
  File file_;
  OptimizerLayout optimizer_;
  std::vector<const TorchDType*> dtypes_;
  std::vector<std::int64_t> counts_;
  std::vector<std::uint64_t> storages_;
  std::optional<ZipWriter> zip_;
};

std::unique_ptr<Sink> create_torch(const fs::path& path, const Contents& contents,
                                   const WriteOptions& options) {
  TESSERA_CHECK(options.max_file_size == 0, ErrorCode::checkpoint,
                "a torch.save file is one file: leave out --max-shard-size, or write --to hf");
  return std::make_unique<TorchSink>(path, contents);
}

}  // namespace

const Format& torch_format() {
  static const Format format{
      "torch",    "a torch.save file, or a folder of pytorch_model.bin and the like",
      true,       recognises_torch,
      open_torch, create_torch};
  return format;
}

}  // namespace tessera::checkpoint::formats
