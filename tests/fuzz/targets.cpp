// One function for each parser of untrusted bytes. Each goes as far as the bytes allow: a
// torch.save file that opens is read completely, and the chunks of a DCP folder are checked.
#include "fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/dcp/dcp_metadata.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/torch/torch_archive.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/narrow/layer_tensors.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/steps/manifest.h"
#include "engine/data/corpus.h"
#include "engine/data/token_shards.h"
#include "fuzz/control_target.h"
#include "fuzz/data_target.h"
#include "models/clip/clip_config.h"
#include "models/registry/registry.h"
#include "models/vit/vit_config.h"
#include "tasks/columnar/arrow/arrow_input.h"
#include "tasks/columnar/arrow/arrow_reader.h"
#include "tasks/columnar/json_rows.h"
#include "tasks/columnar/tar/tar_samples.h"
#include "tasks/columnar/text_appender.h"
#include "tasks/conversations/conversation.h"
#include "tasks/conversations/preference.h"
#include "tokenizers/chat/chat_template.h"
#include "tokenizers/load.h"
#include "training/recipe/recipe.h"

namespace tessera::fuzz {

namespace {

namespace fs = std::filesystem;
using namespace checkpoint;
using namespace checkpoint::formats;

// The number of bytes of a tensor that are read; a file may claim to have far more.
constexpr std::int64_t readable = 1 << 16;

// A file in memory, which a path names.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ == -1) fail(ErrorCode::runtime, "memfd_create failed");
    if (::write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      fail(ErrorCode::runtime, "write to a memory file failed");
    }
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  [[nodiscard]] fs::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

ReadBytes reader_of(std::string_view bytes) {
  return [bytes](std::uint64_t offset, void* out, std::size_t count) {
    // A parser must not read beyond the size that it was given.
    if (offset > bytes.size() || count > bytes.size() - offset) __builtin_trap();
    std::memcpy(out, bytes.data() + offset, count);
  };
}

void run_pickle(std::string_view bytes) {
  const PickleRules everything{[](std::string_view) { return true; }, "anything", ""};
  const Pickle pickle(bytes, "'pickle'", everything);
  PickleToJson().convert(pickle.root());
}

void run_zip(std::string_view bytes) {
  const ZipDirectory directory(reader_of(bytes), bytes.size(), "'zip'");
  std::uint64_t sum = 0;
  for (const ZipRecord& record : directory.records()) {
    if (record.offset > bytes.size() || record.bytes > bytes.size() - record.offset) {
      __builtin_trap();
    }
    sum += record.bytes;
  }
  if (sum > bytes.size()) __builtin_trap();  // no byte is given out twice
}

void run_dcp_metadata(std::string_view bytes) {
  const DcpMetadata metadata = parse_dcp_metadata(bytes, "'.metadata'");
  for (const DcpTensor& tensor : metadata.tensors) {
    std::vector<Box> boxes;
    for (const DcpChunk& chunk : tensor.chunks) boxes.push_back(chunk.box);
    if (cover_problem(tensor.shape, boxes).empty()) element_count(tensor.shape, tensor.key);
  }
  // Parsed metadata can be written again.
  const std::string again = compose_dcp_metadata(metadata);
  if (parse_dcp_metadata(again, "'again'").tensors.size() != metadata.tensors.size()) {
    __builtin_trap();
  }
}

// A file that opened is read completely, from both ends.
void read_through(Source& source) {
  std::vector<std::byte> data;
  const auto& tensors = source.contents().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t all = element_count(tensors[i].shape, tensors[i].name);
    const std::int64_t count = std::min(all, readable / 8);
    data.resize(static_cast<std::size_t>(count) * 8);
    source.read(i, 0, count, data.data());
    source.read(i, all - count, count, data.data());
  }
  (void)source.verify(nullptr);
}

void run_torch_file(std::string_view bytes) {
  const MemoryFile file(bytes);
  read_through(*torch_format().open(file.path()));
}

void run_gguf(std::string_view bytes) {
  const MemoryFile file(bytes);
  read_through(*gguf_format().open(file.path()));
}

void run_safetensors(std::string_view bytes) {
  const SafetensorsHeader header =
      read_safetensors_header(reader_of(bytes), bytes.size(), "'safetensors'");
  for (const TensorEntry& tensor : header.tensors()) {
    if (tensor.begin > tensor.end || tensor.end > bytes.size()) __builtin_trap();
  }
}

// A folder for parsers that need one; it is removed at the end of the program.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = "/dev/shm/tessera-fuzz-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) fail(ErrorCode::runtime, "mkdtemp failed");
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void write_bytes(const fs::path& path, std::string_view bytes) {
  File file = File::create_or_truncate(path);
  file.write_at(0, bytes.data(), bytes.size());
  file.close();
}

// An index of numbered files, one of which exists.
void run_index(std::string_view bytes) {
  static const ScratchFolder torch_folder;
  write_bytes(torch_folder.path() / "pytorch_model.bin.index.json", bytes);
  try {
    (void)torch_format().open(torch_folder.path());
  } catch (const Error&) {
  }
  static const ScratchFolder folder;
  static const bool made = [] {
    const float values[3] = {1, 2, 3};
    write_safetensors(
        folder.path() / "model-00001-of-00002.safetensors",
        {{{"a", DType::float32, {2}}, values}, {{"b.c", DType::float32, {}}, values}});
    return true;
  }();
  (void)made;
  write_bytes(folder.path() / "model.safetensors.index.json", bytes);
  (void)open_hugging_face(folder.path());
}

// Two files in one: the length of the first in two bytes, then both.
std::pair<std::string_view, std::string_view> two_files(std::string_view bytes) {
  if (bytes.size() < 2) return {};
  const std::size_t first = static_cast<unsigned char>(bytes[0]) |
                            (static_cast<std::size_t>(static_cast<unsigned char>(bytes[1])) << 8);
  bytes.remove_prefix(2);
  return {bytes.substr(0, first), bytes.substr(std::min(first, bytes.size()))};
}

void run_dcp(std::string_view bytes) {
  static const ScratchFolder folder;
  const auto [metadata, tensors] = two_files(bytes);
  write_bytes(folder.path() / ".metadata", metadata);
  write_bytes(folder.path() / "__0_0.distcp", tensors);
  read_through(*dcp_format().open(folder.path()));
}

void run_safetensors_shards(std::string_view bytes) {
  static const ScratchFolder folder;
  const auto [first, second] = two_files(bytes);
  write_bytes(folder.path() / "shard-00001-model-00001-of-00001.safetensors", first);
  write_bytes(folder.path() / "shard-00002-model-00001-of-00001.safetensors", second);
  read_through(*dcp_format().open(folder.path()));
}

// config.json with a quantization_config, and the weights.
void run_quantized(std::string_view bytes) {
  static const ScratchFolder folder;
  const auto [config, tensors] = two_files(bytes);
  write_bytes(folder.path() / "config.json", config);
  write_bytes(folder.path() / "model.safetensors", tensors);
  std::vector<std::byte> data;
  for (const auto& [name, weight] : open_hugging_face(folder.path()).tensors) {
    if (weight.decoder == nullptr) continue;
    const StoredWeight rows{weight.file, nullptr, weight.decoder->as_int8_rows()};
    for (const StoredWeight& each : {weight, rows}) {
      if (each.decoder == nullptr) continue;
      const TensorEntry& entry = each.decoder->entry();
      const std::int64_t all = element_count(entry.shape, name);
      const std::int64_t count = std::min(all, readable);
      data.resize(static_cast<std::size_t>(count) * (entry.stored->bits / 8));
      each.read(0, count, data.data());
      each.read(all - count, count, data.data());
    }
  }
}

// Two ranks of a state dict of DTensors.
void run_verl(std::string_view bytes) {
  static const ScratchFolder folder;
  const auto [first, second] = two_files(bytes);
  write_bytes(folder.path() / "model_world_size_2_rank_0.pt", first);
  write_bytes(folder.path() / "model_world_size_2_rank_1.pt", second);
  read_through(*verl_format().open(folder.path()));
}

// The arguments, the metadata and one rank's tensors.
void run_megatron(std::string_view bytes) {
  static const ScratchFolder folder;
  const auto [common, rest] = two_files(bytes);
  const auto [metadata, tensors] = two_files(rest);
  write_bytes(folder.path() / "metadata.json", R"({"sharded_backend": "torch_dist"})");
  write_bytes(folder.path() / "common.pt", common);
  write_bytes(folder.path() / ".metadata", metadata);
  write_bytes(folder.path() / "__0_0.distcp", tensors);
  read_through(*megatron_format().open(folder.path()));
}

void run_deepspeed(std::string_view bytes) {
  static const ScratchFolder folder;
  const auto [model, optimizer] = two_files(bytes);
  write_bytes(folder.path() / "mp_rank_00_model_states.pt", model);
  write_bytes(folder.path() / "zero_pp_rank_0_mp_rank_00_optim_states.pt", optimizer);
  read_through(*deepspeed_format().open(folder.path()));
}

// The model's file and one tensor's.
void run_universal(std::string_view bytes) {
  static const ScratchFolder folder;
  const auto [model, tensor] = two_files(bytes);
  const fs::path parameter = folder.path() / "zero/norm.bias";
  fs::create_directories(parameter);
  write_bytes(folder.path() / "mp_rank_00_model_states.pt", model);
  write_bytes(parameter / "fp32.pt", tensor);
  write_bytes(parameter / "step.pt", tensor);
  read_through(*universal_format().open(folder.path()));
}

// The bytes are the part that the manifest's checksum covers; the checksum is made correct, because
// otherwise nothing would pass it.
void run_manifest(std::string_view bytes) {
  const nlohmann::json body = parse_json(bytes, "'manifest.json'");
  const nlohmann::json whole{{"manifest", body}, {"xxh3", to_hex(checksum(body.dump()))}};
  const Manifest manifest = parse_manifest(whole.dump(), "'manifest.json'");
  for (const FileRecord& file : manifest.files) {
    // In the step's folder, or in one of its subfolders ("2_Dense/model.safetensors").
    const std::filesystem::path path(file.name);
    if (path.is_absolute() || std::distance(path.begin(), path.end()) > 2) __builtin_trap();
    for (const std::filesystem::path& part : path) {
      if (!is_plain_name(part.string())) __builtin_trap();
    }
  }
}

void run_recipe(std::string_view bytes) {
  training::validate(training::parse_recipe(bytes, "recipe.yaml", {}), 1);
}

// A configuration of images, which the registry does not have. What is written must be read again.
template <class Config, class Write>
void check_image_config(const nlohmann::json& given, const Write& written) {
  std::optional<Config> config;
  try {
    config = Config::parse(given, "config.json");
  } catch (const Error&) {
    return;
  }
  try {
    (void)Config::parse(written(*config), "config.json");
  } catch (const Error&) {
    __builtin_trap();
  }
}

void run_config(std::string_view bytes) {
  const nlohmann::json config = parse_json(bytes, "config.json");
  for (const models::Architecture& architecture : models::architectures()) {
    try {
      architecture.check(config, "config.json");
    } catch (const Error&) {
    }
  }
  check_image_config<models::ViTConfig>(config, [](const models::ViTConfig& vit) {
    return vit.to_json("ViTForImageClassification", float32);
  });
  check_image_config<models::CLIPConfig>(
      config, [](const models::CLIPConfig& clip) { return clip.to_json(float32); });
}

void run_narrow(std::string_view bytes) {
  const std::string config(bytes);
  const NarrowPlan plan = plan_narrowing(config, {.heads = 1, .ffn = 1});
  if (plan.groups.kept > plan.groups.count || plan.columns.kept > plan.columns.count) {
    __builtin_trap();
  }
  (void)parse_json(plan.config, "config.json");
  (void)unit_matrices(config, true);
}

// Loads a tokenizer, encodes and decodes.
void use_tokenizer(const fs::path& path) {
  const auto tokenizer = tokenizers::load_tokenizer(path);
  const std::vector<std::int32_t> ids =
      tokenizer->encode("The \xff queen's 3rd  \u00c9a\u0301\n\n\u4e2d<s>");
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= tokenizer->vocabulary_size()) __builtin_trap();
  }
  (void)tokenizer->encode_sequence("x", 100);
  (void)tokenizer->decode(ids);
}

void run_chat_template(std::string_view bytes) {
  const tokenizers::ChatTemplate parsed(bytes, "'template'", {{"bos_token", "<s>"}});
  const auto conversation = nlohmann::ordered_json::parse(R"({
      "messages": [{"role": "system", "content": "a \u00e9"}, {"role": "user", "content": "b"},
                   {"role": "assistant", "content": [{"type": "text", "text": "c"}]}],
      "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": 1.5}}}]})");
  (void)parsed.render({.messages = conversation["messages"], .tools = conversation["tools"]},
                      {.add_generation_prompt = true, .finds_generations = true});
}

// A row of JSON lines, and what it becomes.
void run_conversation(std::string_view bytes) {
  const nlohmann::ordered_json row = tasks::json_row(bytes, "'row'");
  std::vector<std::string> names;
  for (const auto& item : row.items()) names.push_back(item.key());
  if (row.contains("chosen")) {
    (void)tasks::preference_of(row, tasks::preference_columns(names, {}, "'row'"), "'row'");
    return;
  }
  const tasks::ConversationRow read =
      tasks::conversation_of(row, tasks::conversation_columns(names, {}, "'row'"), "'row'");
  const tokenizers::ChatTemplate parsed(
      "{% for m in messages %}{{ m }}{{ m | tojson }}{% endfor %}", "'template'");
  if (!read.conversation.messages.is_null()) (void)parsed.render(read.conversation);
}

void run_tokenizer(std::string_view bytes) {
  static const ScratchFolder folder;
  write_bytes(folder.path() / "tokenizer.json", bytes);
  use_tokenizer(folder.path() / "tokenizer.json");
}

void run_tekken(std::string_view bytes) {
  static const ScratchFolder folder;
  write_bytes(folder.path() / "tekken.json", bytes);
  use_tokenizer(folder.path());
}

void run_tiktoken(std::string_view bytes) {
  static const ScratchFolder folder;
  const auto [settings, ranks] = two_files(bytes);
  write_bytes(folder.path() / "tokenizer_config.json", settings);
  write_bytes(folder.path() / "own.tiktoken", ranks);
  use_tokenizer(folder.path());
}

void run_vocab_merges(std::string_view bytes) {
  static const ScratchFolder folder;
  const auto [vocabulary, rest] = two_files(bytes);
  const auto [settings, merges] = two_files(rest);
  write_bytes(folder.path() / "vocab.json", vocabulary);
  write_bytes(folder.path() / "tokenizer_config.json", settings);
  write_bytes(folder.path() / "merges.txt", merges);
  use_tokenizer(folder.path());
}

// All columns that can be read, in parts, as long as they are small.
void run_arrow(std::string_view bytes) {
  constexpr std::int64_t most_values = 1 << 12;
  const MemoryFile file(bytes);
  const auto input = tasks::open_arrow_file(file.path());
  tasks::ArrowReader reader(*input, "'arrow'", false);
  std::vector<tasks::ArrowColumn> columns;
  for (const tasks::ArrowField& field : reader.schema().fields) {
    if (tasks::is_readable(field)) {
      columns.push_back(tasks::find_column(reader.schema().fields, field.name).value());
    }
    for (const tasks::ArrowField& child : field.children) {
      const auto inner = tasks::find_column(reader.schema().fields, field.name + "." + child.name);
      if (inner && tasks::is_readable(*inner->field)) columns.push_back(*inner);
    }
  }
  reader.choose(columns);
  while (reader.next()) {
    const std::int64_t wanted = std::min(reader.batch().rows(), most_values);
    for (const tasks::ArrowColumn& column : columns) {
      const std::int64_t rows =
          tasks::ArrowValues::fitting_rows(reader.batch(), column, 0, wanted, readable);
      if (rows > wanted) continue;  // of an empty batch
      const auto values =
          tasks::ArrowValues::read(reader.batch(), column, 0, rows, reader.dictionaries());
      for (std::int64_t i = 0; i < rows; ++i) (void)values.json(i);
    }
  }
}

// Two shards of a corpus.
void run_token_shards(std::string_view bytes) {
  constexpr std::int64_t most_ids = 1 << 10;
  static const ScratchFolder folder;
  const auto [first, second] = two_files(bytes);
  write_bytes(folder.path() / "a.tokens", first);
  write_bytes(folder.path() / "b.tokens", second);
  const auto shards = find_token_shards({folder.path().string()});
  if (shards.empty()) return;
  const Corpus corpus(shards, ByteTokenizer());
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(corpus.tokens(), most_ids)));
  corpus.read(0, ids);
  corpus.read(corpus.tokens() - static_cast<std::int64_t>(ids.size()), ids);
  (void)corpus.fingerprint();
}

void run_json_lines(std::string_view bytes) {
  static const ScratchFolder folder;
  const MemoryFile file(bytes);
  TextReader reader(file.path());
  const ByteTokenizer tokenizer;
  TokenStreamWriter writer(folder.path() / "out.tokens", tokenizer, TextStamp{}, {1, 1});
  tasks::TextAppender texts(tokenizer, 1, writer);
  tasks::for_each_json_line(reader, [&](std::string_view line, const std::string& place) {
    const nlohmann::ordered_json row = tasks::json_row(line, place);
    const nlohmann::ordered_json* const text = tasks::member_at(row, "meta.text");
    if (text != nullptr && text->is_string()) texts.add(text->get_ref<const std::string&>());
  });
  texts.finish();
}

// An archive, perhaps compressed.
void run_tar(std::string_view bytes) {
  const MemoryFile file(bytes);
  TextReader reader(file.path());
  tasks::for_each_tar_sample(reader, [](const nlohmann::ordered_json& row, const std::string&) {
    (void)row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  });
}

// A parser may refuse its input.
template <void (*parse)(std::string_view)>
void tolerant(std::string_view bytes) {
  try {
    parse(bytes);
  } catch (const Error&) {
  }
}

}  // namespace

const std::vector<FuzzTarget>& fuzz_targets() {
  static const std::vector<FuzzTarget> targets{
      {"pickle", tolerant<run_pickle>},
      {"zip", tolerant<run_zip>},
      {"dcp_metadata", tolerant<run_dcp_metadata>},
      {"dcp", tolerant<run_dcp>},
      {"safetensors_shards", tolerant<run_safetensors_shards>},
      {"deepspeed", tolerant<run_deepspeed>},
      {"verl", tolerant<run_verl>},
      {"megatron", tolerant<run_megatron>},
      {"universal", tolerant<run_universal>},
      {"torch_file", tolerant<run_torch_file>},
      {"gguf", tolerant<run_gguf>},
      {"safetensors", tolerant<run_safetensors>},
      {"index", tolerant<run_index>},
      {"quantized", tolerant<run_quantized>},
      {"manifest", tolerant<run_manifest>},
      {"recipe", tolerant<run_recipe>},
      {"config", tolerant<run_config>},
      {"narrow", tolerant<run_narrow>},
      {"tokenizer", tolerant<run_tokenizer>},
      {"chat_template", tolerant<run_chat_template>},
      {"conversation", tolerant<run_conversation>},
      {"tekken", tolerant<run_tekken>},
      {"tiktoken", tolerant<run_tiktoken>},
      {"vocab_merges", tolerant<run_vocab_merges>},
      {"control", tolerant<run_control>},
      {"data", tolerant<run_data>},
      {"arrow", tolerant<run_arrow>},
      {"token_shards", tolerant<run_token_shards>},
      {"json_lines", tolerant<run_json_lines>},
      {"tar", tolerant<run_tar>},
  };
  return targets;
}

}  // namespace tessera::fuzz
