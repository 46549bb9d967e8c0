// Opens the chunks of tensors: each is a torch.save archive of its own, somewhere in a file.
#include "checkpoint/formats/dcp/dcp_tensors.h"

#include <fmt/format.h>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/io/file.h"

namespace tessera::checkpoint::formats {

namespace fs = std::filesystem;

DcpMetadata read_dcp_metadata(const fs::path& folder) {
  const fs::path path = folder / dcp_metadata_name;
  return parse_dcp_metadata(read_file(path, pickle_bytes_limit),
                            fmt::format("'{}'", path.string()));
}

TorchArchive open_dcp_archive(PieceStore& store, const fs::path& folder, const DcpPlace& place) {
  FileTable& files = store.files();
  const std::size_t file = files.add(folder / place.file);
  const std::string source =
      fmt::format("'{}' at byte {}", (folder / place.file).string(), place.offset);
  const std::uint64_t size = files.size(file);
  TESSERA_CHECK(place.offset <= size && place.bytes <= size - place.offset, ErrorCode::checkpoint,
                "{}: the metadata states {} bytes there, but the file has {}: it is truncated",
                source, place.bytes, size);
  return {files, file, place.offset, place.bytes, source};
}

PiecedTensor dcp_pieces(PieceStore& store, const fs::path& folder, const DcpTensor& tensor) {
  PiecedTensor pieced{tensor.stored, tensor.shape, {}};
  for (const DcpChunk& chunk : tensor.chunks) {
    const TorchArchive from = open_dcp_archive(store, folder, chunk.place);
    const auto stored = from.tensor(from.root());
    TESSERA_CHECK(
        stored.has_value() && stored->shape == chunk.box.sizes && stored->stored == tensor.stored,
        ErrorCode::checkpoint, "{}: the tensor there is not the metadata's {} of {} at {}",
        from.source(), shown(tensor.key), describe_shape(chunk.box.sizes),
        describe_shape(chunk.box.offsets));
    pieced.pieces.push_back(
        {chunk.box, store.add_record(from.storage(stored->key)), stored->first, stored->strides});
  }
  return pieced;
}

std::string dcp_tensor_name(const fs::path& folder, const DcpTensor& tensor) {
  return fmt::format("'{}': tensor {}", (folder / dcp_metadata_name).string(), shown(tensor.key));
}

}  // namespace tessera::checkpoint::formats
