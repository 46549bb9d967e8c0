// Parses and composes the pickle of .metadata. Every chunk in a tensor's list must have one place
// in a file, and every place one chunk.
#include "checkpoint/formats/dcp/dcp_metadata.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/formats/torch/torch_archive.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::string_view dcp_module = "torch.distributed.checkpoint.metadata.";
constexpr const char* dcp_module_name = "torch.distributed.checkpoint.metadata";
constexpr const char* dcp_files_module_name = "torch.distributed.checkpoint.filesystem";
constexpr std::string_view storage_info = "torch.distributed.checkpoint.filesystem._StorageInfo";
constexpr std::string_view metadata_index = "torch.distributed.checkpoint.metadata.MetadataIndex";

bool is_dcp_global(std::string_view global) {
  constexpr std::array<std::string_view, 8> classes{
      "Metadata",         "MetadataIndex",        "TensorStorageMetadata",
      "TensorProperties", "ChunkStorageMetadata", "BytesStorageMetadata",
      "StorageMeta",      "_MEM_FORMAT_ENCODING"};
  constexpr std::array<std::string_view, 14> others{
      storage_info,
      // The plans of each rank's save, which Megatron-Core keeps and nothing here reads.
      "torch.distributed.checkpoint.planner.SavePlan",
      "torch.distributed.checkpoint.planner.WriteItem",
      "torch.distributed.checkpoint.planner.WriteItemType",
      "torch.distributed.checkpoint.planner.TensorWriteData",
      "torch.distributed.checkpoint.planner.BytesIOWriteData",
      // The modules of these classes in older PyTorch.
      "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
      "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING", "pathlib.PosixPath",
      "pathlib.PurePosixPath", "pathlib.WindowsPath", "pathlib.PureWindowsPath",
      "pathlib._local.PosixPath", "torch.memory_format"};
  if (global.starts_with(dcp_module)) {
    const std::string_view name = global.substr(dcp_module.size());
    return std::find(classes.begin(), classes.end(), name) != classes.end();
  }
  return std::find(others.begin(), others.end(), global) != others.end() || is_torch_global(global);
}

const PickleRules dcp_rules{is_dcp_global, "the .metadata of a distributed checkpoint",
                            "Save the checkpoint again with torch.distributed.checkpoint alone"};

struct PlacedIndex {
  std::vector<std::int64_t> offsets;
  DcpPlace place;
  bool used = false;
};

class MetadataReader {
 public:
  explicit MetadataReader(const PickleValue& root, const std::string& source)
      : source_(source), state_(state_of(root, "Metadata")) {}

  DcpMetadata run() {
    read_paths();
    read_places();
    const PickleValue entries = state_.require("state_dict_metadata");
    check(entries.is(PickleKind::dict), "its state_dict_metadata is not a dict");
    DcpMetadata out;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::string& key = entries.key(i).text();
      if (entries.value(i).is_object_of(std::string(dcp_module) + "BytesStorageMetadata")) {
        out.values.push_back({key, path_of(key), take_place(key, nullptr)});
      } else {
        out.tensors.push_back(read_tensor(key, entries.value(i)));
      }
    }
    for (const auto& [key, places] : places_) {
      for (const PlacedIndex& each : places) {
        TESSERA_CHECK(each.used, ErrorCode::checkpoint,
                      "{}: {} has a place in {} at {} that belongs to no tensor", source_,
                      shown(key), shown(each.place.file), describe_shape(each.offsets));
      }
    }
    return out;
  }

 private:
  void check(bool condition, std::string_view problem) const {
    TESSERA_CHECK(condition, ErrorCode::checkpoint, "{}: {}; the file is damaged", source_,
                  problem);
  }

  // The fields of a dataclass.
  PickleValue state_of(const PickleValue& value, std::string_view name) const {
    const bool fits = value.is(PickleKind::object) && value.at(0).global().ends_with(name) &&
                      value.state().has_value();
    TESSERA_CHECK(fits, ErrorCode::checkpoint, "{}: found {} instead of {}", source_,
                  name_of(value.kind()), name);
    return *value.state();
  }

  std::uint64_t number(const PickleValue& value) const {
    const std::int64_t signed_number = value.integer();
    check(signed_number >= 0, "it has a negative size or place");
    return static_cast<std::uint64_t>(signed_number);
  }

  void read_paths() {
    const auto data = state_.find("planner_data");
    if (!data.has_value() || !data->is(PickleKind::dict)) return;
    for (std::size_t i = 0; i < data->size(); ++i) {
      const PickleValue path = data->value(i);
      StatePath keys;
      for (std::size_t k = 0; k < path.size() && path.is(PickleKind::tuple); ++k) {
        const PickleValue key = path.at(k);
        keys.push_back(key.is(PickleKind::integer) ? std::to_string(key.integer()) : key.text());
      }
      if (!keys.empty() && keys.size() <= 32) paths_[data->key(i).text()] = std::move(keys);
    }
  }

  StatePath path_of(const std::string& key) const {
    const auto found = paths_.find(key);
    if (found != paths_.end()) return found->second;
    // Saved by a planner that does not flatten: only the key tells the path.
    for (const std::string_view part : {".state."}) {
      const std::size_t at = key.find(part);
      const std::size_t dot = key.rfind('.');
      if (at != std::string::npos && dot > at + part.size()) {
        return {key.substr(0, at), "state", key.substr(at + part.size(), dot - at - part.size()),
                key.substr(dot + 1)};
      }
    }
    return {key};
  }

  void read_places() {
    const auto data = state_.find("storage_data");
    check(data.has_value() && data->is(PickleKind::dict), "it has no storage_data");
    for (std::size_t i = 0; i < data->size(); ++i) {
      const PickleValue index = data->key(i);
      check(index.is_object_of(metadata_index), "its storage_data has other keys than indexes");
      const PickleValue fields = state_of(index, "MetadataIndex");
      PlacedIndex placed;
      if (const auto offset = fields.find("offset"); offset && !offset->is(PickleKind::none)) {
        placed.offsets = integers_of(*offset);
      }
      const PickleValue info = state_of(data->value(i), "_StorageInfo");
      placed.place.file = info.require("relative_path").text();
      placed.place.offset = number(info.require("offset"));
      placed.place.bytes = number(info.require("length"));
      const auto transforms = info.find("transform_descriptors");
      TESSERA_CHECK(!transforms || transforms->is(PickleKind::none) || transforms->size() == 0,
                    ErrorCode::checkpoint,
                    "{}: its files are compressed (transform_descriptors), which is not read: save "
                    "without extensions",
                    source_);
      TESSERA_CHECK(is_plain_name(placed.place.file), ErrorCode::checkpoint,
                    "{}: it names the file {}, which is not a plain file name", source_,
                    shown(placed.place.file));
      places_[fields.require("fqn").text()].push_back(std::move(placed));
    }
    for (auto& [key, places] : places_) {
      std::sort(places.begin(), places.end(),
                [](const PlacedIndex& a, const PlacedIndex& b) { return a.offsets < b.offsets; });
    }
  }

  DcpPlace take_place(const std::string& key, const std::vector<std::int64_t>* offsets) {
    const auto found = places_.find(key);
    if (found != places_.end()) {
      std::vector<PlacedIndex>& places = found->second;
      auto first = places.begin();
      if (offsets != nullptr) {
        first = std::lower_bound(places.begin(), places.end(), *offsets,
                                 [](const PlacedIndex& a, const auto& b) { return a.offsets < b; });
        // A place without offsets is the only one.
        if (places.size() == 1 && places[0].offsets.empty()) first = places.begin();
      }
      const bool fits =
          first != places.end() && !first->used &&
          (offsets == nullptr || first->offsets == *offsets || first->offsets.empty());
      if (fits) {
        first->used = true;
        return first->place;
      }
    }
    fail(ErrorCode::checkpoint,
         "{}: {} at {} has no place in a file: a rank's part is missing, or the file is damaged",
         source_, shown(key), offsets == nullptr ? "[]" : describe_shape(*offsets));
  }

  const StoredDType* dtype_of(const std::string& key, const PickleValue& properties) const {
    const PickleValue fields = state_of(properties, "TensorProperties");
    const PickleValue dtype = fields.is(PickleKind::dict) ? fields.require("dtype") : fields.at(0);
    std::string_view name = dtype.global();
    if (name.starts_with("torch.")) name.remove_prefix(6);
    const TorchDType* known = torch_dtype_named(name);
    TESSERA_CHECK(known != nullptr, ErrorCode::checkpoint,
                  "{}: tensor {} is of {}, which cannot be converted", source_, shown(key),
                  shown(name));
    return find_stored_dtype(known->stored);
  }

  DcpTensor read_tensor(const std::string& key, const PickleValue& value) {
    const PickleValue fields = state_of(value, "TensorStorageMetadata");
    DcpTensor tensor;
    tensor.key = key;
    tensor.path = path_of(key);
    tensor.stored = dtype_of(key, fields.require("properties"));
    tensor.shape = integers_of(fields.require("size"));
    const PickleValue chunks = fields.require("chunks");
    check(chunks.is(PickleKind::list), "a tensor has no list of chunks");
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const PickleValue chunk = state_of(chunks.at(i), "ChunkStorageMetadata");
      Box box{integers_of(chunk.require("offsets")), integers_of(chunk.require("sizes"))};
      DcpPlace place = take_place(key, &box.offsets);
      tensor.chunks.push_back({std::move(box), std::move(place)});
    }
    return tensor;
  }

  const std::string& source_;
  PickleValue state_;
  std::unordered_map<std::string, StatePath> paths_;
  std::map<std::string, std::vector<PlacedIndex>> places_;
};

// -- Writing

void write_size(PickleWriter& pickle, const std::vector<std::int64_t>& size) {
  pickle.global("torch", "Size").mark().tuple_of(size).tuple().reduce();
}

void begin_object(PickleWriter& pickle, const char* module, const char* name) {
  pickle.global(module, name).empty_tuple().new_object();
}

void write_properties(PickleWriter& pickle, const StoredDType& stored) {
  begin_object(pickle, dcp_module_name, "TensorProperties");
  pickle.mark().global("torch", torch_dtype(stored)->dtype);
  pickle.global("torch.serialization", "_get_layout").mark().text("torch.strided").tuple().reduce();
  pickle.boolean(false);
  pickle.global(dcp_module_name, "_MEM_FORMAT_ENCODING").mark().integer(0).tuple().reduce();
  pickle.boolean(false).tuple().build();
}

void write_tensor_entry(PickleWriter& pickle, const DcpTensor& tensor) {
  begin_object(pickle, dcp_module_name, "TensorStorageMetadata");
  pickle.empty_dict().text("properties");
  write_properties(pickle, *tensor.stored);
  pickle.set_item().text("size");
  write_size(pickle, tensor.shape);
  pickle.set_item().text("chunks").empty_list();
  for (const DcpChunk& chunk : tensor.chunks) {
    begin_object(pickle, dcp_module_name, "ChunkStorageMetadata");
    pickle.empty_dict().text("offsets");
    write_size(pickle, chunk.box.offsets);
    pickle.set_item().text("sizes");
    write_size(pickle, chunk.box.sizes);
    pickle.set_item().build().append();
  }
  pickle.set_item().build();
}

void write_place(PickleWriter& pickle, const std::string& key,
                 const std::vector<std::int64_t>* offsets, std::size_t index,
                 const DcpPlace& place) {
  begin_object(pickle, dcp_module_name, "MetadataIndex");
  pickle.empty_dict().text("fqn").text(key).set_item().text("offset");
  if (offsets != nullptr) {
    write_size(pickle, *offsets);
    pickle.set_item().text("index").integer(static_cast<std::int64_t>(index));
  } else {
    pickle.none().set_item().text("index").none();
  }
  pickle.set_item().build();
  begin_object(pickle, dcp_files_module_name, "_StorageInfo");
  pickle.empty_dict().text("relative_path").text(place.file).set_item();
  pickle.text("offset").integer(static_cast<std::int64_t>(place.offset)).set_item();
  pickle.text("length").integer(static_cast<std::int64_t>(place.bytes)).set_item();
  pickle.build().set_item();
}

void write_path(PickleWriter& pickle, const std::string& key, const StatePath& path) {
  pickle.text(key).mark();
  const auto groups = std::find(path.begin(), path.end(), "param_groups");
  for (auto each = path.begin(); each != path.end(); ++each) {
    std::int64_t number = 0;
    const char* const end = each->data() + each->size();
    const bool is_number = groups != path.end() && each == groups + 1 &&
                           std::from_chars(each->data(), end, number).ptr == end && !each->empty();
    if (is_number) {
      pickle.integer(number);
    } else {
      pickle.text(*each);
    }
  }
  pickle.tuple().set_item();
}

}  // namespace

DcpMetadata parse_dcp_metadata(std::string_view pickle, const std::string& source) {
  const Pickle parsed(pickle, source, dcp_rules);
  return MetadataReader(parsed.root(), source).run();
}

std::string compose_dcp_metadata(const DcpMetadata& metadata) {
  PickleWriter pickle;
  begin_object(pickle, dcp_module_name, "Metadata");
  pickle.empty_dict().text("state_dict_metadata").empty_dict();
  for (const DcpTensor& tensor : metadata.tensors) {
    pickle.text(tensor.key);
    write_tensor_entry(pickle, tensor);
    pickle.set_item();
  }
  for (const DcpBytes& value : metadata.values) {
    pickle.text(value.key);
    begin_object(pickle, dcp_module_name, "BytesStorageMetadata");
    pickle.set_item();
  }
  pickle.set_item().text("planner_data").empty_dict();
  for (const DcpTensor& tensor : metadata.tensors) write_path(pickle, tensor.key, tensor.path);
  for (const DcpBytes& value : metadata.values) write_path(pickle, value.key, value.path);
  pickle.set_item().text("storage_data").empty_dict();
  for (const DcpTensor& tensor : metadata.tensors) {
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      write_place(pickle, tensor.key, &tensor.chunks[i].box.offsets, i, tensor.chunks[i].place);
    }
  }
  for (const DcpBytes& value : metadata.values) {
    write_place(pickle, value.key, nullptr, 0, value.place);
  }
  pickle.set_item().text("storage_meta").none().set_item();
  pickle.text("version").text("1.0.0").set_item().build();
  return pickle.finish();
}

}  // namespace tessera::checkpoint::formats
