// Saves: plan, prepare, write, commit. Each phase ends with an exchange of the ranks' outcomes, so
// that all continue or all fail with the same error.
#include "checkpoint/save/writer.h"

#include <fmt/format.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/io/collective.h"
#include "checkpoint/io/span_writer.h"
#include "checkpoint/save/save_plan.h"
#include "checkpoint/state/scalars_json.h"
#include "checkpoint/state/transfer.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// JSON cannot hold infinities and NaN: they would come back as null.
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

// A fingerprint of the files' contents: in memory, a rank may hold its part in the file's dtype
// already.
std::string tensors_fingerprint(const std::vector<LogicalTensor>& tensors,
                                std::optional<DType> floating) {
  json list = json::array();
  for (const LogicalTensor& tensor : tensors) {
    const DType dtype = floating && is_floating(tensor.dtype) ? *floating : tensor.dtype;
    list.push_back({tensor.name, name_of(dtype), tensor.shape});
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

// Also owned by the threads of its phases: a thread that hangs on a disk keeps what it uses.
class Save : public std::enable_shared_from_this<Save> {
 public:
  Save(comm::Communicator& communicator, SaveJob job)
      : rank_(communicator.rank()),
        world_(communicator.size()),
        job_(std::move(job)),
        doing_(fmt::format("saving '{}'", job_.target.string())) {}

  Saved run(comm::Communicator& communicator);

 private:
  using Phase = std::string (Save::*)();
  std::vector<std::string> all(comm::Communicator& communicator, Phase phase);
  void plan(comm::Communicator& communicator);
  void collect(const std::vector<std::string>& sums);
  [[noreturn]] void give_up(comm::Communicator& communicator, const Error& error);

  // Phases: each is the part of a rank, on a thread of its own.
  std::string describe_own_state();
  std::string prepare();
  std::string write();
  std::string commit();
  std::string roll_back();

  void write_file_of(std::size_t index, File& file);
  void check_extra_files() const;
  [[nodiscard]] std::set<fs::path> inner_folders() const;
  [[nodiscard]] bool is_first() const { return rank_ == 0; }

  const int rank_;
  const int world_;
  SaveJob job_;
  std::string doing_;
  std::string save_id_;
  fs::path partial_;
  SavePlan plan_;
  std::unique_ptr<Destination> destination_;      // rank 0's
  std::vector<std::vector<std::uint64_t>> sums_;  // this rank's chunks, by file
  std::vector<FileRecord> records_;
  std::atomic<bool> busy_{false};  // a phase is running
  bool stuck_ = false;             // and will not end
};

std::vector<std::string> Save::all(comm::Communicator& communicator, Phase phase) {
  const auto work = [self = shared_from_this(), phase] {
    self->busy_.store(true);
    struct Done {
      std::atomic<bool>& busy;
      ~Done() { busy.store(false); }
    } const done{self->busy_};
    return (*self.*phase)();
  };
  return run_on_all_ranks(communicator, doing_, work,
                          {.timeout = job_.options.stall_timeout, .may_abandon = true});
}

Saved Save::run(comm::Communicator& communicator) {
  plan(communicator);
  Saved saved;
  saved.path = job_.target;
  try {
    all(communicator, &Save::prepare);
    collect(all(communicator, &Save::write));
    const json line = json::parse(all(communicator, &Save::commit).front());
    saved.line = job_.options.line;
    saved.line.run = line.at("run").get<std::string>();
    saved.line.parent = save_id_;
    saved.line.parent_commit = line.at("commit").get<std::int64_t>();
    saved.warnings = line.at("warnings").get<std::vector<std::string>>();
  } catch (const Error& error) {
    give_up(communicator, error);
  } catch (const std::logic_error&) {  // misuse: all ranks get it, and none works any more
    if (!busy_.load()) roll_back();
    throw;
  }
  return saved;
}

void Save::give_up(comm::Communicator& communicator, const Error& error) {
  if (error.code() != ErrorCode::checkpoint && error.code() != ErrorCode::out_of_memory) {
    // A rank is gone: no more exchanges are possible.
    if (!busy_.load()) roll_back();
    throw error;
  }
  std::string leftover;
  try {
    // A phase that is still running hangs in the kernel, and uses the folder.
    if (busy_.load()) stuck_ = true;
    // Only rank 0 knows whether the partial folder is gone, and all ranks throw the same error.
    leftover = all(communicator, &Save::roll_back).front();
  } catch (const Error& second) {
    if (second.code() != ErrorCode::checkpoint) throw;
    leftover = second.what();
  }
  if (leftover.empty()) throw error;
  throw Error(error.code(), fmt::format("{}; {}", error.what(), leftover));
}

std::string Save::describe_own_state() {
  const State& state = job_.state;
  check_scalars(json_of(state.scalars), "");
  if (is_first()) check_extra_files();
  const PieceLists pieces = list_pieces(state);
  std::random_device random;
  const std::uint64_t id = (static_cast<std::uint64_t>(random()) << 32) | random();
  const SaveOptions& options = job_.options;
  return to_message({{"save id", to_hex(id)},
                     {"same",
                      {{"step", job_.step},
                       {"options", fmt::format("{} {} {} {}", static_cast<int>(options.type),
                                               name_of(options.model_dtype), options.keep,
                                               options.max_file_size)},
                       {"model tensors", tensors_fingerprint(state.model, options.model_dtype)},
                       {"optimizer tensors", tensors_fingerprint(state.optimizer, {})},
                       {"scalars", to_hex(checksum(json_of(state.scalars).dump()))}}},
                     {"model", runs_to_json(pieces.model)},
                     {"optimizer", runs_to_json(pieces.optimizer)}});
}

void Save::check_extra_files() const {
  for (const auto& [name, contents] : job_.options.files) {
    TESSERA_REQUIRE(is_member_name(name) && name != manifest_name &&
                        !name.ends_with(".safetensors") &&
                        !name.ends_with(".safetensors.index.json"),
                    "an extra file of a checkpoint cannot be named '{}'", name);
  }
}

// The folders inside the step folder that hold files.
std::set<fs::path> Save::inner_folders() const {
  std::set<fs::path> folders;
  const auto note = [&](const fs::path& name) {
    if (name.has_parent_path()) folders.insert(partial_ / name.parent_path());
  };
  for (const PlannedFile& planned : plan_.files) note(planned.name);
  for (const auto& file : job_.options.files) note(file.first);
  return folders;
}

void Save::plan(comm::Communicator& communicator) {
  const SaveOptions& options = job_.options;
  TESSERA_REQUIRE(job_.step >= 0, "step {} is negative", job_.step);
  TESSERA_REQUIRE(options.keep >= 0, "keep {} is negative", options.keep);
  TESSERA_REQUIRE(options.stall_timeout.count() >= 0, "stall_timeout is negative");
  TESSERA_REQUIRE(is_floating(options.model_dtype), "model_dtype {} is not a floating dtype",
                  name_of(options.model_dtype));
  const auto messages = all(communicator, &Save::describe_own_state);
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
  partial_ = job_.partial(save_id_);
  // From the same input, every rank gets the same result.
  check_coverage(job_.state, pieces);
  plan_ = plan_save(job_.state, options, pieces, rank_, job_.with_optimizer);
  sums_.resize(plan_.files.size());
  if (is_first()) job_.options.files.merge(plan_.texts);
}

// Rank 0 makes the folder, and every file that ranks share at its full size, so that the others
// only open and write.
std::string Save::prepare() {
  if (!is_first()) return {};
  std::uint64_t needed = plan_.total_bytes();
  for (const auto& [name, contents] : job_.options.files) needed += contents.size();
  destination_ = job_.destination(save_id_);
  destination_->prepare(needed);
  for (const fs::path& folder : inner_folders()) create_folder(folder);
  for (const PlannedFile& planned : plan_.files) {
    if (!planned.shared) continue;
    File file = File::create(partial_ / planned.name);
    file.resize(planned.bytes);
    file.close();
  }
  for (const auto& [name, contents] : job_.options.files) {
    const auto mode = job_.options.file_modes.find(name);
    write_file(partial_ / name, contents,
               mode == job_.options.file_modes.end() ? File::default_mode : mode->second);
  }
  return {};
}

// Writes a rank's part of a file, front to back.
void Save::write_file_of(std::size_t index, File& file) {
  const PlannedFile& planned = plan_.files[index];
  const auto by_file = [](const PlannedWrite& write, std::size_t wanted) {
    return write.file < wanted;
  };
  auto next = std::lower_bound(plan_.writes.begin(), plan_.writes.end(), index, by_file);
  SpanWriter writer(file, chunk_bytes_of(planned.bytes));
  if (planned.creator == rank_) writer.put(planned.header.data(), planned.header.size());
  Staging staging;
  const auto put = [&](std::uint64_t /*offset*/, const void* data, std::size_t bytes) {
    writer.put(data, bytes);
  };
  for (; next != plan_.writes.end() && next->file == index; ++next) {
    if (next->offset != writer.offset()) writer.begin(next->offset);
    if (next->in_file) {
      staging.store(next->in_file, next->count, next->memory_dtype, next->file_dtype, put);
    } else {
      staging.store(next->data, next->device, next->count, next->memory_dtype, next->file_dtype,
                    put);
    }
  }
  sums_[index] = writer.finish();
}

// Ranks begin with different files: a file system lets only one rank at a time write into a file.
std::string Save::write() {
  std::vector<File> files;
  const std::size_t count = plan_.files.size();
  const std::size_t first =
      count * static_cast<std::size_t>(rank_) / static_cast<std::size_t>(world_);
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t index = (first + n) % count;
    const PlannedFile& planned = plan_.files[index];
    const bool takes_part =
        std::any_of(planned.spans.begin(), planned.spans.end(),
                    [this](const FileSpan& span) { return span.rank == rank_; });
    if (!takes_part) continue;
    const fs::path path = partial_ / planned.name;
    files.push_back(planned.shared ? File::open_for_writing(path) : File::create(path));
    write_file_of(index, files.back());
  }
  if (job_.after_reading) job_.after_reading();
  for (File& file : files) file.sync();
  for (File& file : files) file.close();
  std::string message;
  for (const auto& of_file : sums_) {
    message.append(reinterpret_cast<const char*>(of_file.data()),
                   of_file.size() * sizeof(std::uint64_t));
  }
  return message;
}

// Puts every rank's checksums in their places.
void Save::collect(const std::vector<std::string>& sums) {
  if (!is_first()) return;
  std::vector<std::size_t> next(sums.size(), 0);
  for (const PlannedFile& planned : plan_.files) {
    FileRecord& record = records_.emplace_back(planned.record());
    const ChunkMap map(record.bytes, record.chunk_bytes, record.cuts);
    record.chunks.resize(map.count());
    for (std::size_t span = 0; span < planned.spans.size(); ++span) {
      const auto rank = static_cast<std::size_t>(planned.spans[span].rank);
      const std::size_t first = map.first_of_span(span);
      const std::size_t bytes = (map.first_of_span(span + 1) - first) * sizeof(std::uint64_t);
      TESSERA_REQUIRE(next[rank] + bytes <= sums[rank].size(),
                      "rank {} has not given all checksums of '{}'", rank, planned.name);
      std::memcpy(record.chunks.data() + first, sums[rank].data() + next[rank], bytes);
      next[rank] += bytes;
    }
  }
}

std::string Save::commit() {
  if (!is_first()) return {};
  for (const fs::path& folder : inner_folders()) sync_folder(folder);
  Manifest manifest;
  manifest.save_id = save_id_;
  manifest.step = job_.step;
  manifest.world_size = world_;
  manifest.type = job_.options.type;
  manifest.files = std::move(records_);
  for (const auto& [name, contents] : job_.options.files) {
    FileRecord& record = manifest.files.emplace_back(
        FileRecord{name, contents.size(), chunk_bytes_of(contents.size()), {}});
    ChunkHasher hasher(record.chunk_bytes);
    hasher.update(contents.data(), contents.size());
    hasher.cut();
    record.chunks = hasher.sums();
  }
  manifest.model = std::move(plan_.model);
  manifest.optimizer = std::move(plan_.optimizer);
  manifest.scalars = job_.state.scalars;
  manifest.score = job_.options.score;
  return destination_->commit(std::move(manifest));
}

std::string Save::roll_back() {
  if (stuck_)
    return fmt::format("the unfinished '{}' stays until the next save", partial_.string());
  return destination_ ? destination_->roll_back() : std::string();
}

}  // namespace

std::string saved_line(const std::string& run, std::int64_t commit,
                       const std::vector<std::string>& warnings) {
  const json line{{"run", run}, {"commit", commit}, {"warnings", warnings}};
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

Saved run_save(comm::Communicator& communicator, SaveJob job) {
  const auto save = std::make_shared<Save>(communicator, std::move(job));
  return save->run(communicator);
}

}  // namespace tessera::checkpoint
