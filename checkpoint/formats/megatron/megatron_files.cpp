// Finds the folder of an iteration, and reads common.pt as data.
#include "checkpoint/formats/megatron/megatron_files.h"

#include <fmt/format.h>
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "checkpoint/formats/torch/torch_state.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"

namespace tessera::checkpoint::formats {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* backend_file = "metadata.json";
constexpr const char* backend_key = "sharded_backend";
constexpr const char* latest_iteration_file = "latest_checkpointed_iteration.txt";
constexpr std::size_t megatron_text_limit = std::size_t{1} << 20;
constexpr std::size_t megatron_tokenizer_limit = std::size_t{64} << 20;
constexpr std::int64_t largest_vocabulary = std::int64_t{1} << 31;

// Arguments are of many classes. None of them is ever made: only plain values are looked at.
const PickleRules common_rules{[](std::string_view) { return true; },
                               "the common state of a Megatron checkpoint", ""};

bool is_file_in(const fs::path& folder, const char* name) {
  std::error_code error;
  return fs::is_regular_file(folder / name, error);
}

// The value of metadata.json's key; empty: there is none.
std::string sharded_backend_of(const fs::path& folder) {
  if (!is_file_in(folder, backend_file)) return {};
  return text_member(object_or_null(read_file(folder / backend_file, megatron_text_limit)),
                     backend_key);
}

// Megatron's form before distributed checkpoints, a file for each rank.
bool has_legacy_files(const fs::path& folder) {
  return is_file_in(folder, "mp_rank_00/model_optim_rng.pt") ||
         is_file_in(folder, "mp_rank_00_000/model_optim_rng.pt");
}

// The largest step of the parameter groups, or the one of all parameters beside them; the state may
// lie in a dict of its own in that of a wrapper.
std::optional<double> steps_of_optimizer(const PickleValue& optimizer, const TorchArchive& archive,
                                         PieceStore& store) {
  if (!optimizer.is(PickleKind::dict)) return std::nullopt;
  const PickleValue inner = optimizer.find("optimizer").value_or(optimizer);
  if (!inner.is(PickleKind::dict)) return std::nullopt;
  std::optional<double> most;
  const auto see = [&](const std::optional<PickleValue>& value) {
    if (!value) return;
    double step = -1;
    if (const auto tensor = archive.tensor(*value)) {
      step = store.number(add_torch_tensor(store, archive, *tensor, archive.source() + ": step"));
    } else if (value->is(PickleKind::integer) || value->is(PickleKind::real)) {
      step = value->number();
    }
    if (step >= 0) most = std::max(most.value_or(0), step);
  };
  if (const auto groups = inner.find("param_groups"); groups && groups->is(PickleKind::list)) {
    for (std::size_t i = 0; i < groups->size(); ++i) {
      if (groups->at(i).is(PickleKind::dict)) see(groups->at(i).find("step"));
    }
  }
  if (const auto state = inner.find("state"); state && state->is(PickleKind::dict)) {
    see(state->find("common_step"));
  }
  return most;
}

}  // namespace

fs::path megatron_folder(const fs::path& path) {
  if (is_file_in(path, backend_file) || !is_file_in(path, latest_iteration_file)) return path;
  std::string name = read_file(path / latest_iteration_file, 4096);
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r' || name.back() == ' ')) {
    name.pop_back();
  }
  if (name == "release") return path / name;
  const bool number =
      !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == name.npos;
  return number ? path / fmt::format("iter_{:07}", std::stoul(name)) : path;
}

bool recognises_megatron(const fs::path& path) {
  try {
    const fs::path folder = megatron_folder(path);
    if (folder != path && !fs::is_directory(folder)) return true;  // refused with the reason
    return !sharded_backend_of(folder).empty() || has_legacy_files(folder);
  } catch (const Error&) {
    return false;  // files of these names of another program
  }
}

void require_megatron_backend(const fs::path& folder) {
  TESSERA_CHECK(fs::is_directory(folder), ErrorCode::checkpoint,
                "'{}' does not exist, and {} beside it names that iteration: write the number of "
                "another iteration into the file, or give the folder of an iteration",
                folder.string(), latest_iteration_file);
  const std::string backend = sharded_backend_of(folder);
  TESSERA_CHECK(backend == "torch_dist", ErrorCode::checkpoint,
                "'{}' is a Megatron checkpoint of the format {}, and torch_dist is read: load it "
                "with Megatron and save it with --ckpt-convert-format torch_dist",
                folder.string(),
                backend.empty() ? "\"torch\" (a file for each rank)" : shown(backend));
}

json read_megatron_common(PieceStore& store, const fs::path& folder) {
  if (!is_file_in(folder, megatron_common_name)) return json::object();
  FileTable& files = store.files();
  const fs::path path = folder / megatron_common_name;
  const std::size_t file = files.add(path);
  const TorchArchive archive(files, file, 0, files.size(file), fmt::format("'{}'", path.string()),
                             common_rules);
  const PickleValue root = archive.root();
  TESSERA_CHECK(root.is(PickleKind::dict), ErrorCode::checkpoint, "{} is not a dict",
                archive.source());
  PickleToJson converter;
  json common = json::object();
  if (const auto args = root.find("args"); args && args->is(PickleKind::object) && args->state()) {
    common["args"] = converter.convert(*args->state());
  }
  if (const auto value = root.find("iteration")) common["iteration"] = converter.convert(*value);
  if (const auto optimizer = root.find("optimizer")) {
    const auto step = steps_of_optimizer(*optimizer, archive, store);
    if (step) common["step"] = *step;
  }
  return common;
}

std::int64_t tokens_in_tokenizer(const fs::path& file) {
  const json tokenizer = object_or_null(read_file(file, megatron_tokenizer_limit));
  std::int64_t highest = -1;
  const auto see = [&](const json& id) {
    if (id.is_number_integer()) highest = std::max(highest, id.get<std::int64_t>());
  };
  const auto model = tokenizer.find("model");
  if (model != tokenizer.end() && model->is_object() && model->contains("vocab")) {
    const json& vocabulary = model->at("vocab");
    if (vocabulary.is_array()) highest = static_cast<std::int64_t>(vocabulary.size()) - 1;
    if (vocabulary.is_object()) std::for_each(vocabulary.begin(), vocabulary.end(), see);
  }
  const auto added = tokenizer.find("added_tokens");
  if (added != tokenizer.end() && added->is_array()) {
    for (const json& token : *added) {
      if (token.is_object() && token.contains("id")) see(token["id"]);
    }
  }
  return std::min(highest + 1, largest_vocabulary);
}

}  // namespace tessera::checkpoint::formats
