// A conversion from end to end: inspect source and target, stream the tensors, rename the result.
#include "checkpoint/convert/convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/convert/averaged_source.h"
#include "checkpoint/convert/hub_files.h"
#include "checkpoint/convert/int8_source.h"
#include "checkpoint/convert/merged_source.h"
#include "checkpoint/convert/plan.h"
#include "checkpoint/convert/stream.h"
#include "checkpoint/convert/target.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/streamed_file.h"
#include "checkpoint/io/file.h"
#include "checkpoint/load/peft.h"
#include "checkpoint/narrow/narrowed_source.h"
#include "checkpoint/narrow/quantized_base.h"
#include "checkpoint/steps/lineage.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

// Headers, alignment, indexes and a manifest, beside the tensors' bytes.
constexpr std::uint64_t bytes_beside_a_tensor = 4096;
constexpr std::uint64_t bytes_beside_a_file = 64 << 10;

const formats::Format& find_format(const std::string& name) {
  std::vector<std::string> names;
  for (const formats::Format& format : formats::formats()) {
    if (format.create == nullptr) continue;
    if (format.name == name) return format;
    names.emplace_back(format.name);
  }
  fail(ErrorCode::usage, "unknown format '{}' to convert to; use one of {}", name,
       fmt::join(names, ", "));
}

// Names, sizes and times of the source's files, to detect changes during the conversion.
using Stamp = std::tuple<std::uint64_t, std::int64_t, std::int64_t, std::uint64_t>;
using Stamps = std::map<std::string, Stamp>;

void stamp(const fs::path& path, int depth, Stamps& stamps) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return;
  if (S_ISDIR(status.st_mode)) {
    std::error_code error;
    if (depth == 0) return;
    for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
      stamp(entry.path(), depth - 1, stamps);
    }
    return;
  }
  stamps[path.string()] = {static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec,
                           status.st_mtim.tv_nsec, status.st_ino};
}

Stamps stamps_of(const fs::path& path) {
  Stamps stamps;
  stamp(path, 3, stamps);
  return stamps;
}

// If one were inside the other, the conversion would read its own output or remove its input.
void check_apart(const fs::path& source, const fs::path& target) {
  std::error_code error;
  const auto whole = [&](const fs::path& path) {
    fs::path normal = fs::weakly_canonical(fs::absolute(path, error), error);
    // A link such as /dev/stdout may lead to something that has no path.
    if (error) normal = fs::absolute(path, error);
    normal = normal.lexically_normal();
    return normal.has_filename() ? normal : normal.parent_path();
  };
  const fs::path from = whole(source);
  const fs::path to = whole(target);
  const auto inside = [](const fs::path& inner, const fs::path& outer) {
    return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first ==
           outer.end();
  };
  TESSERA_CHECK(!inside(to, from) && !inside(from, to), ErrorCode::usage,
                "'{}' and '{}' are the same, or one is in the other; write elsewhere",
                source.string(), target.string());
}

std::uint64_t needed_bytes(const ConversionPlan& plan, int files) {
  std::uint64_t needed = plan.bytes_written + bytes_beside_a_tensor * plan.contents.tensors.size() +
                         bytes_beside_a_file * static_cast<std::uint64_t>(files);
  std::error_code error;
  for (const auto& [name, path] : plan.contents.files) {
    const std::uintmax_t bytes = fs::file_size(path, error);
    if (!error) needed += bytes;
  }
  return needed;
}

// The small files of the result, which a target may have that --force replaces. Not among them is a
// model card that somebody wrote, unless the result has the same.
std::set<std::string> replaceable_names(const formats::Contents& contents, const fs::path& target) {
  constexpr std::uint64_t largest_card = std::uint64_t{16} << 20;
  std::set<std::string> names;
  for (const auto& file : contents.files) names.insert(file.first);
  for (const auto& text : contents.texts) names.insert(text.first);
  std::error_code error;
  const fs::path card = target / model_card_file;
  if (!fs::is_regular_file(card, error)) return names;
  const std::string present =
      fs::file_size(card, error) > largest_card ? std::string() : read_file(card, largest_card);
  const auto kept = contents.files.find(model_card_file);
  const bool same = kept != contents.files.end() &&
                    fs::file_size(kept->second, error) <= largest_card &&
                    read_file(kept->second, largest_card) == present;
  if (is_written_card(present) || same) {
    names.insert(model_card_file);
  } else {
    names.erase(model_card_file);
  }
  return names;
}

// In a scope of its own: the sink must be destroyed before its folder is renamed or removed.
std::vector<ConvertedTensor> write_payload(const formats::Format& format, const fs::path& payload,
                                           formats::Source& source, const ConversionPlan& plan,
                                           const ConvertOptions& options, std::size_t block_bytes,
                                           std::vector<std::string>& notes) {
  const auto sink = format.create(payload, plan.contents,
                                  {.world_size = options.world_size,
                                   .max_file_size = options.max_file_size,
                                   .type = plan.type,
                                   .reads_back = options.checksums || options.verify});
  std::vector<ConvertedTensor> tensors =
      stream_tensors(source, *sink, plan, options, block_bytes, notes);
  TESSERA_REQUIRE(tensors.size() == plan.contents.tensors.size(), "{} of {} tensors were written",
                  tensors.size(), plan.contents.tensors.size());
  sink->finish();
  if (!format.is_file) {
    formats::carry_files(plan.contents, payload);
    sync_folder(payload);
    return tensors;
  }
  const formats::SinkReport report = sink->report();
  notes.insert(notes.end(), report.notes.begin(), report.notes.end());
  std::vector<std::string> names;
  for (const auto& file : plan.contents.files) {
    if (!report.files.contains(file.first)) names.push_back(file.first);
  }
  if (!names.empty()) {
    notes.push_back(fmt::format("one file has no place for {}", fmt::join(names, ", ")));
  }
  return tensors;
}

// The PEFT folder of a conversion that merges; empty for other conversions.
fs::path adapter_to_merge(const fs::path& path, const ConvertOptions& options) {
  const bool is_adapter = is_peft_folder(path.string());
  TESSERA_CHECK(!options.merge || is_adapter, ErrorCode::usage,
                "--merge: '{}' has no {}, and so no adapter to merge", path.string(),
                peft_config_file);
  TESSERA_CHECK(options.merge || !is_adapter, ErrorCode::usage,
                "'{}' holds an adapter, without the model that it is for; --merge writes that "
                "model with the adapter in its weights",
                path.string());
  TESSERA_CHECK(options.merge || options.base.empty(), ErrorCode::usage,
                "--base {}: requires --merge", options.base.string());
  return options.merge ? path : fs::path();
}

fs::path base_of(const fs::path& adapter, const ConvertOptions& options) {
  fs::path base =
      options.base.empty() ? fs::path(read_peft_config(adapter.string()).base) : options.base;
  std::error_code error;
  TESSERA_CHECK(!base.empty() && fs::exists(base, error), ErrorCode::checkpoint,
                "'{}': its base model '{}' is not here; name the base's folder with --base",
                adapter.string(), base.string());
  TESSERA_CHECK(!is_peft_folder(base.string()), ErrorCode::configuration,
                "'{}': its base '{}' is an adapter itself; merge that one first", adapter.string(),
                base.string());
  return base;
}

void check_options(const formats::Format& to, const ConvertOptions& options) {
  TESSERA_CHECK(options.world_size >= 1, ErrorCode::usage, "a world size of {} has no rank",
                options.world_size);
  TESSERA_CHECK(!options.dtype || is_floating(*options.dtype), ErrorCode::usage,
                "weights cannot be converted to {}", name_of(*options.dtype));
  TESSERA_CHECK(options.type.empty() || to.encodings != nullptr, ErrorCode::usage,
                "--type {}: {} stores tensors in dtypes; use --dtype", options.type, to.name);
  TESSERA_CHECK(!options.dtype || to.encodings == nullptr, ErrorCode::usage,
                "--dtype: {} has types of its own; use --type", to.name);
  TESSERA_CHECK(!options.int8 || to.name == std::string_view("hf"), ErrorCode::usage,
                "--dtype int8: {} has no weights of 8-bit integers with scales; use --to hf{}",
                to.name, to.encodings == nullptr ? "" : ", or --type q8_0");
  TESSERA_CHECK(!options.moments || (!options.weights_only && !to.weights_alone), ErrorCode::usage,
                "--moments: {} leaves the optimizer's state out",
                options.weights_only ? "--weights-only" : to.name);
  TESSERA_CHECK(options.average.empty() || !options.merge, ErrorCode::usage,
                "--average: cannot be combined with --merge; merge each adapter first");
}

// The checkpoints that a conversion reads.
class Inputs {
 public:
  Inputs(const fs::path& source, const fs::path& target, const ConvertOptions& options)
      : adapter_(adapter_to_merge(step_of_run(source), options)),
        narrows_(options.narrow.heads || options.narrow.ffn) {
    paths_.push_back(step_of_run(adapter_.empty() ? source : base_of(adapter_, options)));
    for (const fs::path& other : options.average) paths_.push_back(step_of_run(other));
    format_ = &formats::recognise(path());
    if (!adapter_.empty()) check_apart(adapter_, target);
    std::uint64_t headers = 0;
    for (const fs::path& each : paths_) {
      check_apart(each, target);
      stamps_.push_back(stamps_of(each));
      headers += header_bytes(each);
    }
    TESSERA_CHECK(
        headers <= options.max_memory, ErrorCode::out_of_memory,
        "--max-memory: the headers of '{}' have {} bytes, more than the {} that are allowed; "
        "allow several times as much as they have",
        path().string(), headers, options.max_memory);
  }

  std::unique_ptr<formats::Source> open(const formats::Format& to, const ConvertOptions& options) {
    auto source = format_->open(path());
    if (!adapter_.empty()) {
      const std::map<std::string, bool> layers = layers_of(*source, options);
      if (const auto format = quantized_base_of(adapter_.string())) {
        source = open_numbers_of_codes(std::move(source), *format, layers);
      }
      source = open_merged(adapter_, std::move(source), layers);
    }
    if (paths_.size() > 1) source = open_mean(std::move(source), to, options);
    if (narrows_) source = open_narrow(std::move(source), options.narrow);
    if (options.moments) source = open_with_moments(std::move(source), *options.moments);
    if (!options.int8) return source;
    const std::map<std::string, bool> layers = layers_of(*source, options);
    if (bytes_ == 0) bytes_ = bytes_of_weights(*source);
    return open_int8(std::move(source), layers);
  }

  // A step folder of Tessera, whose training state is converted with it.
  [[nodiscard]] bool is_step() const {
    return adapter_.empty() && paths_.size() == 1 && !narrows_ &&
           (format_->name == std::string_view("full") ||
            format_->name == std::string_view("sharded"));
  }
  [[nodiscard]] CardSource card(const fs::path& target) const {
    const fs::path named = named_target(target);
    std::string from = fmt::format("from the format {}", format_->name);
    if (!adapter_.empty()) from = "an adapter merged into its base";
    if (paths_.size() > 1) from = fmt::format("the mean of {} checkpoints", paths_.size());
    if (narrows_) from += ", with fewer heads or feed-forward columns";
    const bool changes = !adapter_.empty() || paths_.size() > 1 || narrows_;
    return {path(), from, changes, named.filename().string()};
  }
  void require_unchanged() const {
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      TESSERA_CHECK(stamps_of(paths_[i]) == stamps_[i], ErrorCode::checkpoint,
                    "'{}' was changed while it was read; convert it when no program writes to it",
                    paths_[i].string());
    }
  }
  void describe(ConvertReport& report) const {
    report.source = adapter_.empty() ? path().string() : adapter_.string();
    report.source_format = format_->name;
    if (!adapter_.empty()) {
      report.source_format = fmt::format("an adapter over {}, {}", path().string(), format_->name);
    }
    if (paths_.size() > 1) {
      report.source_format += fmt::format(", and {} more", paths_.size() - 1);
    }
    if (bytes_ > 0) report.bytes_read = bytes_;
  }

 private:
  [[nodiscard]] const fs::path& path() const { return paths_.front(); }

  [[nodiscard]] std::unique_ptr<formats::Source> open_narrow(
      std::unique_ptr<formats::Source> source, const NarrowOptions& options) const {
    const std::optional<std::string> config = model_config_text(source->contents());
    TESSERA_CHECK(config.has_value(), ErrorCode::checkpoint,
                  "'{}' has no config.json, which says how many heads and columns the model has",
                  path().string());
    return open_narrowed(std::move(source), *config, options);
  }

  static std::uint64_t bytes_of_weights(const formats::Source& source) {
    std::uint64_t bytes = 0;
    for (const formats::TensorInfo& tensor : source.contents().tensors) {
      if (tensor.part == formats::Part::model) bytes += bytes_of(tensor);
    }
    return bytes;
  }

  // The linear layers of the model, and whether they lie as [in, out]; empty if it is not known.
  static std::map<std::string, bool> layers_of(const formats::Source& source,
                                               const ConvertOptions& options) {
    const std::optional<std::string> config = model_config_text(source.contents());
    if (!options.lies_in_out || !config) return {};
    return options.lies_in_out(*config);
  }

  std::unique_ptr<formats::Source> open_mean(std::unique_ptr<formats::Source> first,
                                             const formats::Format& to,
                                             const ConvertOptions& options) {
    std::vector<AveragedInput> inputs;
    for (const fs::path& each : paths_) {
      auto source = inputs.empty() ? std::move(first) : formats::recognise(each).open(each);
      bytes_ += bytes_of_weights(*source);
      inputs.push_back({each.string(), std::move(source)});
    }
    // Rounded once: to the dtype of the result, or not before it is encoded.
    std::optional<DType> dtype = options.dtype;
    if (to.encodings != nullptr && !options.type.empty()) dtype = DType::float32;
    return open_averaged(std::move(inputs), dtype);
  }

  fs::path adapter_;  // empty: none is merged
  bool narrows_ = false;
  std::vector<fs::path> paths_;  // of weights: the source's or its base's, then those to average
  const formats::Format* format_ = nullptr;  // of the first
  std::vector<Stamps> stamps_;
  std::uint64_t bytes_ = 0;  // of weights before they are averaged or rounded; 0: as the plan says
};

}  // namespace

std::vector<fs::path> steps_of_run(const fs::path& path) {
  std::error_code error;
  std::vector<fs::path> paths;
  if (!fs::is_directory(path, error) || fs::exists(path / manifest_name, error)) return paths;
  const StepListing listing = list_committed(path);
  for (const CommittedStep& step : listing.steps) paths.push_back(step.path);
  for (const UnreadableStep& step : listing.unreadable) paths.push_back(step.path);
  return paths;
}

fs::path step_of_run(const fs::path& path) {
  std::error_code error;
  for (const fs::path& step : steps_of_run(path)) {
    if (fs::is_regular_file(step / manifest_name, error)) return step;
  }
  return path;
}

ConvertReport convert(const fs::path& source_path, const fs::path& target_path,
                      const ConvertOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const std::uint64_t before_bytes = options.whole_process ? 0 : resident_memory().now;
  const formats::Format& to = find_format(options.to);
  check_options(to, options);
  (void)named_target(target_path);
  Inputs inputs(source_path, target_path, options);
  auto source = inputs.open(to, options);
  ConversionPlan plan = plan_conversion(*source, to, options, !inputs.is_step());
  const std::size_t block_bytes = block_bytes_for(options.max_memory, before_bytes, *source, plan);
  if (to.name == std::string_view("hf")) {
    add_hub_files(plan.contents, inputs.card(target_path));
  } else {
    plan.contents.files.erase(model_card_file);
  }
  const std::set<std::string> carried = replaceable_names(plan.contents, target_path);
  PendingTarget target(target_path, to.is_file, options.force,
                       needed_bytes(plan, options.world_size), carried);
  ConvertReport report;
  report.notes = plan.contents.notes;
  report.notes.insert(report.notes.end(), target.notes().begin(), target.notes().end());
  report.tensors =
      write_payload(to, target.payload(), *source, plan, options, block_bytes, report.notes);
  inputs.require_unchanged();
  if (options.verify) {
    const auto written =
        options.int8 ? formats::open_as_stored(target.payload()) : to.open(target.payload());
    compare_tensors(*written, report.tensors, options, block_bytes);
    report.verified = true;
  }
  target.publish();
  report.target = target_path.string();
  report.target_format = to.name;
  report.bytes_read = plan.bytes_read;
  inputs.describe(report);
  report.bytes_written = plan.bytes_written;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace tessera::checkpoint
