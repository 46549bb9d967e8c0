// The text of manifests. Reading it checks everything that the rest of the code relies on.
#include "checkpoint/steps/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/state/scalars_json.h"
#include "checkpoint/steps/step_name.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

constexpr int format_version = 2;
constexpr int oldest_version = 1;  // its files have no cuts
constexpr std::uint64_t manifest_limit = std::uint64_t{64} << 20;

json to_json(const Section& section, StateDictType type) {
  json out{{"files", section.files}};
  if (type == StateDictType::full) return out;
  out["tensors"] = json::array();
  for (const TensorSpec& tensor : section.tensors) {
    out["tensors"].push_back({tensor.name, stored_dtype(tensor.dtype).name, tensor.shape});
  }
  out["pieces"] = json::array();
  for (const auto& of_file : section.pieces) {
    json list = json::array();
    for (const PieceRecord& piece : of_file) {
      list.push_back({piece.tensor, piece.first, piece.count});
    }
    out["pieces"].push_back(std::move(list));
  }
  return out;
}

std::uint64_t from_hex(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || error != std::errc{} || end != text.data() + text.size()) {
    fail(ErrorCode::checkpoint, "'{}' is not a checksum of 16 hexadecimal digits", text);
  }
  return value;
}

FileRecord file_from_json(const std::string& name, const json& in) {
  FileRecord file;
  file.name = name;
  TESSERA_CHECK(is_member_name(name), ErrorCode::checkpoint, "'{}' is not a plain file name", name);
  file.bytes = whole_number<std::uint64_t>(in.at("bytes"));
  file.chunk_bytes = whole_number<std::uint64_t>(in.at("chunk_bytes"));
  TESSERA_CHECK(file.chunk_bytes != 0, ErrorCode::checkpoint, "chunk_bytes of '{}' is 0", name);
  const auto hex = in.at("xxh3").get<std::string>();
  if (in.contains("cuts")) file.cuts = whole_numbers<std::uint64_t>(in.at("cuts"));
  const std::size_t chunks = ChunkMap(file.bytes, file.chunk_bytes, file.cuts).count();
  TESSERA_CHECK(hex.size() % 16 == 0 && hex.size() / 16 == chunks, ErrorCode::checkpoint,
                "'{}' has {} hexadecimal digits of checksums for {} chunks", name, hex.size(),
                chunks);
  file.chunks.reserve(static_cast<std::size_t>(chunks));
  for (std::size_t i = 0; i < hex.size(); i += 16) {
    file.chunks.push_back(from_hex(std::string_view(hex).substr(i, 16)));
  }
  return file;
}

// Checks that the pieces of all files hold each element of each tensor exactly once.
void check_pieces(const Section& section) {
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> runs(section.tensors.size());
  for (const auto& of_file : section.pieces) {
    for (const PieceRecord& piece : of_file) {
      TESSERA_CHECK(piece.tensor < runs.size() && piece.first >= 0 && piece.count >= 0,
                    ErrorCode::checkpoint, "piece [{}, {}, {}] belongs to no tensor", piece.tensor,
                    piece.first, piece.count);
      runs[piece.tensor].emplace_back(piece.first, piece.count);
    }
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::sort(runs[i].begin(), runs[i].end());
    std::int64_t next = 0;
    for (const auto& [first, count] : runs[i]) {
      TESSERA_CHECK(first == next && !__builtin_add_overflow(next, count, &next),
                    ErrorCode::checkpoint, "pieces of tensor '{}' have a hole or overlap at {}",
                    section.tensors[i].name, next);
    }
    const std::int64_t elements = element_count(section.tensors[i].shape, section.tensors[i].name);
    TESSERA_CHECK(next == elements, ErrorCode::checkpoint,
                  "pieces of tensor '{}' hold {} of its {} elements", section.tensors[i].name, next,
                  elements);
  }
}

Section section_from_json(const json& in, const Manifest& manifest) {
  Section section;
  section.files = in.at("files").get<std::vector<std::string>>();
  for (const std::string& name : section.files) static_cast<void>(manifest.file(name));
  if (manifest.type == StateDictType::full) return section;
  std::set<std::string> names;
  for (const json& tensor : in.at("tensors")) {
    TensorSpec spec;
    spec.name = tensor.at(0).get<std::string>();
    TESSERA_CHECK(names.insert(spec.name).second, ErrorCode::checkpoint, "tensor '{}' twice",
                  spec.name);
    const auto dtype = tensor.at(1).get<std::string>();
    const StoredDType* stored = find_stored_dtype(dtype);
    TESSERA_CHECK(stored != nullptr && stored->dtype.has_value(), ErrorCode::checkpoint,
                  "tensor '{}' has unknown dtype '{}'", spec.name, dtype);
    spec.dtype = *stored->dtype;
    spec.shape = whole_numbers<std::int64_t>(tensor.at(2));
    section.tensors.push_back(std::move(spec));
  }
  for (const json& of_file : in.at("pieces")) {
    auto& list = section.pieces.emplace_back();
    for (const json& piece : of_file) {
      list.push_back({whole_number<std::size_t>(piece.at(0)),
                      whole_number<std::int64_t>(piece.at(1)),
                      whole_number<std::int64_t>(piece.at(2))});
    }
  }
  TESSERA_CHECK(section.pieces.size() == section.files.size(), ErrorCode::checkpoint,
                "{} lists of pieces for {} files", section.pieces.size(), section.files.size());
  check_pieces(section);
  return section;
}

json to_json(const Lineage& lineage) {
  json out{{"run", lineage.run}, {"commit", lineage.commit}};
  if (!lineage.launch.empty()) out["launch"] = lineage.launch;
  if (!lineage.parent.empty()) {
    out["parent"] = lineage.parent;
    out["parent_commit"] = lineage.parent_commit;
  }
  return out;
}

Lineage lineage_from_json(const json& in) {
  Lineage lineage;
  lineage.run = in.at("run").get<std::string>();
  lineage.launch = in.value("launch", std::string());
  lineage.commit = whole_number<std::int64_t>(in.at("commit"));
  if (in.contains("parent")) {
    lineage.parent = in.at("parent").get<std::string>();
    lineage.parent_commit = whole_number<std::int64_t>(in.at("parent_commit"));
  }
  // They become names of folders.
  TESSERA_CHECK(is_hex_id(lineage.run) && (lineage.launch.empty() || is_hex_id(lineage.launch)) &&
                    (lineage.parent.empty() || is_hex_id(lineage.parent)),
                ErrorCode::checkpoint,
                "run, launch and parent must be of 16 hexadecimal digits each");
  return lineage;
}

Manifest from_json(const json& in) {
  const auto format = in.at("format").get<std::string>();
  TESSERA_CHECK(format == manifest_format, ErrorCode::checkpoint, "format is '{}', not '{}'",
                format, manifest_format);
  const int version = whole_number<int>(in.at("version"));
  TESSERA_CHECK(version >= oldest_version && version <= format_version, ErrorCode::checkpoint,
                "version {} is unknown, this program reads {} to {}; use the program that wrote it",
                version, oldest_version, format_version);
  Manifest manifest;
  manifest.save_id = in.at("save_id").get<std::string>();
  manifest.step = whole_number<std::int64_t>(in.at("step"));
  manifest.world_size = whole_number<int>(in.at("world_size"));
  const auto type = in.at("type").get<std::string>();
  TESSERA_CHECK(type == "full" || type == "sharded", ErrorCode::checkpoint,
                "type '{}' is neither full nor sharded", type);
  manifest.type = type == "full" ? StateDictType::full : StateDictType::sharded;
  for (const auto& [name, file] : in.at("files").items()) {
    manifest.files.push_back(file_from_json(name, file));
  }
  manifest.model = section_from_json(in.at("model"), manifest);
  manifest.optimizer = section_from_json(in.at("optimizer"), manifest);
  manifest.scalars = to_scalars(in.at("scalars"));
  if (in.contains("lineage")) manifest.lineage = lineage_from_json(in.at("lineage"));
  if (in.contains("score")) manifest.score = in.at("score").get<double>();
  return manifest;
}

// Describes a folder that has no manifest, with a way out for the user.
std::string describe_instead(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(folder, error)) return "the folder does not exist";
  if (!fs::is_directory(folder, error)) return "it is a file";
  const std::string name = (folder / "").parent_path().filename();
  if (parse_step_name(name.substr(0, name.find('.')))) {
    return "its save did not finish, or it is damaged; take another step";
  }
  std::int64_t newest = -1;
  for (const std::string& child : names_in_folder(folder)) {
    const std::int64_t step = parse_step_name(child).value_or(-1);
    if (step > newest && path_exists(folder / child / manifest_name)) newest = step;
  }
  if (newest >= 0) {
    return fmt::format("it is a folder of steps; name one of them, such as '{}'",
                       (folder / step_name(newest)).string());
  }
  for (const char* weights : {hugging_face_file, hugging_face_index}) {
    if (!path_exists(folder / weights)) continue;
    return "it is a Hugging Face folder, with weights alone; load them without an optimizer "
           "(ts::load, or model.pretrained in a recipe)";
  }
  return fmt::format("it holds neither steps nor {}", hugging_face_file);
}

}  // namespace

const FileRecord& Manifest::file(const std::string& name) const {
  const auto it = std::find_if(files.begin(), files.end(),
                               [&](const FileRecord& record) { return record.name == name; });
  TESSERA_CHECK(it != files.end(), ErrorCode::checkpoint, "no file '{}' is listed", name);
  return *it;
}

std::string to_text(const Manifest& manifest) {
  json files = json::object();
  for (const FileRecord& file : manifest.files) {
    std::string hex;
    for (const std::uint64_t chunk : file.chunks) hex += to_hex(chunk);
    json& entry = files[file.name];
    entry = {{"bytes", file.bytes}, {"chunk_bytes", file.chunk_bytes}, {"xxh3", hex}};
    if (!file.cuts.empty()) entry["cuts"] = file.cuts;
  }
  json body{{"format", manifest_format},
            {"version", format_version},
            {"save_id", manifest.save_id},
            {"step", manifest.step},
            {"world_size", manifest.world_size},
            {"type", manifest.type == StateDictType::full ? "full" : "sharded"},
            {"files", std::move(files)},
            {"model", to_json(manifest.model, manifest.type)},
            {"optimizer", to_json(manifest.optimizer, manifest.type)},
            {"scalars", json_of(manifest.scalars)},
            {"lineage", to_json(manifest.lineage)}};
  if (manifest.score && std::isfinite(*manifest.score)) body["score"] = *manifest.score;
  const std::string sum = to_hex(checksum(body.dump()));
  std::string text = json{{"manifest", std::move(body)}, {"xxh3", sum}}.dump(1) + '\n';
  TESSERA_CHECK(text.size() <= manifest_limit, ErrorCode::checkpoint,
                "the manifest of step {} would have {} bytes, more than the {} that a reader "
                "accepts; save fewer or smaller files",
                manifest.step, text.size(), manifest_limit);
  return text;
}

Manifest parse_manifest(std::string_view text, const std::string& source) {
  const json whole = parse_json(text, source);
  try {
    const json& body = whole.at("manifest");
    const auto promised = whole.at("xxh3").get<std::string>();
    const std::string found = to_hex(checksum(body.dump()));
    TESSERA_CHECK(promised == found && whole.size() == 2, ErrorCode::checkpoint,
                  "the contents do not match their checksum; the file is damaged");
    return from_json(body);
  } catch (const json::exception& error) {
    fail(ErrorCode::checkpoint, "'{}' is not a manifest: {}", source, error.what());
  } catch (const Error& error) {
    fail(ErrorCode::checkpoint, "'{}': {}", source, error.what());
  }
}

Manifest read_manifest(const std::filesystem::path& step_folder) {
  const std::filesystem::path path = step_folder / manifest_name;
  TESSERA_CHECK(path_exists(path), ErrorCode::checkpoint,
                "'{}' has no {}: it is not a committed checkpoint; {}", step_folder.string(),
                manifest_name, describe_instead(step_folder));
  return parse_manifest(read_file(path, manifest_limit), path.string());
}

std::string piece_name(const std::string& tensor, std::int64_t first) {
  return fmt::format("{}@{}", tensor, first);
}

bool is_plain_name(const std::string& name) {
  if (name.empty() || name == "." || name == "..") return false;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const auto byte = static_cast<unsigned char>(name[i]);
    const auto next = static_cast<unsigned char>(i + 1 < name.size() ? name[i + 1] : 0);
    // With a control character, of ASCII or of Latin-1, a name could overwrite text on a terminal.
    const bool is_control =
        byte < 0x20 || byte == 0x7f || (byte == 0xc2 && next >= 0x80 && next < 0xa0);
    if (is_control || byte == '/' || byte == '\\') return false;
  }
  return true;
}

bool is_member_name(const std::string& name) {
  const auto slash = name.find('/');
  if (slash == std::string::npos) return is_plain_name(name);
  return is_plain_name(name.substr(0, slash)) && is_plain_name(name.substr(slash + 1));
}

std::string tensor_prefix(const std::string& file) {
  const auto slash = file.find('/');
  return slash == std::string::npos ? std::string() : file.substr(0, slash) + ".";
}

}  // namespace tessera::checkpoint
