// Writes *.distcp and .metadata. The place of every chunk is known before the first byte, so the
// ranks' files are filled as the tensors come, row by row.
#include "checkpoint/formats/dcp/dcp_sink.h"

#include <fmt/format.h>
#include <algorithm>
#include <list>
#include <optional>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/dcp/dcp_metadata.h"
#include "checkpoint/formats/torch/torch_archive.h"
#include "checkpoint/formats/torch/torch_optimizer.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::size_t open_ranks_limit = 64;
constexpr const char* chunk_folder = "archive";

std::string chunk_pickle(const StoredDType& stored, const std::vector<std::int64_t>& sizes) {
  PickleWriter pickle;
  write_tensor(pickle, *torch_dtype(stored), "0", element_count(sizes, "chunk"), sizes);
  return pickle.finish();
}

std::uint64_t bytes_of(const StoredDType& stored, const std::vector<std::int64_t>& sizes) {
  return static_cast<std::uint64_t>(element_count(sizes, "chunk")) * (stored.bits / 8);
}

std::vector<ZipPlan> plan_chunk(const StoredDType& stored, const std::vector<std::int64_t>& sizes) {
  return plan_torch_archive(chunk_folder, chunk_pickle(stored, sizes).size(),
                            {bytes_of(stored, sizes)});
}

std::string value_pickle(const std::string& key, const nlohmann::json& value) {
  PickleWriter pickle;
  write_json_value(pickle, key, value);
  return pickle.finish();
}

class DcpSink : public Sink {
 public:
  DcpSink(std::filesystem::path folder, const Contents& contents, int world_size)
      : folder_(std::move(folder)), contents_(contents), optimizer_(contents) {
    TESSERA_CHECK(world_size >= 1, ErrorCode::usage, "--world-size {} is not a number of ranks",
                  world_size);
    ends_.assign(static_cast<std::size_t>(world_size), 0);
    plan_values();
    plan_tensors();
    plan_aliases();
    for (std::size_t rank = 0; rank < ends_.size(); ++rank) File::create(folder_ / name_of(rank));
    write_values();
  }

  void append(std::size_t tensor, const std::byte* data, std::int64_t count) override {
    const StoredDType& stored = *contents_.tensors[tensor].stored;
    auto bytes = static_cast<std::uint64_t>(count) * (stored.bits / 8);
    while (bytes > 0) {
      begin_chunk(tensor);
      const auto part = static_cast<std::size_t>(std::min(bytes, missing_));
      zip_->append(data, part);
      data += part;
      bytes -= part;
      missing_ -= part;
      if (missing_ == 0) end_chunk();
    }
  }

  void finish() override {
    finish_empty(contents_.tensors.size());
    open_.clear();
    for (std::size_t rank = 0; rank < ends_.size(); ++rank) {
      File file = File::open_for_writing(folder_ / name_of(rank));
      file.sync();
      file.close();
    }
    write_file(folder_ / ".metadata", compose_dcp_metadata(metadata_));
  }

 private:
  static std::string name_of(std::size_t rank) { return fmt::format("__{}_0.distcp", rank); }

  DcpPlace place(std::size_t rank, std::vector<ZipPlan> records) {
    DcpPlace out{name_of(rank), ends_[rank], plan_zip(records)};
    ends_[rank] += out.bytes;
    return out;
  }

  // Hyperparameters and steps come first in the file of rank 0.
  void plan_values() {
    const nlohmann::json& groups = optimizer_.groups();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (const auto& [key, value] : groups[i].items()) {
        DcpBytes entry;
        entry.key = fmt::format("optimizer.param_groups.{}.{}", i, key);
        entry.path = {"optimizer", "param_groups", std::to_string(i), key};
        entry.place =
            place(0, plan_torch_archive(chunk_folder, value_pickle(key, value).size(), {}));
        metadata_.values.push_back(std::move(entry));
        values_.push_back(value);
      }
    }
    for (const OptimizerLayout::Parameter& parameter : optimizer_.parameters()) {
      if (!parameter.has_step) continue;
      const StoredDType& stored = stored_dtype(DType::float32);
      add_entry(state_path(parameter.name, "step"), stored, {},
                {{{{}, {}}, place(0, plan_chunk(stored, {}))}});
      steps_.push_back(parameter.step);
    }
  }

  static StatePath state_path(const std::string& parameter, const std::string& key) {
    return {"optimizer", "state", parameter, key};
  }

  void add_entry(StatePath path, const StoredDType& stored, std::vector<std::int64_t> shape,
                 std::vector<DcpChunk> chunks) {
    DcpTensor entry;
    for (const std::string& part : path) entry.key += (entry.key.empty() ? "" : ".") + part;
    entry.path = std::move(path);
    entry.stored = &stored;
    entry.shape = std::move(shape);
    entry.chunks = std::move(chunks);
    metadata_.tensors.push_back(std::move(entry));
  }

  void plan_tensors() {
    std::map<std::size_t, StatePath> states;
    for (const OptimizerLayout::Parameter& parameter : optimizer_.parameters()) {
      for (const auto& [key, tensor] : parameter.tensors) {
        states[tensor] = state_path(parameter.name, key);
      }
    }
    first_tensor_ = metadata_.tensors.size();
    for (std::size_t i = 0; i < contents_.tensors.size(); ++i) {
      const TensorInfo& tensor = contents_.tensors[i];
      TESSERA_CHECK(torch_dtype(*tensor.stored) != nullptr, ErrorCode::checkpoint,
                    "PyTorch has no element type {} ({}): add --dtype", tensor.stored->name,
                    shown(tensor.name));
      const bool is_model = tensor.part == Part::model;
      add_entry(is_model ? StatePath{"model", tensor.name} : states.at(i), *tensor.stored,
                tensor.shape, cut(tensor));
    }
  }

  // Equal runs of rows; the last ones are short or missing.
  std::vector<DcpChunk> cut(const TensorInfo& tensor) {
    const auto ranks = static_cast<std::int64_t>(ends_.size());
    const std::int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
    const bool is_empty = element_count(tensor.shape, tensor.name) == 0;  // one empty chunk
    const std::int64_t each =
        std::max<std::int64_t>(1, is_empty ? rows : (rows + ranks - 1) / ranks);
    std::vector<DcpChunk> chunks;
    for (std::int64_t row = 0; row < rows || chunks.empty(); row += each) {
      DcpChunk chunk;
      chunk.box.offsets.assign(tensor.shape.size(), 0);
      chunk.box.sizes = tensor.shape;
      if (!tensor.shape.empty()) {
        chunk.box.offsets[0] = row;
        chunk.box.sizes[0] = std::min(each, rows - row);
      }
      chunk.place = place(chunks.size(), plan_chunk(*tensor.stored, chunk.box.sizes));
      chunks.push_back(std::move(chunk));
    }
    return chunks;
  }

  // Tied weights are two names of the same chunks.
  void plan_aliases() {
    for (const auto& [name, target] : contents_.aliases) {
      const StatePath wanted{"model", target};
      const auto found = std::find_if(metadata_.tensors.begin(), metadata_.tensors.end(),
                                      [&](const DcpTensor& t) { return t.path == wanted; });
      TESSERA_REQUIRE(found != metadata_.tensors.end(), "'{}' stands for '{}', which is not there",
                      name, target);
      DcpTensor alias = *found;
      alias.key = "model." + name;
      alias.path = {"model", name};
      metadata_.tensors.push_back(std::move(alias));
    }
  }

  File& file_of(std::size_t rank) {
    const auto found = std::find_if(open_.begin(), open_.end(),
                                    [&](const auto& entry) { return entry.first == rank; });
    if (found != open_.end()) {
      open_.splice(open_.begin(), open_, found);
    } else {
      if (open_.size() >= open_ranks_limit) open_.pop_back();
      open_.emplace_front(rank, File::open_for_writing(folder_ / name_of(rank)));
    }
    return open_.front().second;
  }

  void write_archive(const DcpPlace& where, const std::string& pickle, const void* data,
                     std::size_t bytes) {
    std::vector<std::uint64_t> storages;
    if (data != nullptr) storages.push_back(bytes);
    std::vector<ZipPlan> plan = plan_torch_archive(chunk_folder, pickle.size(), storages);
    plan_zip(plan);
    ZipWriter zip(file_of(0), where.offset, std::move(plan));
    zip.append(pickle);
    zip.append(torch_byteorder);
    if (data != nullptr) zip.append(data, bytes);
    zip.append(torch_version);
    zip.finish();
  }

  void write_values() {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const DcpBytes& entry = metadata_.values[i];
      write_archive(entry.place, value_pickle(entry.path.back(), values_[i]), nullptr, 0);
    }
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      write_archive(metadata_.tensors[i].chunks[0].place,
                    chunk_pickle(stored_dtype(DType::float32), {}), &steps_[i], sizeof steps_[i]);
    }
  }

  const DcpTensor& entry_of(std::size_t tensor) const {
    return metadata_.tensors[first_tensor_ + tensor];
  }

  // Opens the chunk that the next bytes belong to.
  void begin_chunk(std::size_t tensor) {
    if (missing_ > 0) return;
    if (tensor != current_) finish_empty(tensor);
    const DcpTensor& entry = entry_of(current_);
    const std::size_t rank = chunk_;  // chunk i of a tensor lies in the file of rank i
    const DcpChunk& chunk = entry.chunks.at(chunk_);
    std::vector<ZipPlan> plan = plan_chunk(*entry.stored, chunk.box.sizes);
    plan_zip(plan);
    zip_.emplace(file_of(rank), chunk.place.offset, std::move(plan));
    zip_->append(chunk_pickle(*entry.stored, chunk.box.sizes));
    zip_->append(torch_byteorder);
    missing_ = bytes_of(*entry.stored, chunk.box.sizes);
  }

  void end_chunk() {
    zip_->append(torch_version);
    zip_->finish();
    zip_.reset();
    if (++chunk_ == entry_of(current_).chunks.size()) {
      ++current_;
      chunk_ = 0;
    }
  }

  // append() is not called for tensors without elements, so their archives are written here.
  void finish_empty(std::size_t until) {
    TESSERA_REQUIRE(missing_ == 0 && chunk_ == 0, "tensor {} is not whole", current_);
    while (current_ < until) {
      const DcpTensor& entry = entry_of(current_);
      TESSERA_REQUIRE(bytes_of(*entry.stored, entry.shape) == 0, "tensor {} is left out",
                      entry.key);
      const DcpChunk& chunk = entry.chunks.at(0);
      write_archive(chunk.place, chunk_pickle(*entry.stored, chunk.box.sizes), "", 0);
      ++current_;
    }
  }

  std::filesystem::path folder_;
  const Contents& contents_;
  OptimizerLayout optimizer_;
  DcpMetadata metadata_;
  std::vector<nlohmann::json> values_;  // of metadata_.values
  std::vector<float> steps_;            // the first of metadata_.tensors
  std::size_t first_tensor_ = 0;        // of the contents, in metadata_.tensors
  std::vector<std::uint64_t> ends_;     // of each rank's file
  std::list<std::pair<std::size_t, File>> open_;
  std::size_t current_ = 0;  // tensor that is being written
  std::size_t chunk_ = 0;
  std::uint64_t missing_ = 0;  // bytes of the open chunk
  std::optional<ZipWriter> zip_;
};

}  // namespace

std::unique_ptr<Sink> create_dcp(const std::filesystem::path& path, const Contents& contents,
                                 const WriteOptions& options) {
  TESSERA_CHECK(options.max_file_size == 0, ErrorCode::checkpoint,
                "a distributed checkpoint has one file for each rank: give --world-size instead of "
                "--max-shard-size");
  return std::make_unique<DcpSink>(path, contents, options.world_size);
}

}  // namespace tessera::checkpoint::formats
