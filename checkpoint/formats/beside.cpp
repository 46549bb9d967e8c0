// The names of files beside weights.
#include "checkpoint/formats/beside.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/io/file.h"

namespace tessera::checkpoint::formats {

namespace {

namespace fs = std::filesystem;

// Names of the regular files of a folder, sorted; none if it cannot be read, which opening it
// reports.
std::vector<std::string> file_names(const fs::path& folder,
                                    const std::function<bool(std::string_view)>& wanted) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    if (wanted(name) && entry.is_regular_file(error)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::string> first_flat_shard(const fs::path& folder) {
  const std::vector<std::string> names = file_names(folder, [](std::string_view name) {
    return name.starts_with("pytorch_model_fsdp") && name.ends_with(".bin") &&
           name.find("_rank") != std::string_view::npos &&
           !name.starts_with("pytorch_model_fsdp_0_rank");  // a state dict (rank_files.h)
  });
  return names.empty() ? std::nullopt : std::optional(names.front());
}

bool is_dcp_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path / ".metadata", error);
}

// Files and distributed checkpoints, sorted.
std::vector<std::string> optimizer_states_in(const fs::path& folder) {
  std::vector<std::string> names = file_names(folder, [](std::string_view name) {
    return name.starts_with("optimizer") &&
           (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth"));
  });
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    if (name.starts_with("optimizer") && is_dcp_folder(entry.path())) {
      names.push_back(std::move(name));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The names under which programs save a whole model, or its numbered parts.
bool is_weights_name(std::string_view name) {
  struct Spelling {
    std::string_view stem, ending;
  };
  constexpr std::array<Spelling, 6> spellings{{{"model", ".safetensors"},
                                               {"pytorch_model", ".bin"},
                                               {"consolidated", ".pth"},
                                               {"tf_model", ".h5"},
                                               {"flax_model", ".msgpack"},
                                               {"", ".gguf"}}};
  return name == "pytorch_model_fsdp.bin" ||
         std::any_of(spellings.begin(), spellings.end(), [&](const Spelling& spelling) {
           if (!name.starts_with(spelling.stem) || !name.ends_with(spelling.ending)) return false;
           const std::string_view rest = name.substr(spelling.stem.size());
           return spelling.stem.empty() || rest.starts_with('-') || rest.starts_with('.');
         });
}

// A name with the number of a model after the first, in parts.
struct NumberedModel {
  std::string_view base, number, ending;
};

std::optional<NumberedModel> further_model(std::string_view name) {
  constexpr std::string_view digits = "0123456789";
  for (const std::string_view base : {"model", "pytorch_model", "pytorch_model_fsdp"}) {
    if (!name.starts_with(base)) continue;
    std::string_view rest = name.substr(base.size());
    if (!rest.starts_with('_')) continue;
    rest.remove_prefix(1);
    const std::size_t length = std::min(rest.find_first_not_of(digits), rest.size());
    const NumberedModel out{base, rest.substr(0, length), rest.substr(length)};
    const bool numbered = length > 0 && !out.number.starts_with('0');
    const bool sharded =
        base.ends_with("fsdp") &&
        (out.ending.empty() || (out.ending.starts_with("_rank") && out.ending.ends_with(".bin")));
    const bool whole = out.ending == (base == "model" ? ".safetensors" : ".bin");
    if (numbered && (whole || sharded)) return out;
  }
  return std::nullopt;
}

// The name that the first model and its optimizer have there.
std::string first_names(const NumberedModel& model) {
  const std::string_view ending = model.ending;
  if (ending.empty() || ending.starts_with('_')) {
    return fmt::format("{}_0{} and optimizer_0{}", model.base, ending, ending);
  }
  return fmt::format("{}{} and optimizer.bin", model.base, ending);
}

}  // namespace

void require_contents(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return;
  TESSERA_CHECK(
      File::open_for_reading(path).size() > 0, ErrorCode::checkpoint,
      "'{}' has 0 bytes: it was not written, or its copy was interrupted; save or copy it "
      "again",
      path.string());
}

bool belongs_to_model(std::string_view name) {
  constexpr std::array<std::string_view, 7> endings{".json",  ".txt",      ".model", ".jinja",
                                                    ".vocab", ".tiktoken", ".bpe"};
  if (name.starts_with('.') || name.ends_with(".index.json")) return false;
  return name == "README.md" || std::any_of(endings.begin(), endings.end(),
                                            [&](auto ending) { return name.ends_with(ending); });
}

bool has_flat_shards(const fs::path& folder) {
  return first_flat_shard(folder).has_value();
}

void refuse_flat_shards(const fs::path& folder) {
  const std::optional<std::string> name = first_flat_shard(folder);
  TESSERA_CHECK(!name, ErrorCode::checkpoint,
                "'{}' was saved with LOCAL_STATE_DICT: {} and the other ranks' files hold FSDP's "
                "flat parameters, without the names and shapes of their parts; load it with the "
                "program that saved it, on as many ranks, and save it again with "
                "SHARDED_STATE_DICT or FULL_STATE_DICT",
                folder.string(), shown(*name));
}

void refuse_several_models(const fs::path& folder, const std::vector<std::string>& used) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    const auto model = further_model(name);
    if (!model || std::find(used.begin(), used.end(), name) != used.end()) continue;
    const bool there =
        model->ending.empty() ? is_dcp_folder(entry.path()) : entry.is_regular_file(error);
    if (there) names.push_back(std::move(name));
  }
  if (names.empty()) return;
  const std::string& name = *std::min_element(names.begin(), names.end());
  const NumberedModel model = *further_model(name);
  fail(ErrorCode::checkpoint,
       "'{}' holds several models, as Accelerate's save_state numbers them, and {} is not of the "
       "first: move each model with its optimizer into a folder of its own, under the names of a "
       "first model ({}){}",
       folder.string(), shown(name), first_names(model),
       model.ending.starts_with('_')
           ? ""
           : fmt::format(", or convert '{}' by itself, without its optimizer",
                         (folder / name).string()));
}

std::string optimizer_file_in(const fs::path& folder) {
  const std::vector<std::string> names = optimizer_states_in(folder);
  return names.empty() ? "" : names.front();
}

std::string unread_state_note(const std::string& file) {
  return fmt::format(
      "not read: {}, the state of an optimizer whose parameters have numbers for names, and the "
      "weights do not tell which is which",
      shown(file));
}

void note_other_optimizers(Contents& contents, const fs::path& folder,
                           const std::vector<std::string>& known) {
  std::vector<std::string> others = optimizer_states_in(folder);
  std::erase_if(others, [&](const std::string& name) {
    return std::find(known.begin(), known.end(), name) != known.end();
  });
  if (others.empty()) return;
  if (contents.unread_state.empty()) contents.unread_state = others.front();
  contents.notes.push_back(fmt::format(
      "not read: {}{}, the state of another optimizer, or of one that was saved in another form "
      "than the weights",
      shown(others.front()),
      others.size() == 1 ? "" : fmt::format(" and {} more", others.size() - 1)));
}

void note_other_weights(Contents& contents, const fs::path& folder,
                        const std::vector<std::string>& used, bool any_safetensors) {
  std::vector<std::string> others = file_names(folder, [&](std::string_view name) {
    const bool any = any_safetensors && name.ends_with(".safetensors");
    return (any || is_weights_name(name)) &&
           std::find(used.begin(), used.end(), name) == used.end();
  });
  if (others.empty()) return;
  const std::size_t more = others.size() - 1;
  contents.notes.push_back(
      fmt::format("left out: {}{}, which the folder holds as well: its weights were not compared "
                  "with those of {}, which were read",
                  shown(others.front()), more == 0 ? "" : fmt::format(" and {} more", more),
                  used.empty() ? "the checkpoint" : shown(used.front())));
}

}  // namespace tessera::checkpoint::formats
