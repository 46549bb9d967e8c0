// Joins the state dicts that each rank saved for itself, as verl and Accelerate do: DTensors from
// their parts, and plain tensors, which all ranks must have alike.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/formats/beside.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/torch/dtensor.h"
#include "checkpoint/formats/torch/rank_files.h"
#include "checkpoint/formats/torch/torch_state.h"

namespace tessera::checkpoint::formats {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t compared_bytes = 1 << 16;  // of two plain tensors at a time

// The files of one kind, rank by rank.
class RankJoiner {
 public:
  // Lenient: files of ranks that do not fit together are no Error, but make has_unjoined().
  RankJoiner(PieceStore& store, std::string source, bool lenient)
      : store_(store), source_(std::move(source)), lenient_(lenient) {}

  void add_rank(std::size_t rank, const fs::path& path) {
    FileTable& files = store_.files();
    const std::size_t file = files.add(path);
    const TorchArchive archive(files, file, 0, files.size(file), fmt::format("'{}'", path.string()),
                               dtensor_rules);
    std::size_t found = 0;
    StateItems others;  // of the ranks after the first: the same values again
    add_state(rank == 0 ? items_ : others, store_, archive, archive.root(), {},
              [&](const StatePath& tensor_path, const PickleValue& value) {
                if (!take(rank, archive, tensor_path, value)) return false;
                ++found;
                return true;
              });
    if (found == tensors_.size()) return;
    check(lenient_, "{} has {}, that of rank 0 has {}", archive.source(), counted(found, "tensor"),
          tensors_.size());
    unjoined_ = archive.source();
  }

  // Plain tensors differ between the ranks. Such state is of FSDP1's flat parameters, which have
  // neither names nor shapes.
  [[nodiscard]] bool has_unjoined() const { return !unjoined_.empty(); }
  [[nodiscard]] const std::string& first_unjoined() const { return unjoined_; }
  [[nodiscard]] std::size_t tensor_count() const { return tensors_.size(); }

  // The names of the DTensors in their order, which is that of the model's parameters; names of the
  // same memory once. Before hand_out.
  [[nodiscard]] nlohmann::json parameters() const {
    nlohmann::json names = nlohmann::json::array();
    std::set<std::string> seen;
    for (const StatePath& path : order_) {
      const Joined& joined = tensors_.at(path);
      if (joined.distributed && seen.insert(joined.memory).second) names.push_back(path.back());
    }
    return names;
  }

  // The items under `inside`, for name_state.
  void hand_out(StateItems& items, const StatePath& inside) {
    const auto placed = [&](const StatePath& path) {
      StatePath out = inside;
      out.insert(out.end(), path.begin(), path.end());
      return out;
    };
    for (const StatePath& path : order_) {
      Joined& joined = tensors_.at(path);
      StateTensor out;
      out.path = placed(path);
      out.stored = joined.tensor.stored;
      out.shape = joined.tensor.shape;
      out.memory = std::move(joined.memory);
      out.handle = store_.add_tensor(std::move(joined.tensor),
                                     fmt::format("{}: tensor {}", source_, name_of_path(path)));
      items.tensors.push_back(std::move(out));
    }
    for (StateValue& value : items_.values) {
      items.values.push_back({placed(value.path), std::move(value.value)});
    }
  }

 private:
  struct Joined {
    PiecedTensor tensor;
    bool distributed = false;
    std::size_t last_rank = 0;
    std::size_t plain = 0;  // handle of rank 0's, if it is plain
    std::string memory;     // of all ranks
  };

  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail(ErrorCode::checkpoint, "{}: {}", source_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  static std::string name_of_path(const StatePath& path) {
    return shown(fmt::format("{}", fmt::join(path, ".")));
  }

  bool take(std::size_t rank, const TorchArchive& archive, const StatePath& path,
            const PickleValue& value) {
    if (auto part = read_dtensor(archive, value)) {
      Joined* const all = joined(rank, archive, path, part->local, part->shape, true);
      if (all != nullptr) add_part(*all, archive, *part);
      return true;
    }
    const auto tensor = archive.tensor(value);
    if (!tensor.has_value()) return false;
    Joined* const all = joined(rank, archive, path, *tensor, tensor->shape, false);
    if (all == nullptr) return true;
    const std::size_t handle =
        add_torch_tensor(store_, archive, *tensor,
                         fmt::format("{}: tensor {}", archive.source(), name_of_path(path)));
    if (rank == 0) {
      all->plain = handle;
      all->tensor = store_.tensor(handle);
    } else if (unjoined_.empty() && !same_values(all->plain, handle)) {
      unjoined_ = name_of_path(path);
    }
    return true;
  }

  // The tensor at this path, to which a rank adds its part; null if the rank's does not fit, and
  // that is allowed.
  Joined* joined(std::size_t rank, const TorchArchive& archive, const StatePath& path,
                 const TorchTensor& local, const std::vector<std::int64_t>& shape,
                 bool distributed) {
    check(!path.empty(), "{} is one tensor, not a state dict with names", archive.source());
    if (rank == 0) {
      const auto [at, fresh] = tensors_.try_emplace(path);
      check(fresh, "{} has {} twice", archive.source(), name_of_path(path));
      order_.push_back(path);
      at->second.tensor.stored = local.stored;
      at->second.tensor.shape = shape;
      at->second.distributed = distributed;
    }
    if (lenient_ && has_unjoined()) return nullptr;  // a rank before lacks something
    const auto found = tensors_.find(path);
    if (found == tensors_.end() && lenient_) {
      unjoined_ = name_of_path(path);
      return nullptr;
    }
    check(found != tensors_.end(), "{} has {}, and the file of rank 0 has not", archive.source(),
          name_of_path(path));
    Joined& all = found->second;
    check(rank == 0 || all.last_rank + 1 == rank, "{} has {} twice, or a rank before has not",
          archive.source(), name_of_path(path));
    const bool alike = all.tensor.stored == local.stored && all.distributed == distributed &&
                       (all.tensor.shape == shape || !distributed);
    check(alike, "{} of rank {} is {} of {} ({}), that of rank 0 {} of {} ({})", name_of_path(path),
          rank, distributed ? "a DTensor" : "a tensor", describe_shape(shape), local.stored->name,
          all.distributed ? "a DTensor" : "a tensor", describe_shape(all.tensor.shape),
          all.tensor.stored->name);
    all.last_rank = rank;
    all.memory += memory_of(archive, local) + ";";
    return &all;
  }

  // Replicas of a part that another rank has are left out.
  void add_part(Joined& all, const TorchArchive& archive, const DTensorPart& part) {
    const auto& pieces = all.tensor.pieces;
    const bool known = std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
      return piece.box.offsets == part.box.offsets && piece.box.sizes == part.box.sizes;
    });
    if (known) return;
    all.tensor.pieces.push_back({part.box, store_.add_record(archive.storage(part.local.key)),
                                 part.local.first, part.local.strides});
  }

  bool same_values(std::size_t a, std::size_t b) {
    const PiecedTensor& first = store_.tensor(a);
    if (first.shape != store_.tensor(b).shape) return false;
    const std::int64_t size = first.stored->bits / 8;
    const std::int64_t all = element_count(first.shape, source_);
    const std::int64_t step = compared_bytes / size;
    std::vector<std::byte> one(static_cast<std::size_t>(step * size)), other(one.size());
    for (std::int64_t at = 0; at < all; at += step) {
      const std::int64_t count = std::min(step, all - at);
      store_.read(a, at, count, one.data());
      store_.read(b, at, count, other.data());
      if (std::memcmp(one.data(), other.data(), static_cast<std::size_t>(count * size)) != 0) {
        return false;
      }
    }
    return true;
  }

  PieceStore& store_;
  std::string source_;
  bool lenient_;
  StateItems items_;  // the plain values of rank 0
  std::map<StatePath, Joined> tensors_;
  std::vector<StatePath> order_;  // of rank 0
  std::string unjoined_;          // the first plain tensor that differs
};

class VerlOpener {
 public:
  std::unique_ptr<Source> open(const fs::path& folder) {
    refuse_several_models(folder);
    refuse_flat_shards(folder);
    const RankFiles files = list_rank_files(folder);
    const std::string source = fmt::format("'{}'", folder.string());
    RankJoiner model(store_, source, false);
    for (std::size_t r = 0; r < files.world; ++r) model.add_rank(r, files.model[r]);
    TESSERA_CHECK(!model.has_unjoined(), ErrorCode::checkpoint,
                  "{}: {} is not a DTensor, and differs between the ranks: such tensors are not "
                  "joined; save model.state_dict() under FSDP with a device mesh, sharded",
                  source, model.first_unjoined());
    StateItems items;
    const nlohmann::json parameters = model.parameters();
    model.hand_out(items, {});
    const bool optimizer = add_optimizer(files, source, items);
    if (!parameters.empty()) name_parameters(items, parameters);
    NamedState state = name_state(
        std::move(items), [this](std::size_t handle) { return store_.number(handle); }, source);
    Contents& contents = state.contents;
    const bool named = std::any_of(contents.tensors.begin(), contents.tensors.end(),
                                   [](const auto& t) { return t.part == Part::optimizer; });
    if (optimizer && !named) {
      const std::string file = files.optimizer.front().filename().string();
      if (contents.unread_state.empty()) contents.unread_state = file;
      contents.notes.push_back(unread_state_note(file));
    }
    std::vector<std::string> known;
    for (const fs::path& file : files.optimizer) known.push_back(file.filename().string());
    note_other_optimizers(contents, folder, known);
    contents.notes.push_back(
        fmt::format("the state dicts of {}, joined", counted(files.world, "rank")));
    if (!files.others.empty()) {
      contents.notes.push_back(fmt::format(
          "left out: {}, such as {}: the state of the program, not of model or optimizer",
          counted(files.others.size(), "file"), shown(files.others.front())));
    }
    add_small_files(contents, folder);
    return make_source(std::move(store_), std::move(state));
  }

 private:
  // True if there is state of an optimizer. State that is not joined stays out of the items.
  bool add_optimizer(const RankFiles& files, const std::string& source, StateItems& items) {
    if (files.optimizer.empty()) return false;
    RankJoiner optimizer(store_, source, true);
    for (std::size_t r = 0; r < files.world; ++r) optimizer.add_rank(r, files.optimizer[r]);
    if (!optimizer.has_unjoined()) optimizer.hand_out(items, {"optimizer"});
    return optimizer.tensor_count() > 0;
  }

  // FSDP2's parameters are DTensors and its buffers are not, so a single group without names has
  // the DTensors in their order.
  static void name_parameters(StateItems& items, const nlohmann::json& parameters) {
    const StatePath first{"optimizer", "param_groups", "0"};
    bool single = false;
    for (const StateValue& value : items.values) {
      const StatePath& path = value.path;
      if (path.size() < 3 || path[0] != first[0] || path[1] != first[1]) continue;
      if (path[2] != first[2] || path.back() == "param_names") return;
      single = true;
    }
    if (!single) return;
    items.values.push_back({{first[0], first[1], first[2], assumed_names_key}, parameters});
  }

  // verl puts config.json and the tokenizer into huggingface/.
  static void add_small_files(Contents& contents, const fs::path& folder) {
    std::error_code error;
    if (fs::is_directory(folder / "huggingface", error)) {
      add_model_files(contents, folder / "huggingface");
    }
    add_model_files(contents, folder);
    contents.files.erase("fsdp_config.json");
  }

  PieceStore store_;
};

std::unique_ptr<Source> open_verl(const fs::path& path) {
  return VerlOpener().open(path);
}

}  // namespace

const Format& verl_format() {
  static const Format format{"verl",
                             "a folder of each rank's state dict (model_world_size_N_rank_R.pt, as "
                             "verl writes; pytorch_model_fsdp_0_rankR.bin), read only",
                             false,
                             has_rank_files,
                             open_verl,
                             nullptr};
  return format;
}

}  // namespace tessera::checkpoint::formats
