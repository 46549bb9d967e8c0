// Opens Megatron-Core's torch_dist folders: a DCP folder with Megatron's names, and common.pt with
// the arguments of the run.
#include <fmt/format.h>
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/formats/dcp/dcp_tensors.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/megatron/megatron_files.h"
#include "checkpoint/formats/megatron/megatron_names.h"
#include "checkpoint/formats/torch/torch_state.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"

namespace tessera::checkpoint::formats {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t megatron_config_limit = std::size_t{1} << 20;
constexpr std::string_view state_prefix = "optimizer.state.";

// A state of the optimizer: "optimizer.state.exp_avg.decoder..." and the name of its parameter.
struct StateName {
  std::string key;
  std::string parameter;
};

std::string_view without_wrapper(std::string_view name) {
  constexpr std::string_view wrapper = "module.";
  while (name.starts_with(wrapper)) name.remove_prefix(wrapper.size());
  return name;
}

// Empty: not a state of a parameter. The optimizers of a chain have "chained_0." and so on before.
std::optional<StateName> state_name(std::string_view name) {
  if (name.starts_with("chained_"))
    name.remove_prefix(std::min(name.find('.'), name.size() - 1) + 1);
  if (!name.starts_with(state_prefix)) return std::nullopt;
  name.remove_prefix(state_prefix.size());
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  return StateName{std::string(name.substr(0, dot)),
                   std::string(without_wrapper(name.substr(dot + 1)))};
}

bool is_of_optimizer(std::string_view name) {
  return name.starts_with("optimizer.") || name.starts_with("chained_");
}

// Weights in the optimizer's own precision.
bool is_master(const std::string& key) {
  return key == "fp32_param" || key == "param";
}

class MegatronOpener {
 public:
  explicit MegatronOpener(fs::path folder)
      : folder_(std::move(folder)), source_(fmt::format("'{}'", folder_.string())) {}

  std::unique_ptr<Source> open(const fs::path& path) {
    require_megatron_backend(folder_);
    add_small_files(path);
    const json common = read_megatron_common(store_, folder_);
    read_model(common);
    const DcpMetadata metadata = read_dcp_metadata(folder_);
    read_tensors(metadata);
    add_model();
    add_optimizer();
    check_names();
    finish_config();
    note_rest(metadata, common);
    return make_source(std::move(store_), std::move(state_));
  }

 private:
  struct Whole {
    PiecedTensor tensor;
    std::string what;
  };

  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail(ErrorCode::checkpoint, "{}: {}", source_,
         fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    contents().notes.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  [[nodiscard]] Contents& contents() { return state_.contents; }

  // The tokenizer and perhaps config.json, of the folder or of the one around it.
  void add_small_files(const fs::path& path) {
    add_model_files(contents(), path);
    std::error_code error;
    if (fs::is_directory(folder_ / "tokenizer", error)) {
      add_model_files(contents(), folder_ / "tokenizer");
    }
    add_model_files(contents(), folder_);
    for (const char* own : megatron_small_files) contents().files.erase(own);
  }

  void read_model(const json& common) {
    const auto config = contents().files.find("config.json");
    if (config != contents().files.end()) {
      const std::string where = fmt::format("'{}'", config->second.string());
      model_ = megatron_model_of_config(
          parse_json(read_file(config->second, megatron_config_limit), where), where);
      return;
    }
    const auto args = common.find("args");
    check(args != common.end() && args->is_object(),
          "{} has no args of Megatron-LM, so the sizes of the model are unknown: put its "
          "config.json, as transformers has it, into the folder",
          megatron_common_name);
    model_ = megatron_model_of_args(
        *args, fmt::format("'{}': args", (folder_ / megatron_common_name).string()));
    const auto tokenizer = contents().files.find("tokenizer.json");
    if (model_.vocabulary == 0 && tokenizer != contents().files.end()) {
      model_.vocabulary = tokens_in_tokenizer(tokenizer->second);
    }
  }

  void read_tensors(const DcpMetadata& metadata) {
    for (const DcpTensor& tensor : metadata.tensors) {
      const auto state = state_name(tensor.key);
      if (!state && is_of_optimizer(tensor.key)) {
        if (unread_++ == 0) first_unread_ = tensor.key;
        continue;
      }
      Whole whole{dcp_pieces(store_, folder_, tensor), dcp_tensor_name(folder_, tensor)};
      store_.add_tensor(whole.tensor, whole.what);  // checks that nothing is missing
      const std::string name = state ? state->parameter : std::string(without_wrapper(tensor.key));
      auto& list = state ? states_[state->key] : weights_;
      check(list.emplace(name, std::move(whole)).second, "two tensors are {}", shown(name));
      if (!state) order_.push_back(name);
    }
    check(!weights_.empty(), "it has no weights");
  }

  void add_model() {
    for (const std::string& name : order_) {
      const Whole* whole = &weights_.at(name);
      if (const Whole* const master = master_of(name, *whole)) {
        whole = master;
        ++masters_;
      }
      const auto parts = split_megatron_tensor(model_, name, whole->tensor, whole->what);
      if (!parts && name.ends_with("rotary_pos_emb.inv_freq")) continue;  // follows from the config
      TESSERA_CHECK(parts.has_value(), ErrorCode::checkpoint,
                    "{}: {} is not a tensor of {}; other models of Megatron are not read", source_,
                    shown(name), model_.is_gpt2 ? "GPT-2" : "a model of Llama's build");
      if (has_vocabulary_rows(name)) note_vocabulary(name, whole->tensor.shape.at(0));
      add(Part::model, *parts, "", whole->what);
    }
    note("{} of Megatron's became {}: layers, queries, keys and values{} are apart",
         counted(weights_.size(), "tensor"), contents().tensors.size(),
         model_.is_gpt2 ? "" : ", gate and up");
    if (masters_ > 0) note("the weights of {} are the optimizer's", counted(masters_, "tensor"));
  }

  const Whole* master_of(const std::string& name, const Whole& weights) const {
    for (const auto& [key, list] : states_) {
      const auto found = is_master(key) ? list.find(name) : list.end();
      if (found != list.end() && found->second.tensor.shape == weights.tensor.shape) {
        return &found->second;
      }
    }
    return nullptr;
  }

  void note_vocabulary(const std::string& name, std::int64_t rows) {
    if (model_.vocabulary == 0) {
      model_.vocabulary = rows;
      note(
          "{} has {} rows, perhaps with Megatron's padding: nothing states the vocabulary's size "
          "(vocab_size of the arguments, tokenizer.json or config.json in the folder)",
          name, rows);
    } else if (rows > model_.vocabulary) {
      note("left out: rows {} to {} of {}, the padding of the vocabulary", model_.vocabulary, rows,
           name);
    }
  }

  void add(Part part, const std::vector<MegatronPart>& parts, const std::string& ending,
           const std::string& what) {
    for (const MegatronPart& each : parts) {
      std::string name = each.name + ending;
      check(names_.insert({part, name}).second, "two tensors are {}", shown(name));
      contents().tensors.push_back(
          {part, std::move(name), each.tensor.stored, each.tensor.shape, {}});
      state_.handles.push_back(store_.add_tensor(each.tensor, what));
    }
  }

  void add_optimizer() {
    for (const auto& [key, list] : states_) {
      for (const auto& [name, whole] : list) {
        const auto weights = weights_.find(name);
        const bool fits =
            weights != weights_.end() && weights->second.tensor.shape == whole.tensor.shape;
        if (!fits && unread_++ == 0) {
          first_unread_ = fmt::format("{}{}.{}", state_prefix, key, name);
        }
        if (!fits || is_master(key)) continue;
        const auto parts = split_megatron_tensor(model_, name, whole.tensor, whole.what);
        if (!parts) continue;  // of a weight that was left out
        const std::string ending = "." + (key == "momentum_buffer" ? "momentum" : key);
        add(Part::optimizer, *parts, ending, whole.what);
        ++state_tensors_;
      }
    }
    if (unread_ == 0) return;
    contents().unread_state = "the optimizer's state in " + shown(first_unread_);
    note(
        "not read: {} of the distributed optimizer, such as {}, whose ranges have no names; save "
        "with --dist-ckpt-optim-fully-reshardable to keep them",
        counted(unread_, "tensor"), shown(first_unread_));
  }

  // Every tensor that config.json describes is there, and no other.
  void check_names() const {
    std::size_t found = 0;
    const auto require = [&](const std::vector<std::string>& names) {
      for (const std::string& name : names) {
        check(names_.contains({Part::model, name}), "{} is missing", name);
        ++found;
      }
    };
    require(names_of_model(model_));
    for (std::int64_t layer = 0; layer < model_.layers; ++layer) {
      require(names_of_layer(model_, layer));
    }
    // A tied head that is stored as well is compared by the conversion.
    if (model_.tied && names_.contains({Part::model, "lm_head.weight"})) ++found;
    std::size_t all = 0;
    for (const auto& [part, name] : names_) all += part == Part::model ? 1 : 0;
    check(all == found, "it has {} that the model of config.json or of the arguments does not have",
          counted(all - found, "tensor"));
  }

  void finish_config() {
    if (model_.tied && !names_.contains({Part::model, "lm_head.weight"})) {
      contents().aliases["lm_head.weight"] =
          model_.is_gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
    }
    if (contents().files.contains("config.json")) return;
    model_.config["vocab_size"] = model_.vocabulary;
    const StoredDType* const stored = contents().tensors.front().stored;
    if (const TorchDType* type = torch_dtype(*stored)) model_.config["torch_dtype"] = type->dtype;
    contents().texts["config.json"] = model_.config.dump(2) + '\n';
    note("config.json is made from Megatron's arguments");
  }

  void note_rest(const DcpMetadata& metadata, const json& common) {
    std::size_t extra = 0, others = 0;
    std::string first;
    for (const DcpBytes& value : metadata.values) {
      if (value.key.find("._extra_state") != std::string::npos) {
        ++extra;
      } else if (others++ == 0) {
        first = value.key;
      }
    }
    if (extra > 0) {
      note("left out: {} called _extra_state, Transformer Engine's scales of fp8",
           counted(extra, "value"));
    }
    if (others > 0) {
      note("left out: {}, such as {}, of neither model nor optimizer",
           counted(others, "pickled value"), shown(first));
    }
    if (state_tensors_ > 0) {
      note("left out: the optimizer's hyperparameters, whose groups have numbers for parameters");
    }
    const json iteration = common.value("iteration", json());
    if (state_tensors_ > 0 && common.contains("step")) {
      StepCounts counts;
      add_step_count(counts, "the optimizer", common["step"].get<double>(), source_);
      contents().scalars.set("step", counts.begin()->second);
    } else if (iteration.is_number_integer() && iteration >= 0) {
      contents().scalars.set("step", iteration.get<std::int64_t>());
    }
  }

  fs::path folder_;
  std::string source_;
  PieceStore store_;
  NamedState state_;
  MegatronModel model_;
  std::map<std::string, Whole> weights_;                        // by Megatron's name
  std::vector<std::string> order_;                              // of weights_, in the files
  std::map<std::string, std::map<std::string, Whole>> states_;  // by key and parameter
  std::set<std::pair<Part, std::string>> names_;                // of the result
  std::size_t masters_ = 0, unread_ = 0, state_tensors_ = 0;
  std::string first_unread_;
};

std::unique_ptr<Source> open_megatron(const fs::path& path) {
  return MegatronOpener(megatron_folder(path)).open(path);
}

}  // namespace

const Format& megatron_format() {
  static const Format format{"megatron",
                             "a torch_dist folder of Megatron-Core (metadata.json, common.pt and "
                             "*.distcp), read only",
                             false,
                             recognises_megatron,
                             open_megatron,
                             nullptr};
  return format;
}

}  // namespace tessera::checkpoint::formats
