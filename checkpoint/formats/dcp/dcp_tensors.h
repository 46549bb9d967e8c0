// The tensors of a DCP folder, as pieces of its files.
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/formats/dcp/dcp_metadata.h"
#include "checkpoint/formats/pieces.h"
#include "checkpoint/formats/torch/torch_archive.h"

namespace tessera::checkpoint::formats {

inline constexpr const char* dcp_metadata_name = ".metadata";

DcpMetadata read_dcp_metadata(const std::filesystem::path& folder);
// The torch.save archive at a place of a file. Error(checkpoint) if the file is too short.
TorchArchive open_dcp_archive(PieceStore& store, const std::filesystem::path& folder,
                              const DcpPlace& place);
// The chunks of a tensor, whose records are added to the store. Each chunk is checked against the
// metadata.
PiecedTensor dcp_pieces(PieceStore& store, const std::filesystem::path& folder,
                        const DcpTensor& tensor);
// "'folder/.metadata': tensor "name"", for Errors.
std::string dcp_tensor_name(const std::filesystem::path& folder, const DcpTensor& tensor);

}  // namespace tessera::checkpoint::formats
