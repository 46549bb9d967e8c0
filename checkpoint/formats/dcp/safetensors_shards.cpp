// Lists the parts of each tensor in the headers of all files, and hands them to a PieceStore.
#include "checkpoint/formats/dcp/safetensors_shards.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/formats/pieces.h"
#include "checkpoint/formats/torch/torch_state.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint::formats {

namespace {

namespace fs = std::filesystem;

constexpr const char* sharding_info = "DCP_SHARDING_INFO";
constexpr std::int64_t most_elements = std::int64_t{1} << 62;
constexpr std::uint64_t shards_config_limit = std::uint64_t{16} << 20;

// The numbers in the name of a file.
struct ShardName {
  std::uint64_t shard = 0, file = 0, files = 0;
};

bool take_name_number(std::string_view& text, std::string_view before, std::uint64_t& number) {
  if (!text.starts_with(before)) return false;
  text.remove_prefix(before.size());
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number == 0 || number > 1'000'000) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

std::optional<ShardName> parse_shard_name(std::string_view text) {
  ShardName name;
  const bool fits = take_name_number(text, "shard-", name.shard) &&
                    take_name_number(text, "-model-", name.file) &&
                    take_name_number(text, "-of-", name.files) && text == ".safetensors";
  if (!fits) return std::nullopt;
  return name;
}

class ShardsOpener {
 public:
  explicit ShardsOpener(const fs::path& folder) : folder_(folder) {}

  std::unique_ptr<Source> open() {
    const std::vector<std::string> names = file_names();
    for (const std::string& name : names) add_file(name);
    Contents contents;
    std::vector<std::size_t> order;
    for (auto& [name, tensor] : tensors_) {
      const std::string what = fmt::format("'{}': tensor {}", folder_.string(), shown(name));
      contents.tensors.push_back({Part::model, name, tensor.stored, tensor.shape, tensor.where});
      order.push_back(
          store_.add_tensor({tensor.stored, tensor.shape, std::move(tensor.pieces)}, what));
    }
    add_model_files(contents, folder_);
    const bool compared = compare_with_config(contents);
    contents.notes.push_back(
        fmt::format("{} parts in the files of {} ranks", parts_, shards_.size()));
    if (!compared) {
      contents.notes.push_back(fmt::format(
          "the files do not say how many ranks wrote them, and no config.json tells the sizes of "
          "the model: rank {}'s were the last that were found",
          *shards_.rbegin() - 1));
    }
    return std::make_unique<PiecedSource>(std::move(store_), std::move(contents), std::move(order));
  }

 private:
  struct ShardedTensor {
    const StoredDType* stored = nullptr;
    std::vector<std::int64_t> shape;  // of what was found
    std::vector<Piece> pieces;
    std::string where;  // of the first part
  };

  // The names of the files, of which no number may be missing.
  std::vector<std::string> file_names() {
    std::vector<std::string> found;
    std::set<std::uint64_t> numbers;
    std::uint64_t files = 0;
    for (std::string& name : names_in_folder(folder_)) {
      const auto parsed = parse_shard_name(name);
      if (!parsed) continue;
      TESSERA_CHECK(files == 0 || files == parsed->files, ErrorCode::checkpoint,
                    "'{}' has files of two saves: {} is one of {} files, another of {}",
                    folder_.string(), shown(name), parsed->files, files);
      files = parsed->files;
      numbers.insert(parsed->file);
      shards_.insert(parsed->shard);
      found.push_back(std::move(name));
    }
    for (std::uint64_t file = 1; file <= files; ++file) {
      TESSERA_CHECK(numbers.contains(file), ErrorCode::checkpoint,
                    "'{}' has no shard of file {} of {}: files are missing", folder_.string(), file,
                    files);
    }
    return found;
  }

  void add_file(const std::string& name) {
    (void)open_member(folder_, name);
    const SafetensorsFile file(folder_ / name);
    const std::string source = fmt::format("'{}'", file.path().string());
    const auto text = file.header().metadata().find(sharding_info);
    TESSERA_CHECK(text != file.header().metadata().end(), ErrorCode::checkpoint,
                  "{} has no {} in its metadata, and so no places of its parts", source,
                  sharding_info);
    const nlohmann::json places = parse_json(text->second, source + ": " + sharding_info);
    for (const TensorEntry& entry : file.header().tensors()) {
      add_part(name, entry, offsets_of(places, entry, source), source);
    }
  }

  static std::vector<std::int64_t> offsets_of(const nlohmann::json& places,
                                              const TensorEntry& entry, const std::string& source) {
    std::vector<std::int64_t> offsets;
    const auto place = places.is_object() ? places.find(entry.name) : places.end();
    const bool listed = place != places.end() && place->is_object() &&
                        place->contains("saved_offsets") && (*place)["saved_offsets"].is_array();
    bool fits = listed && (*place)["saved_offsets"].size() == entry.shape.size();
    for (std::size_t i = 0; fits && i < entry.shape.size(); ++i) {
      const nlohmann::json& offset = (*place)["saved_offsets"][i];
      fits = offset.is_number_unsigned() && offset.get<std::uint64_t>() < most_elements &&
             entry.shape[i] < most_elements;
      if (fits) offsets.push_back(offset.get<std::int64_t>());
    }
    TESSERA_CHECK(fits, ErrorCode::checkpoint, "{}: {} has no offsets of {}, which is {}", source,
                  sharding_info, shown(entry.name), describe_shape(entry.shape));
    return offsets;
  }

  void add_part(const std::string& file, const TensorEntry& entry,
                std::vector<std::int64_t> offsets, const std::string& source) {
    TESSERA_CHECK(
        !entry.name.starts_with("optim") || entry.name.find(".state.") == std::string::npos,
        ErrorCode::checkpoint,
        "{} holds {}, the state of an optimizer, without its steps and hyperparameters; "
        "save the optimizer by FileSystemWriter, and the weights by themselves",
        source, shown(entry.name));
    ShardedTensor& tensor = tensors_[entry.name];
    if (tensor.stored == nullptr) {
      tensor.stored = entry.stored;
      tensor.shape.assign(entry.shape.size(), 0);
      tensor.where = file;
    }
    TESSERA_CHECK(tensor.stored == entry.stored && tensor.shape.size() == entry.shape.size(),
                  ErrorCode::checkpoint, "{}: {} is {} {}, and {} has another dtype or rank of it",
                  source, shown(entry.name), entry.stored->name, describe_shape(entry.shape),
                  shown(tensor.where));
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      tensor.shape[i] = std::max(tensor.shape[i], offsets[i] + entry.shape[i]);
    }
    const std::size_t record = store_.add_record(
        {store_.files().add(folder_ / file), entry.begin, entry.end - entry.begin, 0, entry.name});
    tensor.pieces.push_back(
        {{std::move(offsets), entry.shape}, record, 0, row_major_strides(entry.shape)});
    ++parts_;
  }

  // A missing last rank makes every tensor shorter. False if there is nothing to compare with.
  [[nodiscard]] bool compare_with_config(const Contents& contents) const {
    const auto file = contents.files.find("config.json");
    if (file == contents.files.end()) return false;
    const nlohmann::json config =
        parse_json(read_whole(open_member(folder_, "config.json"), shards_config_limit),
                   file->second.string());
    const auto size = [&](const char* key) {
      const auto found = config.is_object() ? config.find(key) : config.end();
      return found != config.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
    };
    const std::int64_t rows = size("vocab_size");
    const std::int64_t columns = std::max(size("hidden_size"), size("n_embd"));
    constexpr std::array<std::string_view, 4> tables{
        "embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight"};
    bool compared = false;
    for (const TensorInfo& tensor : contents.tensors) {
      const bool is_table = std::any_of(tables.begin(), tables.end(), [&](std::string_view end) {
        return tensor.name.ends_with(end);
      });
      if (!is_table || tensor.shape.size() != 2) continue;
      TESSERA_CHECK(tensor.shape[0] >= rows && tensor.shape[1] >= columns, ErrorCode::checkpoint,
                    "'{}': the parts of {} that are there make {}, and config.json requires "
                    "[{}, {}]: the files of a rank are missing",
                    folder_.string(), shown(tensor.name), describe_shape(tensor.shape), rows,
                    columns);
      compared = rows > 0 && columns > 0;
    }
    return compared;
  }

  const fs::path& folder_;
  PieceStore store_;
  std::map<std::string, ShardedTensor> tensors_;
  std::set<std::uint64_t> shards_;  // numbers of the ranks, from 1
  std::size_t parts_ = 0;
};

}  // namespace

bool has_safetensors_shards(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / hugging_face_file, error) ||
      fs::exists(folder / hugging_face_index, error) || !fs::is_directory(folder, error)) {
    return false;
  }
  try {
    const std::vector<std::string> names = names_in_folder(folder);
    return std::any_of(names.begin(), names.end(),
                       [](const std::string& name) { return parse_shard_name(name).has_value(); });
  } catch (const Error&) {
    return false;
  }
}

std::unique_ptr<Source> open_safetensors_shards(const fs::path& folder) {
  return ShardsOpener(folder).open();
}

}  // namespace tessera::checkpoint::formats
