// The element types of PyTorch, and the names that a torch.save file may ask for.
#include <algorithm>
#include <array>

#include "checkpoint/formats/torch/torch_archive.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::array<TorchDType, 19> torch_dtypes{{
    {"float32", "FloatStorage", "F32"},
    {"float64", "DoubleStorage", "F64"},
    {"float16", "HalfStorage", "F16"},
    {"bfloat16", "BFloat16Storage", "BF16"},
    {"int64", "LongStorage", "I64"},
    {"int32", "IntStorage", "I32"},
    {"int16", "ShortStorage", "I16"},
    {"int8", "CharStorage", "I8"},
    {"uint8", "ByteStorage", "U8"},
    {"bool", "BoolStorage", "BOOL"},
    {"complex64", "ComplexFloatStorage", "C64"},
    {"uint16", nullptr, "U16"},
    {"uint32", nullptr, "U32"},
    {"uint64", nullptr, "U64"},
    {"float8_e4m3fn", nullptr, "F8_E4M3"},
    {"float8_e5m2", nullptr, "F8_E5M2"},
    {"float8_e4m3fnuz", nullptr, "F8_E4M3FNUZ"},
    {"float8_e5m2fnuz", nullptr, "F8_E5M2FNUZ"},
    {"float8_e8m0fnu", nullptr, "F8_E8M0"},
}};

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

const TorchDType* torch_dtype(const StoredDType& stored) {
  const auto found = std::find_if(torch_dtypes.begin(), torch_dtypes.end(),
                                  [&](const TorchDType& d) { return d.stored == stored.name; });
  return found == torch_dtypes.end() ? nullptr : &*found;
}

const TorchDType* torch_dtype_named(std::string_view name) {
  const auto found = std::find_if(torch_dtypes.begin(), torch_dtypes.end(),
                                  [&](const TorchDType& d) { return d.dtype == name; });
  return found == torch_dtypes.end() ? nullptr : &*found;
}

const TorchDType* torch_dtype_of_storage(std::string_view name) {
  const auto found =
      std::find_if(torch_dtypes.begin(), torch_dtypes.end(),
                   [&](const TorchDType& d) { return d.storage != nullptr && d.storage == name; });
  return found == torch_dtypes.end() ? nullptr : &*found;
}

std::uint64_t storage_element_bytes(std::string_view global) {
  constexpr std::string_view module = "torch.";
  if (global.ends_with("UntypedStorage")) return 1;
  if (!global.starts_with(module)) return 0;
  const TorchDType* const type = torch_dtype_of_storage(global.substr(module.size()));
  return type == nullptr ? 0 : find_stored_dtype(type->stored)->bits / 8;
}

bool is_torch_global(std::string_view global) {
  if (is_one_of(global, {"collections.OrderedDict",
                         "collections.defaultdict",
                         "collections.Counter",
                         "builtins.dict",
                         "__builtin__.dict",
                         "builtins.set",
                         "__builtin__.set",
                         "builtins.list",
                         "__builtin__.list",
                         "builtins.complex",
                         "__builtin__.complex",
                         "builtins.bytearray",
                         "__builtin__.bytearray",
                         "_codecs.encode",
                         "torch.Size",
                         "torch.device",
                         "torch.Tensor",
                         "torch.storage.UntypedStorage",
                         "torch.storage.TypedStorage",
                         "torch.UntypedStorage",
                         "torch.serialization._get_layout",
                         "torch.nn.parameter.Parameter",
                         "torch._utils._rebuild_tensor",
                         "torch._utils._rebuild_tensor_v2",
                         "torch._utils._rebuild_tensor_v3",
                         "torch._utils._rebuild_parameter",
                         "torch._utils._rebuild_parameter_with_state",
                         "torch._utils._rebuild_sparse_tensor",
                         "torch._utils._rebuild_qtensor",
                         "torch._utils._rebuild_meta_tensor_no_storage",
                         "torch._tensor._rebuild_from_type_v2"})) {
    return true;
  }
  constexpr std::string_view torch = "torch.";
  if (!global.starts_with(torch)) return false;
  const std::string_view name = global.substr(torch.size());
  if (torch_dtype_named(name) != nullptr) return true;
  // Listed so that a tensor of such a type is refused by its own name.
  if (is_one_of(name, {"complex128", "complex32", "qint8", "quint8", "qint32", "quint4x2",
                       "quint2x4", "float4_e2m1fn_x2", "ComplexDoubleStorage", "QInt8Storage",
                       "QUInt8Storage", "QInt32Storage", "QUInt4x2Storage", "QUInt2x4Storage"})) {
    return true;
  }
  return std::any_of(torch_dtypes.begin(), torch_dtypes.end(), [&](const TorchDType& d) {
    return d.storage != nullptr && name == d.storage;
  });
}

namespace {

// An object that a state dict of FSDP holds in place of a tensor.
const char* advice_about_shards(std::string_view global, std::string_view pickle) {
  const bool shards = global == "torch._utils._rebuild_wrapper_subclass" ||
                      global.starts_with("torch.distributed.");
  const auto names = [&](std::string_view text) {
    return pickle.find(text) != std::string_view::npos;
  };
  if (shards && names("torch.distributed._shard.")) {
    return names("flat_param")
               ? "It has one rank's part of FSDP1's flat parameters (LOCAL_STATE_DICT), without "
                 "the "
                 "names and shapes of their tensors, and neither have the files of all ranks: "
                 "load them with the program that saved them, on as many ranks, and save "
                 "again with SHARDED_STATE_DICT, by torch.distributed.checkpoint.save, or with "
                 "FULL_STATE_DICT"
               : "It has one rank's ShardedTensors of FSDP1, whose parts are not joined, in place "
                 "of "
                 "tensors: load the files with the program that saved them, on as many ranks, and "
                 "save by torch.distributed.checkpoint.save or with FULL_STATE_DICT";
  }
  return shards ? "It has one rank's shards (DTensor, ShardedTensor) in place of tensors: save "
                  "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), or "
                  "the sharded one by torch.distributed.checkpoint.save, or give the folder of "
                  "all ranks' DTensors, called model_world_size_2_rank_0.pt or "
                  "pytorch_model_fsdp_0_rank0.bin and so on"
                : nullptr;
}

}  // namespace

const PickleRules torch_rules{is_torch_global, "a torch.save file of tensors and plain values",
                              "Load the file where it was made and trusted, and save "
                              "model.state_dict() (and the optimizer's) "
                              "alone",
                              advice_about_shards};

}  // namespace tessera::checkpoint::formats
