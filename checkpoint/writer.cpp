// save(): plan, prepare, write, check, commit. Each phase ends with an exchange of the ranks'
// outcomes, so that all go on or all fail with the same error.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <future>
#include <optional>
#include <random>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "checkpoint/collective.h"
#include "checkpoint/commit.h"
#include "checkpoint/manifest.h"
#include "checkpoint/plan.h"
#include "checkpoint/scalars_json.h"
#include "checkpoint/transfer.h"
#include "kernels/base/error.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A number that JSON has no word for would come back as null.
void check_scalars(const json& value, const std::string& path) {
  if (value.is_number_float()) {
    TESSERA_CHECK(std::isfinite(value.get<double>()), ErrorCode::checkpoint,
                  "scalar '{}' is {}, which JSON cannot hold; leave it out or store it as text",
                  path, value.get<double>());
  } else if (value.is_structured()) {
    for (const auto& [key, child] : value.items()) check_scalars(child, path + "/" + key);
  }
}

json runs_to_json(const RankPieces& pieces) {
  json out = json::array();
  for (const auto& runs : pieces) {
    json flat = json::array();
    for (const Run& run : runs) {
      flat.push_back(run.first);
      flat.push_back(run.count);
    }
    out.push_back(std::move(flat));
  }
  return out;
}

RankPieces runs_from_json(const json& in) {
  RankPieces pieces;
  for (const json& flat : in) {
    auto& runs = pieces.emplace_back();
    for (std::size_t i = 0; i + 1 < flat.size(); i += 2) {
      runs.push_back({flat[i].get<std::int64_t>(), flat[i + 1].get<std::int64_t>()});
    }
  }
  return pieces;
}

std::string tensors_fingerprint(const std::vector<LogicalTensor>& tensors) {
  json list = json::array();
  for (const LogicalTensor& tensor : tensors) {
    list.push_back({tensor.name, name_of(tensor.dtype), tensor.shape});
  }
  return to_hex(checksum(list.dump()));
}

std::string to_message(const json& value) {
  std::string bytes;
  json::to_cbor(value, bytes);
  return bytes;
}

json from_message(const std::string& bytes) {
  return json::from_cbor(bytes.begin(), bytes.end());
}

class Save {
 public:
  Save(comm::Communicator& communicator, fs::path dir, std::int64_t step, const State& state,
       const SaveOptions& options)
      : communicator_(communicator),
        dir_(std::move(dir)),
        step_(step),
        state_(state),
        options_(options),
        target_(dir_ / step_name(step)),
        doing_(fmt::format("saving '{}'", target_.string())),
        is_first_(communicator.rank() == 0) {}

  Saved run() {
    plan();
    Saved saved;
    try {
      together(communicator_, doing_, [&] { return prepare(); });
      together(communicator_, doing_, [&] { return write(); });
      hash();
      const auto messages = together(communicator_, doing_, [&] { return commit(); });
      const json told = json::parse(messages.front());
      saved.line = options_.line;
      saved.line.run = told.at("run").get<std::string>();
      saved.line.parent_commit = told.at("commit").get<std::int64_t>();
      saved.warnings = told.at("warnings").get<std::vector<std::string>>();
    } catch (const Error& error) {
      const std::string leftover = pending_ ? pending_->roll_back() : std::string();
      if (error.code() != ErrorCode::checkpoint) throw;  // a rank is gone: no more exchanges
      // Only rank 0 knows whether the partial folder is gone, and all throw the same.
      const auto leftovers = communicator_.exchange(leftover, {.phase = comm::Phase::checkpoint});
      if (leftovers.front().empty()) throw;
      throw Error(error.code(), fmt::format("{}; {}", error.what(), leftovers.front()));
    }
    saved.path = target_;
    saved.line.parent = save_id_;
    return saved;
  }

 private:
  void plan();
  std::string describe_own_state() const;
  std::string prepare();
  std::string write();
  void hash();
  std::string commit();
  void check_extra_files() const;

  comm::Communicator& communicator_;
  fs::path dir_;
  std::int64_t step_;
  const State& state_;
  const SaveOptions& options_;
  fs::path target_;
  std::string doing_;
  bool is_first_;

  std::string save_id_;
  fs::path partial_;
  SavePlan plan_;
  std::optional<PendingStep> pending_;  // rank 0's
  std::vector<File> files_;             // those that this rank has written to
  std::vector<FileRecord> records_;
};

std::string Save::describe_own_state() const {
  check_scalars(json_of(state_.scalars), "");
  if (is_first_) check_extra_files();
  const PieceLists pieces = list_pieces(state_);
  std::random_device random;
  const std::uint64_t id = (static_cast<std::uint64_t>(random()) << 32) | random();
  return to_message({{"save id", to_hex(id)},
                     {"same",
                      {{"step", step_},
                       {"options", fmt::format("{} {} {}", static_cast<int>(options_.type),
                                               name_of(options_.model_dtype), options_.keep)},
                       {"model tensors", tensors_fingerprint(state_.model)},
                       {"optimizer tensors", tensors_fingerprint(state_.optimizer)},
                       {"scalars", to_hex(checksum(json_of(state_.scalars).dump()))}}},
                     {"model", runs_to_json(pieces.model)},
                     {"optimizer", runs_to_json(pieces.optimizer)}});
}

void Save::check_extra_files() const {
  for (const auto& [name, contents] : options_.files) {
    TESSERA_REQUIRE(is_plain_name(name) && name != manifest_name && !name.ends_with(".safetensors"),
                    "an extra file of a checkpoint cannot be named '{}'", name);
  }
}

void Save::plan() {
  TESSERA_REQUIRE(step_ >= 0, "step {} is negative", step_);
  TESSERA_REQUIRE(options_.keep >= 0, "keep {} is negative", options_.keep);
  TESSERA_REQUIRE(is_floating(options_.model_dtype), "model_dtype {} is not a floating dtype",
                  name_of(options_.model_dtype));
  const auto messages = together(communicator_, doing_, [&] { return describe_own_state(); });
  std::vector<PieceLists> pieces;
  json first;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    const json message = from_message(messages[rank]);
    if (rank == 0) first = message;
    for (const auto& [what, value] : message.at("same").items()) {
      TESSERA_CHECK(value == first.at("same").at(what), ErrorCode::checkpoint,
                    "{}: rank {} and rank 0 do not agree on the {}", doing_, rank, what);
    }
    pieces.push_back(
        {runs_from_json(message.at("model")), runs_from_json(message.at("optimizer"))});
  }
  save_id_ = first.at("save id").get<std::string>();
  partial_ = dir_ / partial_name(step_, save_id_);
  // From the same input, every rank comes to the same verdict.
  check_coverage(state_, pieces);
  plan_ = plan_save(state_, options_, pieces, communicator_.rank());
}

// Rank 0 makes the folder, and every file at its full size, so that the others only open and write.
std::string Save::prepare() {
  if (!is_first_) return {};
  std::uint64_t needed = plan_.total_bytes();
  for (const auto& [name, contents] : options_.files) needed += contents.size();
  pending_.emplace(dir_, step_, save_id_, needed, options_.line);
  for (const PlannedFile& planned : plan_.files) {
    File file = File::create(partial_ / planned.name);
    file.resize(planned.bytes);
    file.close();
  }
  for (const auto& [name, contents] : options_.files) write_file(partial_ / name, contents);
  return {};
}

std::string Save::write() {
  Staging staging;
  std::size_t next = 0;
  for (std::size_t i = 0; i < plan_.files.size(); ++i) {
    const PlannedFile& planned = plan_.files[i];
    const bool writes_header = planned.creator == communicator_.rank();
    const bool writes_data = next < plan_.writes.size() && plan_.writes[next].file == i;
    if (!writes_header && !writes_data) continue;
    File file = File::open_for_writing(partial_ / planned.name);
    if (writes_header) file.write_at(0, planned.header.data(), planned.header.size());
    for (; next < plan_.writes.size() && plan_.writes[next].file == i; ++next) {
      const PlannedWrite& run = plan_.writes[next];
      const auto put = [&](std::uint64_t offset, const void* data, std::size_t bytes) {
        file.write_at(run.offset + offset, data, bytes);
      };
      if (run.in_file) {
        staging.store(run.in_file, run.count, run.memory_dtype, run.file_dtype, put);
      } else {
        staging.store(run.data, run.device, run.count, run.memory_dtype, run.file_dtype, put);
      }
    }
    files_.push_back(std::move(file));
  }
  return {};
}

// Makes this rank's writes durable while it reads its share of all chunks back, out of the page
// cache, for their checksums: a chunk of a full file has parts of several ranks.
void Save::hash() {
  std::uint64_t chunks = 0;
  for (const PlannedFile& planned : plan_.files) {
    const std::uint64_t chunk_bytes = chunk_bytes_of(planned.bytes);
    records_.push_back({planned.name, planned.bytes, chunk_bytes,
                        std::vector<std::uint64_t>(
                            static_cast<std::size_t>(chunk_count(planned.bytes, chunk_bytes)))});
    chunks += records_.back().chunks.size();
  }
  const auto world = static_cast<std::uint64_t>(communicator_.size());
  const auto share = [&](std::uint64_t rank) { return chunks * rank / world; };
  const auto for_each_of = [&](std::uint64_t rank, auto&& body) {
    std::uint64_t index = 0;
    for (FileRecord& record : records_) {
      const std::uint64_t begin = std::max(share(rank), index);
      const std::uint64_t end = std::min(share(rank + 1), index + record.chunks.size());
      if (begin < end) body(record, begin - index, end - index);
      index += record.chunks.size();
    }
  };

  const auto messages = together(communicator_, doing_, [&] {
    SystemCalls& calls = system_calls();
    auto synced = std::async(std::launch::async, [&] {
      const ScopedSystemCalls same_calls(calls);
      for (File& file : files_) file.sync();
    });
    std::string sums;
    std::vector<std::byte> buffer;
    for_each_of(static_cast<std::uint64_t>(communicator_.rank()),
                [&](const FileRecord& record, std::uint64_t begin, std::uint64_t end) {
                  const File file = File::open_for_reading(partial_ / record.name);
                  for (std::uint64_t chunk = begin; chunk < end; ++chunk) {
                    const std::uint64_t offset = chunk * record.chunk_bytes;
                    buffer.resize(static_cast<std::size_t>(
                        std::min(record.chunk_bytes, record.bytes - offset)));
                    file.read_at(offset, buffer.data(), buffer.size());
                    sums += to_hex(checksum(buffer.data(), buffer.size()));
                  }
                });
    synced.get();
    for (File& file : files_) file.close();
    files_.clear();
    return sums;
  });
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    std::size_t next = 0;
    for_each_of(rank, [&](FileRecord& record, std::uint64_t begin, std::uint64_t end) {
      for (std::uint64_t chunk = begin; chunk < end; ++chunk, next += 16) {
        record.chunks[static_cast<std::size_t>(chunk)] =
            std::stoull(messages[rank].substr(next, 16), nullptr, 16);
      }
    });
  }
}

std::string Save::commit() {
  if (!is_first_) return {};
  Manifest manifest;
  manifest.save_id = save_id_;
  manifest.step = step_;
  manifest.world_size = communicator_.size();
  manifest.type = options_.type;
  manifest.files = std::move(records_);
  for (const auto& [name, contents] : options_.files) {
    FileRecord& record = manifest.files.emplace_back(
        FileRecord{name, contents.size(), chunk_bytes_of(contents.size()), {}});
    for (std::size_t offset = 0; offset < contents.size(); offset += record.chunk_bytes) {
      record.chunks.push_back(
          checksum(std::string_view(contents).substr(offset, record.chunk_bytes)));
    }
  }
  manifest.model = std::move(plan_.model);
  manifest.optimizer = std::move(plan_.optimizer);
  manifest.scalars = state_.scalars;
  manifest.lineage = pending_->lineage();
  manifest.score = options_.score;
  const auto warnings =
      pending_->commit(to_text(manifest), {options_.keep, options_.keep_best}, options_.score);
  const json told{
      {"run", manifest.lineage.run}, {"commit", manifest.lineage.commit}, {"warnings", warnings}};
  return told.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

Saved save(comm::Communicator& communicator, const std::string& dir, std::int64_t step,
           const State& state, const SaveOptions& options) {
  return Save(communicator, dir, step, state, options).run();
}

}  // namespace tessera::checkpoint
