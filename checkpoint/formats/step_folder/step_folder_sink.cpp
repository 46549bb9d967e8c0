// Places each element in a step folder, and writes the manifest at the end.
#include "checkpoint/formats/step_folder/step_folder_sink.h"

#include <fmt/format.h>
#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/streamed_file.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/save/save_plan.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint::formats {

namespace fs = std::filesystem;

namespace {

class StepSink final : public Sink {
 public:
  StepSink(const fs::path& folder, const Contents& contents, const WriteOptions& options,
           StateDictType type)
      : folder_(folder), contents_(contents), runs_(contents.tensors.size()) {
    manifest_.type = type;
    manifest_.world_size = type == StateDictType::sharded ? options.world_size : 1;
    manifest_.scalars = contents.scalars;
    manifest_.step = contents.scalars.get<std::int64_t>("step", 0);
    TESSERA_CHECK(manifest_.step >= 0, ErrorCode::checkpoint, "the step {} is negative",
                  manifest_.step);
    manifest_.model = add_section("model", Part::model, options);
    manifest_.optimizer = add_section("optimizer", Part::optimizer, options);
    done_.resize(contents.tensors.size());
  }

  void append(std::size_t tensor, const std::byte* data, std::int64_t count) override {
    const std::size_t size = contents_.tensors[tensor].stored->bits / 8;
    std::int64_t& done = done_[tensor];
    for (const PlacedRun& run : runs_[tensor]) {
      const std::int64_t from = std::max(done, run.first);
      const std::int64_t to = std::min(done + count, run.first + run.count);
      if (from >= to) continue;
      files_.write_at(run.file, run.offset + static_cast<std::uint64_t>(from - run.first) * size,
                      data + static_cast<std::size_t>(from - done) * size,
                      static_cast<std::size_t>(to - from) * size);
    }
    done += count;
  }

  void finish() override {
    manifest_.files = files_.finish();
    for (std::size_t i = 0; i < names_.size(); ++i) manifest_.files[i].name = names_[i];
    for (const auto& [name, text] : texts_) {
      write_file(folder_ / name, text);
      manifest_.files.push_back(record_of(name));
    }
    for (const std::string& name : carry_files(contents_, folder_)) {
      manifest_.files.push_back(record_of(name));
    }
    // The same conversion of the same checkpoint gives the same bytes, including the save id.
    manifest_.save_id = to_hex(checksum(to_text(manifest_)));
    write_file(folder_ / manifest_name, to_text(manifest_));
    sync_folder(folder_);
  }

 private:
  struct PlacedRun {
    std::size_t file = 0;
    std::uint64_t offset = 0;
    std::int64_t first = 0;
    std::int64_t count = 0;
  };

  Section add_section(const std::string& stem, Part part, const WriteOptions& options) {
    const PartSpecs part_specs = specs_of_part(contents_, part, "step folder");
    if (part == Part::optimizer && part_specs.specs.empty()) return {};
    return manifest_.type == StateDictType::full
               ? add_full(stem, part_specs, options.max_file_size)
               : add_sharded(stem, part_specs, options.world_size);
  }

  std::size_t add_file(const std::string& name, const std::string& header, std::uint64_t bytes) {
    const std::size_t file = files_.add(folder_ / name, bytes);
    names_.push_back(name);
    files_.write_at(file, 0, header.data(), header.size());
    return file;
  }

  Section add_full(const std::string& stem, const PartSpecs& part, std::uint64_t max_file_size) {
    const bool of_model = stem == "model";
    const PlannedTensors plan =
        plan_tensor_files(stem, part.specs, max_file_size,
                          of_model ? module_folders(contents_) : std::set<std::string>());
    Section section;
    std::vector<std::size_t> numbers;
    for (const auto& file : plan.files) {
      make_module_folder(folder_ / file.name);
      numbers.push_back(add_file(file.name, file.header, file.bytes));
      section.files.push_back(file.name);
    }
    for (std::size_t i = 0; i < part.specs.size(); ++i) {
      runs_[part.tensors[i]].push_back({numbers[plan.places[i].file], plan.places[i].offset, 0,
                                        element_count(part.specs[i].shape, part.specs[i].name)});
    }
    if (std::string index = index_text(plan, part.specs); !index.empty()) {
      texts_[stem + ".safetensors.index.json"] = std::move(index);
    }
    return section;
  }

  // Every tensor is cut into runs of equal length, the last ones short or empty.
  Section add_sharded(const std::string& stem, const PartSpecs& part, int world_size) {
    Section section;
    section.tensors = part.specs;
    for (int rank = 0; rank < world_size; ++rank) {
      std::vector<TensorSpec> pieces;
      auto& records = section.pieces.emplace_back();
      for (std::size_t i = 0; i < part.specs.size(); ++i) {
        const TensorSpec& spec = part.specs[i];
        const std::int64_t elements = element_count(spec.shape, spec.name);
        const std::int64_t length = elements / world_size + (elements % world_size != 0 ? 1 : 0);
        const std::int64_t first = std::min(elements, length * rank);
        const std::int64_t count = std::min(length, elements - first);
        if (count == 0) continue;
        pieces.push_back({piece_name(spec.name, first), spec.dtype, {count}});
        records.push_back({i, first, count});
      }
      const ComposedHeader header = compose_safetensors_header(pieces);
      section.files.push_back(
          fmt::format("{}-rank-{:05}-of-{:05}.safetensors", stem, rank, world_size));
      const std::size_t file = add_file(section.files.back(), header.bytes, header.file_bytes);
      for (std::size_t k = 0; k < records.size(); ++k) {
        runs_[part.tensors[records[k].tensor]].push_back(
            {file, header.offsets[k], records[k].first, records[k].count});
      }
    }
    return section;
  }

  [[nodiscard]] FileRecord record_of(const std::string& name) const {
    const File file = File::open_for_reading(folder_ / name);
    FileRecord record{name, file.size(), chunk_bytes_of(file.size()), {}};
    std::vector<std::byte> buffer;
    for (std::uint64_t begin = 0; begin < record.bytes; begin += record.chunk_bytes) {
      buffer.resize(static_cast<std::size_t>(std::min(record.chunk_bytes, record.bytes - begin)));
      file.read_at(begin, buffer.data(), buffer.size());
      record.chunks.push_back(checksum(buffer.data(), buffer.size()));
    }
    return record;
  }

  fs::path folder_;
  const Contents& contents_;
  Manifest manifest_;
  StreamedFiles files_;
  std::vector<std::string> names_;            // of them, in the folder
  std::map<std::string, std::string> texts_;  // indexes
  std::vector<std::vector<PlacedRun>> runs_;  // of each tensor, by rising first
  std::vector<std::int64_t> done_;            // elements of each tensor
};

}  // namespace

std::unique_ptr<Sink> create_full_step(const fs::path& folder, const Contents& contents,
                                       const WriteOptions& options) {
  return std::make_unique<StepSink>(folder, contents, options, StateDictType::full);
}

std::unique_ptr<Sink> create_sharded_step(const fs::path& folder, const Contents& contents,
                                          const WriteOptions& options) {
  return std::make_unique<StepSink>(folder, contents, options, StateDictType::sharded);
}

}  // namespace tessera::checkpoint::formats
