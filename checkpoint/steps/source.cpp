// Opens step folders.
#include "checkpoint/steps/source.h"

#include <fmt/format.h>
#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

// Describes a damaged range by a header that may be damaged itself, and says so.
VerifiedFile::Describe describe_by_header(const fs::path& path) {
  return [path](std::uint64_t begin, std::uint64_t end) -> std::string {
    try {
      return "by its header " + SafetensorsFile(path).header().describe_range(begin, end);
    } catch (const Error&) {
      return "its header cannot be read";
    }
  };
}

bool is_safetensors(const std::string& name) {
  return name.ends_with(".safetensors");
}

void check_piece(const SafetensorsHeader& header, const std::string& key, const TensorSpec& tensor,
                 std::int64_t count, const fs::path& path) {
  const TensorEntry* entry = header.find(key);
  TESSERA_CHECK(entry != nullptr && entry->stored == &stored_dtype(tensor.dtype) &&
                    entry->shape == std::vector<std::int64_t>{count},
                ErrorCode::checkpoint,
                "'{}' does not hold '{}' of {} elements as its manifest says; it is damaged",
                path.string(), key, count);
}

}  // namespace

VerifiedTensors::VerifiedTensors(const fs::path& folder, const FileRecord& record)
    : file_(folder, record) {
  file_.set_describe(describe_by_header(file_.path()));
  header_ = std::make_shared<const SafetensorsHeader>(
      read_safetensors_header([this](std::uint64_t offset, void* data,
                                     std::size_t bytes) { file_.read(offset, data, bytes); },
                              record.bytes, fmt::format("'{}'", file_.path().string())));
}

Catalogue read_catalogue(const fs::path& folder, const Manifest& manifest, const Section& section) {
  Catalogue catalogue;
  if (manifest.type == StateDictType::full) {
    for (const std::string& name : section.files) {
      const VerifiedTensors file(folder, manifest.file(name));
      const std::string prefix = tensor_prefix(name);
      for (const TensorEntry& entry : file.header().tensors()) {
        const std::int64_t elements = element_count(entry.shape, entry.name);
        StoredTensor tensor{entry.stored, entry.shape, {{name, entry.name, 0, elements}}};
        TESSERA_CHECK(catalogue.emplace(prefix + entry.name, std::move(tensor)).second,
                      ErrorCode::checkpoint, "'{}': tensor '{}' is in two files", folder.string(),
                      entry.name);
      }
    }
    return catalogue;
  }
  std::vector<StoredTensor*> by_index;
  for (const TensorSpec& spec : section.tensors) {
    StoredTensor& tensor = catalogue[spec.name];
    tensor = {&stored_dtype(spec.dtype), spec.shape, {}};
    by_index.push_back(&tensor);
  }
  for (std::size_t i = 0; i < section.files.size(); ++i) {
    for (const PieceRecord& piece : section.pieces[i]) {
      by_index.at(piece.tensor)
          ->extents.push_back({section.files[i],
                               piece_name(section.tensors[piece.tensor].name, piece.first),
                               piece.first, piece.count});
    }
  }
  for (auto& [name, tensor] : catalogue) {
    std::sort(tensor.extents.begin(), tensor.extents.end(),
              [](const Extent& a, const Extent& b) { return a.first < b.first; });
  }
  return catalogue;
}

void verify_share(const fs::path& folder, std::size_t share, std::size_t shares, LoadParts parts) {
  const Manifest manifest = read_manifest(folder);
  std::vector<const Section*> sections = {&manifest.model};
  std::set<std::string> left_out;
  if (parts == LoadParts::everything) {
    sections.push_back(&manifest.optimizer);
  } else {
    left_out = {manifest.optimizer.files.begin(), manifest.optimizer.files.end()};
  }
  std::size_t running = 0;
  for (const FileRecord& record : manifest.files) {
    if (left_out.contains(record.name)) continue;
    VerifiedFile file(folder, record);
    if (is_safetensors(record.name)) file.set_describe(describe_by_header(file.path()));
    for (std::size_t chunk = 0; chunk < record.chunks.size(); ++chunk, ++running) {
      if (running % shares == share) file.verify_chunk(chunk);
    }
  }
  if (share != 0) return;
  for (const Section* section : sections) {
    for (std::size_t i = 0; i < section->files.size(); ++i) {
      const VerifiedTensors file(folder, manifest.file(section->files[i]));
      if (manifest.type == StateDictType::full) continue;
      for (const PieceRecord& piece : section->pieces[i]) {
        const TensorSpec& tensor = section->tensors[piece.tensor];
        check_piece(file.header(), piece_name(tensor.name, piece.first), tensor, piece.count,
                    folder / section->files[i]);
      }
    }
  }
}

}  // namespace tessera::checkpoint
