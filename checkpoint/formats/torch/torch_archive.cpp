// torch.save's archives: their records, the globals that their pickles may name, and the tensors
// that they describe.
#include "checkpoint/formats/torch/torch_archive.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/torch/legacy_file.h"
#include "checkpoint/io/crc32.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::int64_t widest_expansion = 1024;  // elements of a view to those of its storage
constexpr std::size_t dimensions_limit = 64;     // PyTorch's
constexpr int json_depth = 32;
constexpr std::size_t json_values = 1'000'000;
constexpr std::size_t json_text_value = 64;  // bytes of text that count as a value

// Refuses the zip archives of other programs, by the names of their records.
void check_written_by_torch_save(const ZipDirectory& directory, const std::string& source) {
  const ZipRecord* compressed = nullptr;
  for (const ZipRecord& record : directory.records()) {
    TESSERA_CHECK(record.name.find("/constants.pkl") == std::string::npos, ErrorCode::checkpoint,
                  "{} is a TorchScript archive, which holds a program: save the model's "
                  "state_dict() with torch.save",
                  source);
    TESSERA_CHECK(!record.name.ends_with(".npy"), ErrorCode::checkpoint,
                  "{} is an archive of NumPy arrays (npz): load it with numpy.load and save its "
                  "arrays with safetensors.numpy.save_file",
                  source);
    if (record.compressed) compressed = &record;
  }
  TESSERA_CHECK(compressed == nullptr, ErrorCode::checkpoint,
                "{} has the compressed record {}: it is a zip archive, but torch.save compresses "
                "nothing",
                source, shown(compressed->name));
}

// The folder of an archive, which has one data.pkl.
std::string folder_of(const ZipDirectory& directory, const std::string& source) {
  constexpr std::string_view pickle_name = "data.pkl";
  check_written_by_torch_save(directory, source);
  std::string folder;
  bool found = false;
  for (const ZipRecord& record : directory.records()) {
    const std::size_t slash = record.name.rfind('/');
    if (slash == std::string::npos || record.name.substr(slash + 1) != pickle_name ||
        record.name.find('/') != slash) {
      continue;
    }
    TESSERA_CHECK(!found, ErrorCode::checkpoint, "{} has two pickles", source);
    folder = record.name.substr(0, slash + 1);
    found = true;
  }
  TESSERA_CHECK(found, ErrorCode::checkpoint,
                "{} has no data.pkl: it is a zip archive, but not a torch.save file", source);
  return folder;
}

// A file that torch.save did not write, by what it begins with. True for the form before
// PyTorch 1.6.
bool has_legacy_form(FileTable& files, std::size_t file, std::uint64_t offset, std::uint64_t bytes,
                     const std::string& source) {
  std::array<char, 264> head{};
  const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, head.size()));
  files.read(file, offset, head.data(), length);
  const std::string_view text(head.data(), length);
  TESSERA_CHECK(length <= 262 || text.substr(257, 5) != "ustar", ErrorCode::checkpoint,
                "{} is a tar file, as PyTorch 0.1 wrote them: load it with "
                "torch.load(..., weights_only=True) and write it again with torch.save",
                source);
  if (is_legacy_file(text)) return true;
  TESSERA_CHECK(!text.starts_with('\x80'), ErrorCode::checkpoint,
                "{} is a plain pickle, without the beginning of a torch.save file: save the state "
                "dict by torch.save or safetensors",
                source);
  // A safetensors file: the length of a header, and its first character.
  TESSERA_CHECK(
      length <= 8 || text[8] != '{' || text.substr(4, 4) != std::string_view("\0\0\0\0", 4),
      ErrorCode::checkpoint,
      "{} is a safetensors file in a distributed checkpoint "
      "(serialization_format=SAFETENSORS), whose parts of tensors are not joined: save "
      "without that, or by HuggingFaceStorageWriter with "
      "enable_consolidation=True, and convert the folder that it makes (hf)",
      source);
  TESSERA_CHECK(text.starts_with("PK\x03\x04"), ErrorCode::checkpoint,
                "{} does not begin as a torch.save file", source);
  return false;
}

std::string read_record_whole(FileTable& files, std::size_t file, std::uint64_t offset,
                              const ZipRecord& record, const std::string& source,
                              std::size_t limit) {
  TESSERA_CHECK(record.bytes <= limit, ErrorCode::checkpoint, "{}: its {} has {} bytes, over {}",
                source, shown(record.name), record.bytes, limit);
  std::string out(record.bytes, '\0');
  files.read(file, offset + record.offset, out.data(), out.size());
  TESSERA_CHECK(record.crc == 0 || record.crc == crc32(0, out.data(), out.size()),
                ErrorCode::checkpoint, "{} is damaged: the checksum of its {} differs", source,
                shown(record.name));
  return out;
}

}  // namespace

bool begins_as_torch_file(std::string_view head) {
  return head.starts_with("PK\x03\x04") || is_legacy_file(head);
}

TorchArchive::TorchArchive(FileTable& files, std::size_t file, std::uint64_t offset,
                           std::uint64_t bytes, std::string source, const PickleRules& rules)
    : source_(std::move(source)), file_(file), offset_(offset) {
  if (has_legacy_form(files, file, offset, bytes, source_)) {
    LegacyFile legacy = read_legacy_file(files, file, offset, bytes, source_, rules);
    pickle_ = std::move(legacy.pickle);
    legacy_storages_ = std::move(legacy.storages);
    return;
  }
  const ReadBytes read = [&](std::uint64_t at, void* data, std::size_t count) {
    files.read(file, offset + at, data, count);
  };
  directory_.emplace(read, bytes, source_);
  prefix_ = folder_of(*directory_, source_);
  if (const ZipRecord* order = directory_->find(prefix_ + "byteorder")) {
    const std::string text = read_record_whole(files, file, offset, *order, source_, 16);
    TESSERA_CHECK(text == torch_byteorder, ErrorCode::checkpoint,
                  "{} has the byte order {}: load and save it on a little-endian machine", source_,
                  shown(text));
  }
  const std::string text = read_record_whole(
      files, file, offset, *directory_->find(prefix_ + "data.pkl"), source_, pickle_bytes_limit);
  pickle_ = std::make_unique<Pickle>(text, source_, rules);
}

StoredRecord TorchArchive::storage(const std::string& key) const {
  if (!directory_.has_value()) {
    const auto found = legacy_storages_.find(key);
    TESSERA_CHECK(found != legacy_storages_.end(), ErrorCode::checkpoint,
                  "{}: storage {} is not in the list of its storages; the file is damaged", source_,
                  shown(key));
    return found->second;
  }
  const ZipRecord* record = directory_->find(prefix_ + "data/" + key);
  TESSERA_CHECK(record != nullptr, ErrorCode::checkpoint,
                "{}: storage {} has no record; the file is damaged", source_, shown(key));
  return {file_, offset_ + record->offset, record->bytes, record->crc, record->name};
}

std::optional<TorchTensor> TorchArchive::tensor(const PickleValue& value) const {
  if (!value.is(PickleKind::object)) return std::nullopt;
  return call(value.at(0).global(), value.at(1), 0);
}

// The tensor that a function would make from these arguments.
std::optional<TorchTensor> TorchArchive::call(const std::string& function,
                                              const PickleValue& arguments, int depth) const {
  TESSERA_CHECK(depth < 4, ErrorCode::checkpoint, "{}: a tensor of a tensor of a tensor", source_);
  constexpr std::string_view torch_utils = "torch._utils.";
  if (!function.starts_with(torch_utils) && !function.starts_with("torch._tensor.")) {
    return std::nullopt;
  }
  if (function == "torch._utils._rebuild_tensor" || function == "torch._utils._rebuild_tensor_v2") {
    return rebuild(arguments, false);
  }
  if (function == "torch._utils._rebuild_tensor_v3") return rebuild(arguments, true);
  if (function.starts_with("torch._utils._rebuild_parameter")) {
    const PickleValue inner = arguments.at(0);
    if (inner.is(PickleKind::object)) return call(inner.at(0).global(), inner.at(1), depth + 1);
  }
  // A tensor with attributes: FSDP adds some to gathered tensors.
  if (function == "torch._tensor._rebuild_from_type_v2" && arguments.at(0).is(PickleKind::global) &&
      (arguments.at(1).is_global("torch.Tensor") ||
       arguments.at(1).is_global("torch.nn.parameter.Parameter"))) {
    return call(arguments.at(0).global(), arguments.at(2), depth + 1);
  }
  fail(ErrorCode::checkpoint,
       "{}: a tensor by {} (sparse, quantized, of another class) cannot be converted; make it a "
       "dense one first",
       source_, function);
}

// Views by torch.conj() and of the imaginary part of one: PyTorch changes signs when it reads them.
void TorchArchive::refuse_lazy_bits(const PickleValue& arguments, std::size_t at) const {
  if (arguments.size() <= at || !arguments.at(at).is(PickleKind::dict)) return;
  const PickleValue metadata = arguments.at(at);
  for (std::size_t i = 0; i < metadata.size(); ++i) {
    const PickleValue value = metadata.value(i);
    if (value.is(PickleKind::boolean) && !value.boolean()) continue;
    const std::string key = metadata.key(i).is(PickleKind::text) ? metadata.key(i).text() : "";
    fail(ErrorCode::checkpoint,
         "{}: a tensor has the {}, so that its values are not those in the file; save "
         "tensor.resolve_{}() instead",
         source_,
         key == "neg"    ? "negative bit"
         : key == "conj" ? "conjugate bit"
                         : shown(key),
         key == "conj" ? "conj" : "neg");
  }
}

TorchTensor TorchArchive::rebuild(const PickleValue& arguments, bool with_dtype) const {
  const auto check = [&](bool condition, std::string_view problem) {
    TESSERA_CHECK(condition, ErrorCode::checkpoint, "{}: a tensor {}", source_, problem);
  };
  const PickleValue storage_value = arguments.at(0);
  check(storage_value.is(PickleKind::persistent) && storage_value.at(0).is(PickleKind::tuple) &&
            storage_value.at(0).size() >= 5,
        "has no storage");
  const PickleValue id = storage_value.at(0);
  check(id.at(0).text() == "storage", "has no storage");
  TorchTensor tensor;
  tensor.key = id.at(2).text();
  tensor.first = arguments.at(1).integer();
  tensor.shape = integers_of(arguments.at(2));
  tensor.strides = integers_of(arguments.at(3));
  check(tensor.shape.size() == tensor.strides.size(), "has strides that do not fit its shape");
  refuse_lazy_bits(arguments, with_dtype ? 7 : 6);
  std::string_view name = with_dtype ? arguments.at(6).global() : id.at(1).global();
  if (name.starts_with("torch.")) name.remove_prefix(6);
  const TorchDType* const type =
      with_dtype ? torch_dtype_named(name) : torch_dtype_of_storage(name);
  TESSERA_CHECK(type != nullptr, ErrorCode::checkpoint,
                "{}: tensors of {} cannot be converted; cast them first", source_, shown(name));
  tensor.stored = find_stored_dtype(type->stored);
  const std::int64_t elements = element_count(tensor.shape, source_);
  const StoredRecord record = storage(tensor.key);
  const std::uint64_t size = tensor.stored->bits / 8;
  const std::uint64_t claimed = static_cast<std::uint64_t>(id.at(4).integer());
  const bool untyped = id.at(1).global().ends_with("UntypedStorage");
  check(claimed <= record.bytes && (untyped ? claimed : claimed * size) == record.bytes,
        "has a storage whose record has another size");
  if (id.size() > 5) enter_view(tensor, id);
  check(elements <= widest_expansion * 1024 ||
            static_cast<std::uint64_t>(elements / widest_expansion) <= record.bytes / size,
        "claims far more elements than its storage has");
  return tensor;
}

// A storage may be a view of another: its key, first element and size follow those of the other.
void TorchArchive::enter_view(TorchTensor& tensor, const PickleValue& id) const {
  const PickleValue view = id.at(5);
  if (view.is(PickleKind::none)) return;
  const auto check = [&](bool condition) {
    TESSERA_CHECK(condition, ErrorCode::checkpoint,
                  "{}: a tensor reaches out of the view of a storage that it lies in", source_);
  };
  const std::int64_t first = view.at(1).integer();
  const std::int64_t size = view.at(2).integer();
  const std::int64_t whole = id.at(4).integer();
  check(first >= 0 && size >= 0 && first <= whole && size <= whole - first);
  std::int64_t last = tensor.first;  // of the view
  bool empty = false;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    std::int64_t step = 0;
    empty = empty || tensor.shape[d] == 0;
    check(tensor.strides[d] >= 0 &&
          !__builtin_mul_overflow(tensor.shape[d] - 1, tensor.strides[d], &step) &&
          !__builtin_add_overflow(last, step, &last));
  }
  check(tensor.first >= 0 && (empty || last < size));
  check(!__builtin_add_overflow(tensor.first, first, &tensor.first));
}

std::vector<std::int64_t> integers_of(const PickleValue& value) {
  std::vector<std::int64_t> out;
  PickleValue list = value;
  if (value.is_object_of("torch.Size")) {
    if (value.argument_count() == 0) return out;
    list = value.argument(0);
  }
  if (!list.is(PickleKind::list) && !list.is(PickleKind::tuple)) (void)list.integer();  // throws
  TESSERA_CHECK(list.size() <= dimensions_limit, ErrorCode::checkpoint,
                "{} has {} dimensions in a shape, the limit is {}", value.source(), list.size(),
                dimensions_limit);
  out.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) out.push_back(list.at(i).integer());
  return out;
}

nlohmann::json PickleToJson::convert(const PickleValue& value, int depth) {
  if (depth > json_depth || ++visited_ > json_values) return "...";
  switch (value.kind()) {
    case PickleKind::none:
      return nullptr;
    case PickleKind::boolean:
      return value.boolean();
    case PickleKind::integer:
      return value.integer();
    case PickleKind::real:
      return std::isfinite(value.number()) ? nlohmann::json(value.number())
                                           : nlohmann::json(fmt::format("{}", value.number()));
    case PickleKind::text:
      visited_ += value.text().size() / json_text_value;
      if (visited_ > json_values) return "...";
      return value.text();
    case PickleKind::list:
    case PickleKind::tuple:
      return list(value, depth);
    case PickleKind::dict:
      return dict(value, depth);
    default:
      return name_of(value.kind());
  }
}

nlohmann::json PickleToJson::list(const PickleValue& value, int depth) {
  nlohmann::json out = nlohmann::json::array();
  for (std::size_t i = 0; i < value.size() && visited_ <= json_values; ++i) {
    out.push_back(convert(value.at(i), depth + 1));
  }
  return out;
}

nlohmann::json PickleToJson::dict(const PickleValue& value, int depth) {
  nlohmann::json out = nlohmann::json::object();
  for (std::size_t i = 0; i < value.size() && visited_ <= json_values; ++i) {
    const PickleValue key = value.key(i);
    if (key.is(PickleKind::text)) {
      visited_ += key.text().size() / json_text_value;
      out[key.text()] = convert(value.value(i), depth + 1);
    } else if (key.is(PickleKind::integer)) {
      out[std::to_string(key.integer())] = convert(value.value(i), depth + 1);
    }
  }
  return out;
}

void write_tensor(PickleWriter& pickle, const TorchDType& dtype, const std::string& key,
                  std::int64_t elements, const std::vector<std::int64_t>& shape) {
  const bool typed = dtype.storage != nullptr;
  const auto size = static_cast<std::int64_t>(find_stored_dtype(dtype.stored)->bits / 8);
  pickle.global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3").mark();
  pickle.mark().text("storage");
  if (typed) {
    pickle.global("torch", dtype.storage);
  } else {
    pickle.global("torch.storage", "UntypedStorage");
  }
  pickle.text(key).text("cpu").integer(typed ? elements : elements * size).tuple().persistent();
  pickle.integer(0).tuple_of(shape).tuple_of(row_major_strides(shape)).boolean(false);
  pickle.global("collections", "OrderedDict").empty_tuple().reduce();
  if (!typed) pickle.global("torch", dtype.dtype);
  pickle.tuple().reduce();
}

std::vector<ZipPlan> plan_torch_archive(const std::string& folder, std::size_t pickle_bytes,
                                        const std::vector<std::uint64_t>& storages) {
  std::vector<ZipPlan> records{{folder + "/data.pkl", pickle_bytes, 0},
                               {folder + "/byteorder", torch_byteorder.size(), 0}};
  for (std::size_t i = 0; i < storages.size(); ++i) {
    records.push_back({fmt::format("{}/data/{}", folder, i), storages[i], 0});
  }
  records.push_back({folder + "/version", torch_version.size(), 0});
  return records;
}

}  // namespace tessera::checkpoint::formats
