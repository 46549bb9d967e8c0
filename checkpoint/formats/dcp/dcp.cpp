// Opens the folders of PyTorch Distributed Checkpoint. Each chunk of a tensor is a torch.save
// archive of its own, somewhere in a file; .metadata has the places.
#include <fmt/format.h>
#include <memory>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/beside.h"
#include "checkpoint/formats/dcp/dcp_sink.h"
#include "checkpoint/formats/dcp/dcp_tensors.h"
#include "checkpoint/formats/dcp/safetensors_shards.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/formats/torch/rank_files.h"
#include "checkpoint/formats/torch/state_dicts.h"
#include "checkpoint/formats/torch/torch_state.h"

namespace tessera::checkpoint::formats {

namespace {

namespace fs = std::filesystem;

bool has_file(const fs::path& folder, const std::string& name) {
  std::error_code error;
  return fs::is_regular_file(folder / name, error);
}

// The folders with metadata: `path` itself, or the folders that Accelerate makes and numbers when
// there are several models.
std::vector<fs::path> dcp_folders(const fs::path& path) {
  if (has_file(path, dcp_metadata_name)) return {path};
  std::vector<fs::path> folders;
  // Weights in a file for each rank are those of the folder, whatever the optimizer is.
  if (!has_file(path / "pytorch_model_fsdp_0", dcp_metadata_name) && has_rank_files(path))
    return {};
  for (const char* name : {"pytorch_model_fsdp_0", "optimizer_0"}) {
    if (has_file(path / name, dcp_metadata_name)) folders.push_back(path / name);
  }
  return folders;
}

bool recognises_dcp(const fs::path& path) {
  return !dcp_folders(path).empty() || has_safetensors_shards(path) ||
         has_file(path, "__0_0.distcp") || has_file(path / "pytorch_model_fsdp_0", "__0_0.distcp");
}

class DcpOpener {
 public:
  std::unique_ptr<Source> open(const fs::path& path) {
    const std::vector<fs::path> folders = dcp_folders(path);
    TESSERA_CHECK(!folders.empty(), ErrorCode::checkpoint,
                  "'{}' has .distcp files and no .metadata: the save was not finished, or the file "
                  "was not copied (names that begin with a dot are easily left behind)",
                  path.string());
    refuse_several_models(path);
    refuse_flat_shards(path);
    TESSERA_CHECK(!has_rank_files(path), ErrorCode::checkpoint,
                  "'{}' has weights in {} and in a file for each rank: keep those of one save",
                  path.string(), shown(folders.front().filename().string()));
    for (const fs::path& folder : folders) add_folder(folder);
    const std::string source = fmt::format("'{}'", path.string());
    NamedState state = name_state(
        std::move(items_), [this](std::size_t handle) { return store_.number(handle); }, source);
    state.contents.notes.push_back(
        fmt::format("{} chunks in {} files", chunks_, store_.files().count()));
    if (left_out_ > 0) {
      state.contents.notes.push_back(
          fmt::format("left out: {} pickled values, such as {}, which are neither tensors nor an "
                      "optimizer's hyperparameters",
                      left_out_, shown(first_left_out_)));
    }
    std::vector<std::string> read;
    for (const fs::path& folder : folders) read.push_back(folder.filename().string());
    note_other_optimizers(state.contents, path, read);
    for (const fs::path& folder : folders) add_model_files(state.contents, folder);
    add_model_files(state.contents, path);
    note_other_weights(state.contents, path, {});
    return make_source(std::move(store_), std::move(state));
  }

 private:
  void add_folder(const fs::path& folder) {
    const DcpMetadata metadata = read_dcp_metadata(folder);
    for (const DcpTensor& tensor : metadata.tensors) add_tensor(folder, tensor);
    for (const DcpBytes& value : metadata.values) add_value(folder, value);
  }

  void add_tensor(const fs::path& folder, const DcpTensor& tensor) {
    std::string memory;  // the same places in the files are the same tensor
    for (const DcpChunk& chunk : tensor.chunks) {
      memory += fmt::format("{}/{}:{}\n", folder.string(), chunk.place.file, chunk.place.offset);
    }
    chunks_ += tensor.chunks.size();
    StateTensor item;
    item.path = tensor.path;
    item.stored = tensor.stored;
    item.shape = tensor.shape;
    item.memory = std::move(memory);
    item.handle =
        store_.add_tensor(dcp_pieces(store_, folder, tensor), dcp_tensor_name(folder, tensor));
    items_.tensors.push_back(std::move(item));
  }

  void add_value(const fs::path& folder, const DcpBytes& value) {
    if (!is_optimizer_value(value.path)) {
      if (left_out_++ == 0) first_left_out_ = value.key;
      return;
    }
    const TorchArchive from = open_dcp_archive(store_, folder, value.place);
    add_state(items_, store_, from, from.root(), value.path);
  }

  PieceStore store_;
  StateItems items_;
  std::size_t chunks_ = 0;
  std::size_t left_out_ = 0;
  std::string first_left_out_;
};

std::unique_ptr<Source> open_dcp(const fs::path& path) {
  if (dcp_folders(path).empty() && has_safetensors_shards(path)) {
    return open_safetensors_shards(path);
  }
  return DcpOpener().open(path);
}

}  // namespace

const Format& dcp_format() {
  static const Format format{"dcp",    "a PyTorch distributed checkpoint (.metadata and *.distcp)",
                             false,    recognises_dcp,
                             open_dcp, create_dcp};
  return format;
}

}  // namespace tessera::checkpoint::formats
