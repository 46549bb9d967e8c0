// Sentence Transformers' folders: modules.json and the configuration of each module it names.
#include <fmt/format.h>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"
#include "checkpoint/load/hugging_face.h"
#include "models/config/config_reader.h"
#include "models/registry/registry.h"
#include "models/sentence_encoder/sentence_encoder.h"
#include "models/sentence_encoder/sentence_modules.h"
#include "models/weights_bound.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t description_limit = std::uint64_t{16} << 20;

std::optional<std::string> text_of(const fs::path& folder, const std::string& name) {
  std::error_code error;
  if (!fs::exists(folder / name, error)) return std::nullopt;
  return checkpoint::read_whole(checkpoint::open_member(folder, name), description_limit);
}

// Fields of the small files beside a config.json.
class FolderReader {
 public:
  FolderReader(const json& config, const std::string& source)
      : reader_(config, source), source_(source) {}
  [[nodiscard]] bool has(const char* key) const { return reader_.has(key); }
  [[nodiscard]] std::string text(const char* key) const { return reader_.text(key); }
  [[nodiscard]] std::string text(const char* key, const char* fallback) const {
    return has(key) ? reader_.text(key) : fallback;
  }
  [[nodiscard]] bool flag(const char* key, bool fallback) const {
    const json* const value = reader_.value(field(key, ConfigKey::Type::flag));
    return value != nullptr ? value->get<bool>() : fallback;
  }
  [[nodiscard]] std::int64_t positive(const char* key, Range range = at_least(1)) const {
    ConfigKey wanted = field(key, ConfigKey::Type::whole);
    wanted.range = range;
    const json* const value = reader_.value(wanted);
    reader_.check_key(value != nullptr, key, "is missing");
    return value->get<std::int64_t>();
  }
  void only(const char* key, bool supported) const { reader_.only(key, supported); }
  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail(ErrorCode::configuration, "{}: {}", source_,
         fmt::format(format, std::forward<Args>(args)...));
  }
  [[nodiscard]] const std::string& source() const { return source_; }

 private:
  static ConfigKey field(const char* key, ConfigKey::Type type) {
    ConfigKey wanted;
    wanted.name = key;
    wanted.type = type;
    return wanted;
  }
  ConfigReader reader_;
  std::string source_;
};

// Reads a file that must exist. Its text goes into `files` under its path in the folder.
json take_json(const fs::path& folder, const std::string& name,
               std::map<std::string, std::string>& files) {
  const fs::path path = folder / name;
  const auto text = text_of(folder, name);
  TESSERA_CHECK(text.has_value(), ErrorCode::configuration,
                "'{}' has no {}; it is incomplete: copy or download it again", folder.string(),
                name);
  json value = checkpoint::parse_json(*text, path.string());
  files[name] = *text;
  return value;
}

struct ModuleEntry {
  std::string kind;  // the last part of its Python name
  std::string type;  // the whole name
  std::string path;  // of its folder
};

std::vector<ModuleEntry> read_modules(const json& list, const std::string& source) {
  TESSERA_CHECK(list.is_array() && !list.empty(), ErrorCode::configuration,
                "{}: not a list of modules", source);
  std::vector<ModuleEntry> entries;
  for (const json& item : list) {
    const FolderReader reader(item, source);
    ModuleEntry entry{{}, reader.text("type"), reader.text("path", "")};
    entry.kind = entry.type.substr(entry.type.rfind('.') + 1);
    const bool plain = entry.path.find('/') == std::string::npos && entry.path != "..";
    TESSERA_CHECK(plain, ErrorCode::configuration, "{}: path \"{}\" is not a folder name", source,
                  entry.path);
    entries.push_back(std::move(entry));
  }
  return entries;
}

constexpr std::pair<std::string_view, PoolingMode> pooling_names[] = {
    {"cls", PoolingMode::cls},
    {"max", PoolingMode::max},
    {"mean", PoolingMode::mean},
    {"mean_sqrt_len_tokens", PoolingMode::mean_sqrt_length}};

PoolingMode pooling_mode(std::string_view name, const FolderReader& reader) {
  for (const auto& [known, mode] : pooling_names) {
    if (known == name) return mode;
  }
  fail(ErrorCode::configuration,
       "{}: pooling by {} is not supported; use cls, max, mean and mean_sqrt_len_tokens",
       reader.source(), name);
}

// One key with the modes' names or, as in versions before 5, a boolean for each.
std::vector<PoolingMode> read_pooling(const json& config, const FolderReader& reader) {
  std::vector<PoolingMode> modes;
  if (reader.has("pooling_mode")) {
    const json& value = config.at("pooling_mode");
    const json list = value.is_array() ? value : json::array({value});
    for (const json& name : list) {
      reader.check(name.is_string(), "pooling_mode = {} is not a mode's name, or a list of such",
                   value.dump());
      const PoolingMode mode = pooling_mode(name.get<std::string>(), reader);
      reader.check(std::find(modes.begin(), modes.end(), mode) == modes.end(),
                   "pooling_mode names {} twice", name.dump());
      modes.push_back(mode);
    }
    reader.check(!modes.empty(), "pooling_mode is an empty list");
    return modes;
  }
  // In the order of their results.
  for (const auto& [key, name] : {std::pair{"pooling_mode_cls_token", "cls"},
                                  {"pooling_mode_max_tokens", "max"},
                                  {"pooling_mode_mean_tokens", "mean"},
                                  {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"},
                                  {"pooling_mode_weightedmean_tokens", "weightedmean"},
                                  {"pooling_mode_lasttoken", "lasttoken"}}) {
    // Sentence Transformers' default is the mean.
    if (reader.flag(key, std::string_view(name) == "mean"))
      modes.push_back(pooling_mode(name, reader));
  }
  reader.check(!modes.empty(), "no pooling mode is true");
  return modes;
}

void check_dimension(const FolderReader& reader, const char* key, std::int64_t value,
                     std::int64_t wanted) {
  reader.check(value == wanted, "{} = {}, but what comes before it has {}", key, value, wanted);
}

void check_names(const FolderReader& reader) {
  for (const char* key : {"module_input_name", "module_output_name"}) {
    const std::string name = reader.text(key, "sentence_embedding");
    reader.check(name == "sentence_embedding",
                 "{} = \"{}\" is not supported; use sentence_embedding", key, name);
  }
}

SentenceModuleHandle read_dense(const json& config, const std::string& source, std::int64_t& dim) {
  const FolderReader reader(config, source);
  SentenceDenseOptions options;
  options.in = reader.positive("in_features");
  options.out = reader.positive("out_features", width_of());
  options.bias = reader.flag("bias", true);
  check_dimension(reader, "in_features", options.in, dim);
  check_names(reader);
  reader.only("use_residual", false);
  const std::string name = reader.text("activation_function", "torch.nn.modules.activation.Tanh");
  constexpr std::pair<std::string_view, SentenceActivation> known[] = {
      {"Tanh", SentenceActivation::tanh},       {"Identity", SentenceActivation::identity},
      {"ReLU", SentenceActivation::relu},       {"GELU", SentenceActivation::gelu},
      {"Sigmoid", SentenceActivation::sigmoid}, {"SiLU", SentenceActivation::silu}};
  const std::string kind = name.substr(name.rfind('.') + 1);
  const auto* const found = std::find_if(std::begin(known), std::end(known), [&](const auto& row) {
    return name.starts_with("torch.nn.") && kind == row.first;
  });
  reader.check(found != std::end(known),
               "activation_function \"{}\" is not supported; use torch.nn's Tanh, Identity, "
               "ReLU, GELU, Sigmoid or SiLU",
               name);
  options.activation = found->second;
  dim = options.out;
  return SentenceModuleHandle(std::make_shared<SentenceDenseImpl>(options));
}

// The tokenizer's limit, if Sentence Transformers' own file has none.
std::optional<std::int64_t> tokenizer_length(const fs::path& folder) {
  const auto text = text_of(folder, "tokenizer_config.json");
  if (!text) return std::nullopt;
  const json config = checkpoint::parse_json(*text, (folder / "tokenizer_config.json").string());
  const auto it = config.is_object() ? config.find("model_max_length") : config.end();
  // tokenizer_config.json writes "no limit" as 10^30.
  if (it == config.end() || !it->is_number()) return std::nullopt;
  if (it->get<double>() < 1 || it->get<double>() > 1e9) return std::nullopt;
  return it->get<std::int64_t>();
}

void read_lengths(const fs::path& folder, SentenceEncoder::Parts& parts) {
  const std::int64_t positions = parts.transformer->positions();
  std::optional<std::int64_t> length;
  if (const auto text = text_of(folder, "sentence_bert_config.json")) {
    const std::string source = (folder / "sentence_bert_config.json").string();
    const json config = checkpoint::parse_json(*text, source);
    const FolderReader reader(config, source);
    if (reader.has("max_seq_length")) length = reader.positive("max_seq_length");
    parts.do_lower_case = reader.flag("do_lower_case", false);
    parts.files["sentence_bert_config.json"] = *text;
  }
  if (!length) length = tokenizer_length(folder);
  parts.max_seq_length = std::min(length.value_or(positions), positions);
}

json transformer_config(const fs::path& folder, const json& changes) {
  std::map<std::string, std::string> ignored;
  json config = take_json(folder, "config.json", ignored);
  if (!changes.is_null()) config.update(changes);
  return config;
}

// What Sentence Transformers does around the modules when it encodes.
void read_encoding(const fs::path& folder, SentenceEncoder::Parts& parts) {
  const char* const name = "config_sentence_transformers.json";
  if (!text_of(folder, name)) return;
  const json config = take_json(folder, name, parts.files);
  const std::string source = (folder / name).string();
  const FolderReader reader(config, source);
  if (reader.has("truncate_dim")) parts.embedding_width = reader.positive("truncate_dim");
  if (!reader.has("default_prompt_name")) return;
  const std::string chosen = reader.text("default_prompt_name");
  const json prompts = config.value("prompts", json::object());
  reader.check(prompts.is_object() && prompts.contains(chosen) && prompts.at(chosen).is_string(),
               "default_prompt_name is \"{}\", and prompts has no text of that name", chosen);
  parts.prompt = prompts.at(chosen).get<std::string>();
}

void describe_mean_pooling(SentenceEncoder::Parts& parts) {
  parts.pooling = {PoolingMode::mean};
  parts.dimension = parts.transformer->width();
  const auto module = [](int index, const char* path, const char* type) {
    return json{{"idx", index},
                {"name", std::to_string(index)},
                {"path", path},
                {"type", std::string("sentence_transformers.models.") + type}};
  };
  const json modules =
      json::array({module(0, "", "Transformer"), module(1, "1_Pooling", "Pooling")});
  const json pooling{{"word_embedding_dimension", parts.dimension},
                     {"pooling_mode_cls_token", false},
                     {"pooling_mode_mean_tokens", true},
                     {"pooling_mode_max_tokens", false},
                     {"pooling_mode_mean_sqrt_len_tokens", false}};
  parts.files["modules.json"] = modules.dump(2) + "\n";
  parts.files["1_Pooling/config.json"] = pooling.dump(2) + "\n";
  if (parts.files.contains("sentence_bert_config.json")) return;
  const json lengths{{"max_seq_length", parts.max_seq_length},
                     {"do_lower_case", parts.do_lower_case}};
  parts.files["sentence_bert_config.json"] = lengths.dump(2) + "\n";
}

void read_following(const fs::path& folder, const std::vector<ModuleEntry>& entries,
                    const std::string& source, SentenceEncoder::Parts& parts) {
  parts.dimension = parts.transformer->width();
  std::set<std::string> paths;
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const ModuleEntry& entry = entries[i];
    TESSERA_CHECK(!entry.path.empty() && entry.path.find('.') == std::string::npos &&
                      paths.insert(entry.path).second,
                  ErrorCode::configuration,
                  "{}: module {} has the path \"{}\"; each needs a folder of its own", source, i,
                  entry.path);
    const std::string name = entry.path + "/config.json";
    const std::string where = (folder / name).string();
    const bool first = i == 1;
    TESSERA_CHECK(first == (entry.kind == "Pooling"), ErrorCode::configuration,
                  "{}: module {} is {}; after the transformer comes one Pooling, and then Dense "
                  "and Normalize",
                  source, i, entry.type);
    if (entry.kind == "Pooling") {
      const json config = take_json(folder, name, parts.files);
      const FolderReader reader(config, where);
      const char* const key =
          reader.has("embedding_dimension") ? "embedding_dimension" : "word_embedding_dimension";
      check_dimension(reader, key, reader.positive(key), parts.dimension);
      parts.pooling = read_pooling(config, reader);
      parts.pools_prompts = reader.flag("include_prompt", true);
      parts.dimension *= static_cast<std::int64_t>(parts.pooling.size());
    } else if (entry.kind == "Dense") {
      const json config = take_json(folder, name, parts.files);
      const FolderReader reader(config, where);
      check_matrix_bound(folder / entry.path, reader.positive("out_features"), parts.dimension);
      parts.modules.emplace_back(entry.path, read_dense(config, where, parts.dimension));
    } else if (entry.kind == "Normalize") {
      if (text_of(folder, name)) {  // older versions do not write it
        check_names(FolderReader(take_json(folder, name, parts.files), where));
      }
      parts.modules.emplace_back(entry.path,
                                 SentenceModuleHandle(std::make_shared<SentenceNormalizeImpl>()));
    } else {
      fail(ErrorCode::configuration,
           "{}: module {} is {}, which is not supported; there are Transformer, Pooling, Dense and "
           "Normalize",
           source, i, entry.type);
    }
  }
}

SentenceEncoder::Parts read_folder(const fs::path& folder, const json& changes) {
  SentenceEncoder::Parts parts;
  const std::string source = (folder / "config.json").string();
  if (!is_sentence_encoder_folder(folder.string())) {
    parts.transformer = make_text_encoder(transformer_config(folder, changes), source);
    read_lengths(folder, parts);
    describe_mean_pooling(parts);
    return parts;
  }
  const std::string modules = (folder / "modules.json").string();
  const auto entries = read_modules(take_json(folder, "modules.json", parts.files), modules);
  TESSERA_CHECK(entries[0].kind == "Transformer" && entries[0].path.empty(),
                ErrorCode::configuration,
                "{}: the first module is {} with the path \"{}\"; a Transformer with the path \"\" "
                "is supported: load the folder with sentence-transformers and save it again",
                modules, entries[0].type, entries[0].path);
  TESSERA_CHECK(entries.size() > 1, ErrorCode::configuration, "{}: no Pooling follows", modules);
  parts.transformer = make_text_encoder(transformer_config(folder, changes), source);
  read_lengths(folder, parts);
  read_following(folder, entries, modules, parts);
  read_encoding(folder, parts);
  return parts;
}

std::vector<std::string> dense_name(const std::string& name) {
  return {name.substr(name.find('.') + 1)};
}

}  // namespace

bool is_sentence_encoder_folder(const std::string& folder) {
  std::error_code error;
  return fs::exists(fs::path(folder) / "modules.json", error);
}

std::unique_ptr<SentenceEncoder> make_sentence_encoder(const std::string& folder) {
  return make_sentence_encoder(folder, json());
}

std::unique_ptr<SentenceEncoder> make_sentence_encoder(const std::string& folder,
                                                       const json& changes) {
  return std::make_unique<SentenceEncoder>(read_folder(folder, changes));
}

std::unique_ptr<SentenceEncoder> make_mean_pooling_encoder(const json& config,
                                                           const std::string& source) {
  SentenceEncoder::Parts parts;
  parts.transformer = make_text_encoder(config, source);
  parts.max_seq_length = parts.transformer->positions();
  describe_mean_pooling(parts);
  return std::make_unique<SentenceEncoder>(std::move(parts));
}

bool has_pooler(const std::string& folder, const SentenceEncoder& model) {
  const fs::path path = folder;
  std::error_code error;
  // A plan needs no weights; a sharded step lists them in its manifest.
  if (!fs::exists(path / "model.safetensors", error) &&
      !fs::exists(path / "model.safetensors.index.json", error)) {
    return false;
  }
  const checkpoint::HuggingFaceFolder opened = checkpoint::open_hugging_face(folder);
  const HuggingFaceNames names = model.hugging_face_names();
  const std::int64_t width = model.transformer().width();
  const auto has = [&](const char* name, const std::vector<std::int64_t>& shape) {
    for (const std::string& alias : names.aliases(name)) {
      const auto found = opened.tensors.find(alias);
      if (found != opened.tensors.end()) return found->second.entry->shape == shape;
    }
    return false;
  };
  return has(pooler_weight, {width, width}) && has("pooler.dense.bias", {width});
}

void load_sentence_encoder(const std::string& folder, const SentenceEncoder& model,
                           std::vector<checkpoint::LogicalTensor>& tensors) {
  const std::set<std::string> folders = model.tensor_folders();
  std::map<std::string, std::vector<checkpoint::LogicalTensor>> of_folder;
  std::vector<checkpoint::LogicalTensor> transformer;
  for (const checkpoint::LogicalTensor& tensor : tensors) {
    const std::string first = tensor.name.substr(0, tensor.name.find('.'));
    (folders.contains(first) ? of_folder[first] : transformer).push_back(tensor);
  }
  HuggingFaceNames names = model.hugging_face_names();
  // The head of a loss, which a training run saves beside the encoder.
  names.ignored.insert(names.ignored.end(), {"classifier.weight", "classifier.bias"});
  checkpoint::load_hugging_face(folder, transformer, names.ignored, names.aliases);
  for (auto& [name, module] : of_folder) {
    checkpoint::load_hugging_face((fs::path(folder) / name).string(), module, {}, dense_name);
  }
}

}  // namespace tessera::models
