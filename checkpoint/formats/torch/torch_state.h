// The contents of a torch.save file as nested state dicts: tensors in a PieceStore, and plain
// values.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/formats/pieces.h"
#include "checkpoint/formats/torch/state_names.h"
#include "checkpoint/formats/torch/torch_archive.h"

namespace tessera::checkpoint::formats {

// Sees every value before the walker does; true: it took the value, and the walker leaves it alone.
using TakeValue = std::function<bool(const StatePath& path, const PickleValue& value)>;
// Adds the contents of `value` of the archive, under `path`. Keeps only the plain values that an
// optimizer needs.
void add_state(StateItems& items, PieceStore& store, const TorchArchive& archive,
               const PickleValue& value, const StatePath& path, const TakeValue& take = {});
// Adds a tensor of the archive; `what` is its name for errors.
std::size_t add_torch_tensor(PieceStore& store, const TorchArchive& archive,
                             const TorchTensor& tensor, const std::string& what);
// A text that is the same for tensors that share memory, for StateTensor::memory.
std::string memory_of(const TorchArchive& archive, const TorchTensor& tensor);
// The small files of a model in a folder (belongs_to_model of formats/beside.h).
void add_model_files(Contents& contents, const std::filesystem::path& folder);
// A source of the result of name_state.
std::unique_ptr<Source> make_source(PieceStore store, NamedState state);

}  // namespace tessera::checkpoint::formats
