// Walking the values of a torch.save file.
#include "checkpoint/formats/torch/torch_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/beside.h"
#include "checkpoint/formats/torch/state_dicts.h"
#include "checkpoint/io/file.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::size_t nesting_limit = 32;
constexpr std::size_t visits_of_a_value = 4;  // at most, on average: shared parts are few
constexpr std::size_t visits_for_all = 1000;
constexpr std::size_t key_limit = 4096;
constexpr std::uintmax_t model_file_limit = std::uintmax_t{64} << 20;

class StateWalker {
 public:
  StateWalker(StateItems& items, PieceStore& store, const TorchArchive& archive, StatePath path,
              const TakeValue& take)
      : items_(items), store_(store), archive_(archive), path_(std::move(path)), take_(take) {}

  void walk(const PickleValue& value) {
    const std::size_t most = visits_for_all + visits_of_a_value * archive_.values();
    TESSERA_CHECK(path_.size() <= nesting_limit && ++visits_ <= most, ErrorCode::checkpoint,
                  "{} is nested too deep, or repeats its parts without end", archive_.source());
    if (take_ && take_(path_, value)) return;
    if (const auto tensor = archive_.tensor(value)) {
      add_tensor(*tensor);
    } else if (value.is(PickleKind::dict)) {
      for (std::size_t i = 0; i < value.size(); ++i) enter(value.key(i), value.value(i));
    } else if (has_containers(value)) {
      for (std::size_t i = 0; i < value.size(); ++i) {
        path_.push_back(std::to_string(i));
        walk(value.at(i));
        path_.pop_back();
      }
    } else if (!path_.empty() && is_optimizer_value(path_)) {
      items_.values.push_back({path_, json_.convert(value)});
    }
  }

 private:
  void enter(const PickleValue& key, const PickleValue& value) {
    if (key.is(PickleKind::text)) {
      TESSERA_CHECK(key.text().size() <= key_limit, ErrorCode::checkpoint,
                    "{}: the name {} has {} bytes, the limit is {}", archive_.source(),
                    shown(key.text()), key.text().size(), key_limit);
      path_.push_back(key.text());
    } else if (key.is(PickleKind::integer)) {
      path_.push_back(std::to_string(key.integer()));
    } else {
      return;  // a key of another kind is not a name in a state dict
    }
    walk(value);
    path_.pop_back();
  }

  static bool has_containers(const PickleValue& value) {
    if (!value.is(PickleKind::list) && !value.is(PickleKind::tuple)) return false;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const PickleKind kind = value.at(i).kind();
      if (kind == PickleKind::dict || kind == PickleKind::object) return true;
    }
    return false;
  }

  void add_tensor(const TorchTensor& tensor) {
    TESSERA_CHECK(!path_.empty(), ErrorCode::checkpoint,
                  "{} is one tensor, not a state dict with names", archive_.source());
    const std::string name = fmt::format("{}: tensor {}", archive_.source(),
                                         shown(fmt::format("{}", fmt::join(path_, "."))));
    StateTensor out;
    out.path = path_;
    out.stored = tensor.stored;
    out.shape = tensor.shape;
    out.handle = add_torch_tensor(store_, archive_, tensor, name);
    out.memory = memory_of(archive_, tensor);
    items_.tensors.push_back(std::move(out));
  }

  StateItems& items_;
  PieceStore& store_;
  const TorchArchive& archive_;
  StatePath path_;
  const TakeValue& take_;
  std::size_t visits_ = 0;
  PickleToJson json_;
};

}  // namespace

void add_state(StateItems& items, PieceStore& store, const TorchArchive& archive,
               const PickleValue& value, const StatePath& path, const TakeValue& take) {
  StateWalker(items, store, archive, path, take).walk(value);
}

std::string memory_of(const TorchArchive& archive, const TorchTensor& tensor) {
  return fmt::format("{}/{}/{}/{}/{}/{}", archive.source(), tensor.key, tensor.first,
                     tensor.stored->name, fmt::join(tensor.shape, ","),
                     fmt::join(tensor.strides, ","));
}

std::size_t add_torch_tensor(PieceStore& store, const TorchArchive& archive,
                             const TorchTensor& tensor, const std::string& what) {
  PiecedTensor pieced{tensor.stored, tensor.shape, {}};
  Piece piece{{std::vector<std::int64_t>(tensor.shape.size(), 0), tensor.shape},
              store.add_record(archive.storage(tensor.key)),
              tensor.first,
              tensor.strides};
  pieced.pieces.push_back(std::move(piece));
  return store.add_tensor(std::move(pieced), what);
}

void add_model_files(Contents& contents, const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!belongs_to_model(name) || !entry.is_regular_file(error) ||
        entry.file_size(error) > model_file_limit) {
      continue;
    }
    (void)open_member(folder, name);
    contents.files[name] = entry.path();
  }
}

std::unique_ptr<Source> make_source(PieceStore store, NamedState state) {
  return std::make_unique<PiecedSource>(std::move(store), std::move(state.contents),
                                        std::move(state.handles));
}

}  // namespace tessera::checkpoint::formats
