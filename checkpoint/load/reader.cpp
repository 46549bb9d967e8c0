// load(), and the functions that read one step: read_scalars, verify.
#include <fmt/format.h>
#include <algorithm>
#include <list>
#include <memory>
#include <utility>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/io/collective.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/load/match.h"
#include "checkpoint/load/quantizing_reader.h"
#include "checkpoint/load_pieces.h"
#include "checkpoint/state/transfer.h"
#include "checkpoint/steps/manifest.h"
#include "checkpoint/steps/source.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;

// A run of elements to read from one file into memory.
struct PlannedRead {
  const Extent* extent = nullptr;
  std::int64_t skip = 0;  // elements of the extent before the run
  std::int64_t count = 0;
  std::byte* out = nullptr;
  DType file_dtype = DType::float32;
  DType memory_dtype = DType::float32;
  Device device = Device::cpu();  // of out
  FilePlace in_file = {};         // instead of out
};
using ReadsByFile = std::map<std::string, std::vector<PlannedRead>>;

void plan_reads(const std::vector<const LogicalTensor*>& wanted, const Catalogue& stored,
                ReadsByFile& reads) {
  for (const LogicalTensor* each : wanted) {
    const LogicalTensor& tensor = *each;
    if (tensor.quantized) continue;
    const StoredTensor& found = stored.at(tensor.name);
    const std::int64_t elements = element_count(tensor.shape, tensor.name);
    for (const Piece& piece : tensor.pieces) {
      TESSERA_REQUIRE(piece.first >= 0 && piece.count >= 0 && piece.count <= elements &&
                          piece.first <= elements - piece.count,
                      "piece [{}, +{}) is outside tensor '{}' of {} elements", piece.first,
                      piece.count, tensor.name, elements);
      for (const Extent& extent : found.extents) {
        const std::int64_t begin = std::max(piece.first, extent.first);
        const std::int64_t end = std::min(piece.first + piece.count, extent.first + extent.count);
        if (begin >= end) continue;
        const auto skipped = static_cast<std::size_t>(begin - piece.first) * size_of(tensor.dtype);
        std::byte* out = piece.file ? nullptr : piece.data + skipped;
        reads[extent.file].push_back({&extent,
                                      begin - extent.first,
                                      end - begin,
                                      out,
                                      *found.stored->dtype,
                                      tensor.dtype,
                                      piece.device,
                                      {piece.file.file, piece.file.offset + skipped}});
      }
    }
  }
}

// The place of a read's first byte in its file.
std::uint64_t place_in_file(const VerifiedTensors& tensors, const fs::path& path,
                            const PlannedRead& read) {
  const TensorEntry* entry = tensors.header().find(read.extent->key);
  const std::size_t element = size_of(read.file_dtype);
  TESSERA_CHECK(
      entry != nullptr && entry->stored == &stored_dtype(read.file_dtype) &&
          entry->end - entry->begin == static_cast<std::uint64_t>(read.extent->count) * element,
      ErrorCode::checkpoint,
      "'{}' does not hold '{}' of {} elements as its manifest says; it is damaged", path.string(),
      read.extent->key, read.extent->count);
  return entry->begin + static_cast<std::uint64_t>(read.skip) * element;
}

// The reads of a file with their places, in the order of its bytes.
std::vector<std::pair<std::uint64_t, PlannedRead>> in_file_order(
    const VerifiedTensors& tensors, const fs::path& path, const std::vector<PlannedRead>& reads) {
  std::vector<std::pair<std::uint64_t, PlannedRead>> ordered;
  for (const PlannedRead& read : reads) {
    ordered.emplace_back(place_in_file(tensors, path, read), read);
  }
  std::sort(ordered.begin(), ordered.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return ordered;
}

// True if the bytes in the file are those wanted in host memory.
bool is_plain(const PlannedRead& read) {
  return !read.in_file && read.device.type == DeviceType::cpu &&
         read.file_dtype == read.memory_dtype;
}

void load_staged(VerifiedFile& file, std::uint64_t begin, const PlannedRead& read,
                 Staging& staging) {
  const auto get = [&](std::uint64_t offset, void* data, std::size_t bytes) {
    file.read(begin + offset, data, bytes);
  };
  if (read.in_file) {
    staging.load(read.in_file, read.count, read.file_dtype, read.memory_dtype, get);
  } else {
    staging.load(read.out, read.device, read.count, read.file_dtype, read.memory_dtype, get);
  }
}

// Reads one file at a time, in the order of its bytes: few open files, each chunk verified once.
// Plain reads are passed on together, so that a chunk of several tensors needs no copy.
void execute(const fs::path& folder, const Manifest& manifest, ReadsByFile& reads) {
  Staging staging;
  for (auto& [name, of_file] : reads) {
    VerifiedTensors tensors(folder, manifest.file(name));
    std::vector<VerifiedFile::Part> together;
    const auto read_together = [&] {
      tensors.file().read(together);
      together.clear();
    };
    for (const auto& planned : in_file_order(tensors, tensors.file().path(), of_file)) {
      const std::uint64_t begin = planned.first;
      const PlannedRead& read = planned.second;
      if (!is_plain(read)) {
        read_together();
        load_staged(tensors.file(), begin, read, staging);
        continue;
      }
      // The same bytes may be read twice.
      if (!together.empty() && begin < together.back().offset + together.back().bytes) {
        read_together();
      }
      together.push_back(
          {begin, read.out, static_cast<std::size_t>(read.count) * size_of(read.file_dtype)});
    }
    read_together();
  }
}

// The files that were read last. A matrix may lie in one file for each rank that saved it, more
// than a process may open.
class RecentFiles {
 public:
  RecentFiles(const fs::path& folder, const Manifest& manifest)
      : folder_(folder), manifest_(manifest) {}

  VerifiedTensors& open(const std::string& name) {
    const auto found = std::find_if(files_.begin(), files_.end(),
                                    [&](const auto& file) { return file.first == name; });
    if (found != files_.end()) {
      files_.splice(files_.begin(), files_, found);
    } else {
      if (files_.size() == most_) files_.pop_back();
      files_.emplace_front(name, std::make_unique<VerifiedTensors>(folder_, manifest_.file(name)));
    }
    return *files_.front().second;
  }

 private:
  static constexpr std::size_t most_ = 8;
  const fs::path& folder_;
  const Manifest& manifest_;
  std::list<std::pair<std::string, std::unique_ptr<VerifiedTensors>>> files_;  // last used first
};

// Matrices that are quantised are read in order, one after the other.
void execute_quantized(const fs::path& folder, const Manifest& manifest,
                       const std::vector<const LogicalTensor*>& wanted, const Catalogue& stored) {
  Staging staging;
  RecentFiles files(folder, manifest);
  for (const LogicalTensor* tensor : wanted) {
    if (!tensor->quantized || tensor->pieces.empty()) continue;
    const StoredTensor& found = stored.at(tensor->name);
    const DType dtype = *found.stored->dtype;
    const auto read = [&](std::int64_t first, std::int64_t count, std::byte* out) {
      for (const Extent& extent : found.extents) {
        const std::int64_t begin = std::max(first, extent.first);
        const std::int64_t end = std::min(first + count, extent.first + extent.count);
        if (begin >= end) continue;
        VerifiedTensors& tensors = files.open(extent.file);
        const PlannedRead part{&extent, begin - extent.first, end - begin, nullptr, dtype, dtype};
        tensors.file().read(place_in_file(tensors, tensors.file().path(), part),
                            out + static_cast<std::size_t>(begin - first) * size_of(dtype),
                            static_cast<std::size_t>(end - begin) * size_of(dtype));
      }
    };
    load_quantized(*tensor, dtype, read, staging);
  }
}

}  // namespace

LoadedPieces load_pieces(const std::string& step_folder, State& state, LoadParts parts,
                         const Selection& selection) {
  const fs::path folder = step_folder;
  const Manifest manifest = read_manifest(folder);
  const bool with_optimizer = parts == LoadParts::everything;
  const Catalogue model = read_catalogue(folder, manifest, manifest.model);
  const Catalogue optimizer =
      with_optimizer ? read_catalogue(folder, manifest, manifest.optimizer) : Catalogue();
  std::vector<std::string> problems;
  Matched of_model =
      match(state.model, model, "model", selection.strict, selection.model, problems);
  Matched of_optimizer;
  if (with_optimizer) {
    NameFilter by_parameter;
    if (selection.optimizer) {
      by_parameter = [&](const std::string& name) {
        return selection.optimizer(parameter_of_state(name));
      };
    }
    of_optimizer =
        match(state.optimizer, optimizer, "optimizer", selection.strict, by_parameter, problems);
  }
  if (of_model.tensors.empty() && of_optimizer.tensors.empty())
    refuse_empty(model.size() + optimizer.size(), problems);
  refuse_misfit(problems, selection);
  const Fit fit{std::move(of_model.mismatch), std::move(of_optimizer.mismatch)};
  if (selection.check) selection.check(manifest.scalars, fit);
  ReadsByFile reads;
  plan_reads(of_model.tensors, model, reads);
  plan_reads(of_optimizer.tensors, optimizer, reads);
  execute(folder, manifest, reads);
  execute_quantized(folder, manifest, of_model.tensors, model);
  return {manifest.scalars, fit};
}

LoadedPieces load_together(comm::Communicator& communicator, const std::string& source,
                           State& state, LoadParts parts, const Selection& selection) {
  LoadedPieces loaded;
  run_on_all_ranks(communicator, fmt::format("loading '{}'", source), [&] {
    loaded = has_weights_alone(source) ? load_weights(source, state, parts, selection)
                                       : load_pieces(source, state, parts, selection);
    return std::string();
  });
  return loaded;
}

Fit load(comm::Communicator& communicator, const std::string& step_folder, State& state,
         LoadParts parts, const Selection& selection) {
  LoadedPieces loaded;
  run_on_all_ranks(communicator, fmt::format("loading '{}'", step_folder), [&] {
    loaded = load_pieces(step_folder, state, parts, selection);
    return std::string();
  });
  state.scalars = std::move(loaded.scalars);
  return std::move(loaded.fit);
}

Scalars read_scalars(const std::string& step_folder) {
  return read_manifest(step_folder).scalars;
}

void verify(const std::string& step_folder) {
  verify_share(step_folder, 0, 1);
}

}  // namespace tessera::checkpoint
