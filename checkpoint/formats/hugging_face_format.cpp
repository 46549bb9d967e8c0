// Hugging Face's folders: weights in one file or numbered ones, config.json and the tokenizer's
// files beside them.
#include <fmt/format.h>
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/beside.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/formats/streamed_file.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/save/model_files.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t verify_block = std::size_t{4} << 20;
constexpr std::uint64_t small_file = std::uint64_t{256} << 20;

class HuggingFaceSource final : public Source {
 public:
  explicit HuggingFaceSource(const fs::path& path, WeightsRead form = WeightsRead::decoded) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      folder_ = open_hugging_face(path, form);
      for (const auto& file : folder_.files) require_member(path, file->file());
      add_files(path);
    } else {
      folder_ = open_weights(path);
    }
    for (const auto& [name, place] : folder_.tensors) {
      contents_.tensors.push_back({Part::model, name, place.entry->stored, place.entry->shape,
                                   place.file->path().filename().string()});
      places_.push_back(place);
    }
    contents_.notes = folder_.notes;
    use_config_without_quantization();
    for (const auto& module : modules_) add_tensors_of(*module);
    if (folder_.files.size() > 1) {
      contents_.notes.push_back(fmt::format("{} numbered files", folder_.files.size()));
    }
    if (fs::is_directory(path, error)) note_files_beside(path);
  }

  [[nodiscard]] const Contents& contents() const override { return contents_; }

  void read(std::size_t tensor, std::int64_t first, std::int64_t count, std::byte* data) override {
    places_[tensor].read(first, count, data);
  }

  // There are no checksums: verification shows only that every byte can be read.
  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) override {
    std::vector<std::string> damages;
    for (Damage& damage : examine(progress)) damages.push_back(std::move(damage.text));
    return damages;
  }

  std::vector<Damage> examine(const std::function<void(std::uint64_t)>& progress) override {
    std::vector<Damage> damages;
    std::vector<std::byte> block(verify_block);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const StoredWeight& place = places_[i];
      const std::vector<FileTensor> parts = place.decoder != nullptr
                                                ? place.decoder->parts()
                                                : std::vector{FileTensor{place.file, place.entry}};
      for (const auto& [file, entry] : parts) {
        const std::uint64_t bytes = entry->end - entry->begin;
        std::uint64_t done = 0;
        try {
          while (done < bytes) {
            const std::uint64_t part = std::min<std::uint64_t>(block.size(), bytes - done);
            file->read(*entry, done, block.data(), static_cast<std::size_t>(part));
            done += part;
            progress(part);
          }
        } catch (const Error& error) {
          damages.push_back(
              {fmt::format("tensor '{}': {}", entry->name, error.what()), bytes - done, {i}});
        }
      }
    }
    return damages;
  }

 private:
  void use_config_without_quantization() {
    if (!folder_.config) return;
    const auto file = contents_.files.find("config.json");
    if (file == contents_.files.end()) return;
    contents_.text_modes["config.json"] = File::open_for_reading(file->second).mode();
    contents_.files.erase(file);
    contents_.texts["config.json"] = *folder_.config;
  }

  void note_files_beside(const fs::path& folder) {
    contents_.unread_state = optimizer_file_in(folder);
    if (!contents_.unread_state.empty()) {
      contents_.notes.push_back(unread_state_note(contents_.unread_state));
      note_other_optimizers(contents_, folder, {contents_.unread_state});
    }
    std::vector<std::string> used;
    for (const auto& file : folder_.files) used.push_back(file->path().filename().string());
    refuse_several_models(folder, used);
    note_other_weights(contents_, folder, used, true);
  }

  // Adds the modules that follow a Sentence Transformers encoder. Their weights are tensors of the
  // model, under the folder's name.
  void add_modules(const fs::path& folder) {
    std::error_code error;
    const std::string name = folder.filename().string();
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      const std::string inner = entry.path().filename().string();
      if (inner == hugging_face_file) {
        modules_.push_back(std::make_unique<SafetensorsFile>(entry.path()));
        require_member(folder.parent_path(), modules_.back()->file());
        continue;
      }
      if (inner.starts_with('.') || !is_plain_name(inner) || !entry.is_regular_file(error) ||
          entry.file_size(error) > small_file) {
        continue;
      }
      (void)open_member(folder.parent_path(), name + "/" + inner);
      contents_.files[name + "/" + inner] = entry.path();
    }
  }

  void add_tensors_of(const SafetensorsFile& module) {
    const std::string folder = module.path().parent_path().filename().string();
    for (const TensorEntry& entry : module.header().tensors()) {
      TESSERA_CHECK(!folder_.tensors.contains(folder + "." + entry.name), ErrorCode::checkpoint,
                    "'{}' holds '{}', and {} has '{}.{}'", module.path().string(), entry.name,
                    hugging_face_file, folder, entry.name);
      contents_.tensors.push_back({Part::model, folder + "." + entry.name, entry.stored,
                                   entry.shape, folder + "/" + hugging_face_file});
      places_.push_back({&module, &entry});
    }
  }

  void add_files(const fs::path& folder) {
    std::error_code error;
    const bool of_modules = fs::exists(folder / "modules.json", error);
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      if (of_modules && is_module_folder(name) && entry.is_directory(error)) {
        add_modules(entry.path());
        continue;
      }
      // Code is only that of a model here; in folders of other formats it is a program's.
      const bool is_code = name.ends_with(".py") && !name.starts_with('.');
      if ((!belongs_to_model(name) && !is_code) || !is_plain_name(name) ||
          !entry.is_regular_file(error) || entry.file_size(error) > small_file) {
        continue;
      }
      (void)open_member(folder, name);
      contents_.files[name] = entry.path();
    }
  }

  HuggingFaceFolder folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> modules_;  // of folders in it
  Contents contents_;
  std::vector<StoredWeight> places_;
};

class HuggingFaceSink final : public Sink {
 public:
  HuggingFaceSink(const fs::path& folder, const Contents& contents, const WriteOptions& options)
      : folder_(folder), contents_(contents) {
    const PartSpecs part = specs_of_part(contents, Part::model, "safetensors", true);
    TESSERA_CHECK(part.specs.size() == contents.tensors.size(), ErrorCode::checkpoint,
                  "a Hugging Face folder holds weights alone; ask for --weights-only");
    const PlannedTensors plan =
        plan_tensor_files("model", part.specs, options.max_file_size, module_folders(contents));
    for (const auto& file : plan.files) {
      make_module_folder(folder_ / file.name);
      const std::size_t number = files_.add(folder_ / file.name, file.bytes);
      files_.write_at(number, 0, file.header.data(), file.header.size());
    }
    index_ = index_text(plan, part.specs);
    places_ = plan.places;
    done_.resize(places_.size());
  }

  void append(std::size_t tensor, const std::byte* data, std::int64_t count) override {
    const auto bytes = static_cast<std::size_t>(count) * contents_.tensors[tensor].stored->bits / 8;
    files_.write_at(places_[tensor].file, places_[tensor].offset + done_[tensor], data, bytes);
    done_[tensor] += bytes;
  }

  void finish() override {
    files_.finish();
    if (!index_.empty()) write_file(folder_ / hugging_face_index, index_);
    carry_files(contents_, folder_);
    sync_folder(folder_);
  }

 private:
  fs::path folder_;
  const Contents& contents_;
  StreamedFiles files_;
  std::string index_;
  std::vector<PlannedTensors::Place> places_;
  std::vector<std::uint64_t> done_;  // bytes of each tensor
};

bool recognises_hugging_face(const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return path.extension() == ".safetensors";
  return fs::exists(path / hugging_face_file, error) ||
         fs::exists(path / hugging_face_index, error);
}

std::unique_ptr<Source> open_hugging_face_source(const fs::path& path) {
  return std::make_unique<HuggingFaceSource>(path);
}

std::unique_ptr<Sink> create_hugging_face(const fs::path& path, const Contents& contents,
                                          const WriteOptions& options) {
  return std::make_unique<HuggingFaceSink>(path, contents, options);
}

}  // namespace

std::unique_ptr<Source> open_as_stored(const fs::path& folder) {
  return std::make_unique<HuggingFaceSource>(folder, WeightsRead::as_stored);
}

const Format& hugging_face_format() {
  static const Format format{
      .name = "hf",
      .description = "a Hugging Face folder (model.safetensors, or numbered files and an index)",
      .is_file = false,
      .recognises = recognises_hugging_face,
      .open = open_hugging_face_source,
      .create = create_hugging_face,
      .weights_alone = true};
  return format;
}

}  // namespace tessera::checkpoint::formats
