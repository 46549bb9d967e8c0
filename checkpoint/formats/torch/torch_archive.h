// The files of torch.save, zip archives or in the older form (legacy_file.h), and the tensors that
// their pickles describe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/formats/pieces.h"
#include "checkpoint/formats/torch/zip.h"

namespace tessera::checkpoint::formats {

// An element type by its names in PyTorch.
struct TorchDType {
  const char* dtype;    // of module torch: "float32"
  const char* storage;  // its typed storage, or null: "FloatStorage"
  const char* stored;   // in safetensors: "F32"
};
const TorchDType* torch_dtype(const StoredDType& stored);         // null: PyTorch has none
const TorchDType* torch_dtype_named(std::string_view name);       // "float32"
const TorchDType* torch_dtype_of_storage(std::string_view name);  // "FloatStorage"
// The bytes of an element in which a storage of this class ("torch.FloatStorage") is counted; 0:
// unknown.
std::uint64_t storage_element_bytes(std::string_view global);

// A pickled tensor: a view of a storage in the archive.
struct TorchTensor {
  const StoredDType* stored = nullptr;
  std::vector<std::int64_t> shape, strides;
  std::int64_t first = 0;  // element of the storage
  std::string key;         // of the storage
};

// True for a file that begins as one of torch.save, in either form. `head` has its first
// legacy_head_bytes, or all of them.
bool begins_as_torch_file(std::string_view head);

// Globals that occur in torch.save files of tensors and plain values.
extern const PickleRules torch_rules;
bool is_torch_global(std::string_view global);

// An archive that is a file or a part of one, in either form.
class TorchArchive {
 public:
  // Bytes [offset, offset + bytes) of a file of the table. `source`, the file in quotes and the
  // place in it, begins every Error.
  TorchArchive(FileTable& files, std::size_t file, std::uint64_t offset, std::uint64_t bytes,
               std::string source, const PickleRules& rules = torch_rules);
  [[nodiscard]] PickleValue root() const { return pickle_->root(); }
  [[nodiscard]] const std::string& source() const { return source_; }
  [[nodiscard]] std::size_t values() const { return pickle_->values(); }
  // None if the value is not a tensor. A tensor that cannot be read (sparse, quantized, complex
  // double) is an Error with its kind.
  [[nodiscard]] std::optional<TorchTensor> tensor(const PickleValue& value) const;
  // The record of a storage.
  [[nodiscard]] StoredRecord storage(const std::string& key) const;

 private:
  [[nodiscard]] std::optional<TorchTensor> call(const std::string& function,
                                                const PickleValue& arguments, int depth) const;
  void enter_view(TorchTensor& tensor, const PickleValue& id) const;
  [[nodiscard]] TorchTensor rebuild(const PickleValue& arguments, bool with_dtype) const;
  void refuse_lazy_bits(const PickleValue& arguments, std::size_t at) const;
  std::string source_;
  std::size_t file_;
  std::uint64_t offset_;
  std::string prefix_;  // the folder in the archive
  std::optional<ZipDirectory> directory_;
  std::map<std::string, StoredRecord> legacy_storages_;  // of the older form
  std::unique_ptr<Pickle> pickle_;
};

// The integers of a torch.Size object, a tuple or a list.
std::vector<std::int64_t> integers_of(const PickleValue& value);
// None, booleans, numbers, strings, and lists, tuples and dicts of them as JSON. Other values
// become their kind in words, and values beyond the limits of depth and number become "...".
class PickleToJson {
 public:
  nlohmann::json convert(const PickleValue& value, int depth = 0);

 private:
  nlohmann::json list(const PickleValue& value, int depth);
  nlohmann::json dict(const PickleValue& value, int depth);
  std::size_t visited_ = 0;  // over all conversions
};

// -- Writing

// The pickle of a tensor: the storage `key` of `elements`, row-major from its beginning.
void write_tensor(PickleWriter& pickle, const TorchDType& dtype, const std::string& key,
                  std::int64_t elements, const std::vector<std::int64_t>& shape);
// The records of an archive `folder`/... with this pickle and storages of these sizes.
std::vector<ZipPlan> plan_torch_archive(const std::string& folder, std::size_t pickle_bytes,
                                        const std::vector<std::uint64_t>& storages);
inline constexpr std::string_view torch_byteorder = "little";
inline constexpr std::string_view torch_version = "3\n";

}  // namespace tessera::checkpoint::formats
