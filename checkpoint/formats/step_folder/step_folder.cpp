// Reads step folders: places of tensors, verified reads, cost of damage.
#include <fmt/format.h>
#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/step_folder/step_folder_sink.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/steps/manifest.h"
#include "checkpoint/steps/source.h"

namespace tessera::checkpoint::formats {

namespace fs = std::filesystem;

namespace {

// Elements [first, first + count) of a tensor, from byte `offset` of a file of the manifest.
struct PlacedExtent {
  std::size_t file = 0;
  std::uint64_t offset = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

class StepSource final : public Source {
 public:
  explicit StepSource(const fs::path& folder) : folder_(folder), manifest_(read_manifest(folder)) {
    add_section(Part::model, manifest_.model);
    add_section(Part::optimizer, manifest_.optimizer);
    add_files();
    contents_.scalars = manifest_.scalars;
    if (!contents_.scalars.contains("step")) contents_.scalars.set("step", manifest_.step);
    contents_.notes.push_back(
        fmt::format("step {}, saved {} by {} rank{}", manifest_.step,
                    manifest_.type == StateDictType::full ? "FULL" : "SHARDED",
                    manifest_.world_size, manifest_.world_size == 1 ? "" : "s"));
  }

  [[nodiscard]] const Contents& contents() const override { return contents_; }

  void read(std::size_t tensor, std::int64_t first, std::int64_t count, std::byte* data) override {
    const std::size_t size = contents_.tensors[tensor].stored->bits / 8;
    const auto& extents = extents_[tensor];
    const std::int64_t end = first + count;
    auto it = std::upper_bound(
        extents.begin(), extents.end(), first,
        [](std::int64_t value, const PlacedExtent& extent) { return value < extent.first; });
    if (it != extents.begin()) --it;
    for (; it != extents.end() && it->first < end; ++it) {
      const std::int64_t from = std::max(first, it->first);
      const std::int64_t to = std::min(end, it->first + it->count);
      if (from >= to) continue;
      opened(it->file).read(it->offset + static_cast<std::uint64_t>(from - it->first) * size,
                            data + static_cast<std::size_t>(from - first) * size,
                            static_cast<std::size_t>(to - from) * size);
    }
  }

  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) override {
    std::vector<std::string> lines;
    for (Damage& damage : examine(progress)) lines.push_back(std::move(damage.text));
    return lines;
  }

  std::vector<Damage> examine(const std::function<void(std::uint64_t)>& progress) override {
    std::vector<Damage> damages;
    for (std::size_t file = 0; file < manifest_.files.size(); ++file) {
      examine_file(file, progress, damages);
    }
    return damages;
  }

 private:
  void add_section(Part part, const Section& section) {
    std::map<std::string, std::map<std::string, std::uint64_t>> begins;  // file, key
    for (const std::string& name : section.files) {
      const VerifiedTensors file(folder_, manifest_.file(name));
      for (const TensorEntry& entry : file.header().tensors()) {
        begins[name][entry.name] = entry.begin;
        sizes_[name][entry.name] = entry.end - entry.begin;
      }
    }
    for (const auto& [name, stored] : read_catalogue(folder_, manifest_, section)) {
      auto& extents = extents_.emplace_back();
      for (const Extent& extent : stored.extents) {
        const auto found = begins.at(extent.file).find(extent.key);
        TESSERA_CHECK(found != begins.at(extent.file).end() &&
                          sizes_.at(extent.file).at(extent.key) ==
                              static_cast<std::uint64_t>(extent.count) * stored.stored->bits / 8,
                      ErrorCode::checkpoint,
                      "'{}' does not hold '{}' of {} elements as its manifest says; it is damaged",
                      (folder_ / extent.file).string(), extent.key, extent.count);
        extents.push_back({index_of(extent.file), found->second, extent.first, extent.count});
      }
      std::string where = stored.extents.empty() ? std::string("no file: it has no elements")
                                                 : stored.extents.front().file;
      if (stored.extents.size() > 1) {
        where += fmt::format(" and {}", counted(stored.extents.size() - 1, "more run"));
      }
      contents_.tensors.push_back({part, name, stored.stored, stored.shape, std::move(where)});
    }
    sizes_.clear();
  }

  void add_files() {
    std::set<std::string> tensors;
    for (const Section* section : {&manifest_.model, &manifest_.optimizer}) {
      tensors.insert(section->files.begin(), section->files.end());
    }
    for (const FileRecord& record : manifest_.files) {
      if (tensors.contains(record.name) || record.name.ends_with(".safetensors.index.json")) {
        continue;
      }
      VerifiedFile file(folder_, record);
      for (std::size_t chunk = 0; chunk < record.chunks.size(); ++chunk) file.verify_chunk(chunk);
      contents_.files[record.name] = folder_ / record.name;
    }
  }

  [[nodiscard]] std::size_t index_of(const std::string& name) const {
    const auto it = std::find_if(manifest_.files.begin(), manifest_.files.end(),
                                 [&](const FileRecord& record) { return record.name == name; });
    return static_cast<std::size_t>(it - manifest_.files.begin());
  }

  VerifiedFile& opened(std::size_t file) {
    const auto it = std::find_if(open_.begin(), open_.end(),
                                 [&](const auto& entry) { return entry.first == file; });
    if (it != open_.end()) return *it->second;
    // Each open file keeps a chunk, and the chunks of large files are large.
    std::uint64_t kept = manifest_.files[file].chunk_bytes;
    for (const auto& entry : open_) kept += manifest_.files[entry.first].chunk_bytes;
    while (!open_.empty() && (open_.size() >= most_open || kept > most_kept)) {
      kept -= manifest_.files[open_.front().first].chunk_bytes;
      open_.pop_front();
    }
    open_.emplace_back(file, std::make_unique<VerifiedFile>(folder_, manifest_.files[file]));
    open_.back().second->set_describe([this, file](std::uint64_t begin, std::uint64_t end) {
      return describe(tensors_in(file, begin, end));
    });
    return *open_.back().second;
  }

  [[nodiscard]] std::vector<std::size_t> tensors_in(std::size_t file, std::uint64_t begin,
                                                    std::uint64_t end) const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < extents_.size(); ++i) {
      const std::size_t size = contents_.tensors[i].stored->bits / 8;
      const bool there =
          std::any_of(extents_[i].begin(), extents_[i].end(), [&](const PlacedExtent& extent) {
            const auto bytes = static_cast<std::uint64_t>(extent.count) * size;
            return extent.file == file && extent.offset < end && extent.offset + bytes > begin;
          });
      if (there) found.push_back(i);
    }
    return found;
  }

  [[nodiscard]] std::string describe(const std::vector<std::size_t>& tensors) const {
    if (tensors.empty()) return "no tensor";
    const std::string& first = contents_.tensors[tensors.front()].name;
    if (tensors.size() == 1) return fmt::format("tensor '{}'", first);
    return fmt::format("{} tensors, '{}' among them", tensors.size(), first);
  }

  void examine_file(std::size_t index, const std::function<void(std::uint64_t)>& progress,
                    std::vector<Damage>& damages) const {
    const FileRecord& record = manifest_.files[index];
    const std::string path = (folder_ / record.name).string();
    const auto add = [&](std::uint64_t begin, std::uint64_t end, const std::string& why) {
      std::vector<std::size_t> tensors = tensors_in(index, begin, end);
      damages.push_back(
          {fmt::format("'{}': bytes {} to {} ({}) {}", path, begin, end, describe(tensors), why),
           end - begin, std::move(tensors)});
    };
    std::optional<File> file;
    std::uint64_t done = 0;
    try {
      file.emplace(File::open_for_reading(folder_ / record.name));
      const std::uint64_t bytes = file->size();
      if (bytes != record.bytes) {
        add(std::min(bytes, record.bytes), std::max(bytes, record.bytes),
            bytes < record.bytes ? "are missing: the file is truncated"
                                 : "are too many: the file is from another save");
      }
      std::uint64_t bad = 0;  // bytes of damaged chunks before `done`
      std::vector<std::byte> buffer;
      const ChunkMap map(record.bytes, record.chunk_bytes, record.cuts);
      for (std::size_t chunk = 0; chunk < record.chunks.size(); ++chunk) {
        const std::uint64_t sum = record.chunks[chunk];
        const auto [begin, end] = map.range(chunk);
        const std::uint64_t part = end - begin;
        if (end > bytes) break;
        buffer.resize(static_cast<std::size_t>(part));
        file->read_at(done, buffer.data(), buffer.size());
        const bool sound = checksum(buffer.data(), buffer.size()) == sum;
        if (sound && bad > 0) add(done - bad, done, "do not match their checksums");
        bad = sound ? 0 : bad + part;
        done += part;
        progress(part);
      }
      if (bad > 0) add(done - bad, done, "do not match their checksums");
    } catch (const Error& error) {
      std::vector<std::size_t> tensors = tensors_in(index, done, record.bytes);
      damages.push_back({error.what(), record.bytes - done, std::move(tensors)});
    }
  }

  static constexpr std::size_t most_open = 8;
  static constexpr std::uint64_t most_kept = std::uint64_t{8} << 20;
  fs::path folder_;
  Manifest manifest_;
  Contents contents_;
  std::vector<std::vector<PlacedExtent>> extents_;  // of each tensor, by rising first
  std::map<std::string, std::map<std::string, std::uint64_t>> sizes_;  // while opening
  std::deque<std::pair<std::size_t, std::unique_ptr<VerifiedFile>>> open_;
};

bool has_manifest_of_ours(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path / manifest_name, error)) return false;
  try {
    const File file = File::open_for_reading(path / manifest_name);
    std::string head(static_cast<std::size_t>(std::min<std::uint64_t>(64, file.size())), '\0');
    file.read_at(0, head.data(), head.size());
    return head.starts_with('{') && head.find("\"manifest\"") != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

bool has_rank_files(const fs::path& path) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (entry.path().filename().string().starts_with("model-rank-")) return true;
  }
  return false;
}

bool recognises_full(const fs::path& path) {
  return has_manifest_of_ours(path) && !has_rank_files(path);
}

bool recognises_sharded(const fs::path& path) {
  return has_manifest_of_ours(path) && has_rank_files(path);
}

std::unique_ptr<Source> open_step(const fs::path& path) {
  return std::make_unique<StepSource>(path);
}

}  // namespace

const Format& full_format() {
  static const Format format{.name = "full",
                             .description = "a step folder of Tessera's (manifest.json)",
                             .is_file = false,
                             .recognises = recognises_full,
                             .open = open_step,
                             .create = create_full_step};
  return format;
}

const Format& sharded_format() {
  static const Format format{.name = "sharded",
                             .description = "a step folder of Tessera's in a file for each rank",
                             .is_file = false,
                             .recognises = recognises_sharded,
                             .open = open_step,
                             .create = create_sharded_step};
  return format;
}

}  // namespace tessera::checkpoint::formats
