// Plans a save: the two layouts, full and sharded, and the check that nothing is missing or written
// twice.
#include "checkpoint/save/save_plan.h"

#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"

namespace tessera::checkpoint {

namespace {

RankPieces list_section(const std::vector<LogicalTensor>& tensors, std::string_view section) {
  std::set<std::string> names;
  RankPieces pieces;
  for (const LogicalTensor& tensor : tensors) {
    TESSERA_REQUIRE(names.insert(tensor.name).second, "two {} tensors are named '{}'", section,
                    tensor.name);
    const std::int64_t elements = element_count(tensor.shape, tensor.name);
    auto& runs = pieces.emplace_back();
    for (const Piece& piece : tensor.pieces) {
      TESSERA_REQUIRE(piece.first >= 0 && piece.count >= 0 && piece.count <= elements &&
                          piece.first <= elements - piece.count,
                      "piece [{}, +{}) is outside tensor '{}' of {} elements", piece.first,
                      piece.count, tensor.name, elements);
      TESSERA_REQUIRE(piece.data != nullptr || piece.file || piece.count == 0,
                      "a piece of '{}' has no memory", tensor.name);
      if (piece.count > 0) runs.push_back({piece.first, piece.count});
    }
  }
  return pieces;
}

void check_section(const std::vector<LogicalTensor>& tensors,
                   const std::vector<PieceLists>& of_ranks, RankPieces PieceLists::*section) {
  struct Owned {
    Run run;
    std::size_t rank;
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::vector<Owned> all;
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
      for (const Run& run : (of_ranks[rank].*section).at(i)) all.push_back({run, rank});
    }
    std::sort(all.begin(), all.end(),
              [](const Owned& a, const Owned& b) { return a.run.first < b.run.first; });
    const std::int64_t elements = element_count(tensors[i].shape, tensors[i].name);
    std::int64_t next = 0;
    std::size_t previous_rank = 0;
    for (const Owned& owned : all) {
      TESSERA_CHECK(owned.run.first <= next, ErrorCode::checkpoint,
                    "no rank has elements {} to {} of tensor '{}'", next, owned.run.first,
                    tensors[i].name);
      TESSERA_CHECK(owned.run.first == next, ErrorCode::checkpoint,
                    "ranks {} and {} both have element {} of tensor '{}'", previous_rank,
                    owned.rank, owned.run.first, tensors[i].name);
      next += owned.run.count;
      previous_rank = owned.rank;
    }
    TESSERA_CHECK(next == elements, ErrorCode::checkpoint,
                  "no rank has elements {} to {} of tensor '{}'", next, elements, tensors[i].name);
  }
}

// One section of a save: its tensors with their dtypes in the file.
struct SectionToSave {
  std::string stem;  // of the files in module folders
  std::string file;  // of the other files, without extension
  const std::vector<LogicalTensor>& tensors;
  std::vector<TensorSpec> specs;
  RankPieces PieceLists::*pieces;
};

std::vector<TensorSpec> specs_of(const std::vector<LogicalTensor>& tensors,
                                 std::optional<DType> floating) {
  std::vector<TensorSpec> specs;
  for (const LogicalTensor& tensor : tensors) {
    const DType dtype =
        floating.has_value() && is_floating(tensor.dtype) ? *floating : tensor.dtype;
    specs.push_back({tensor.name, dtype, tensor.shape});
  }
  return specs;
}

// Divides the tensors, in their order, into files of at most `limit` bytes (0: one file). A tensor
// that is larger has a file of its own.
std::vector<std::vector<std::size_t>> divide(const std::vector<TensorSpec>& specs,
                                             const std::vector<std::size_t>& tensors,
                                             std::uint64_t limit) {
  std::vector<std::vector<std::size_t>> files(1);
  std::uint64_t bytes = 0;
  for (const std::size_t i : tensors) {
    const std::uint64_t own =
        static_cast<std::uint64_t>(element_count(specs[i].shape, specs[i].name)) *
        size_of(specs[i].dtype);
    if (limit > 0 && !files.back().empty() && bytes + own > limit) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(i);
    bytes += own;
  }
  return files;
}

// The index that Hugging Face's tools expect beside numbered files.
std::string index_text(const std::vector<TensorSpec>& specs,
                       const std::vector<std::vector<std::size_t>>& files,
                       const std::vector<std::string>& names) {
  nlohmann::json map = nlohmann::json::object();
  std::uint64_t total = 0;
  for (std::size_t file = 0; file < files.size(); ++file) {
    for (const std::size_t i : files[file]) {
      map[specs[i].name] = names[file];
      total += static_cast<std::uint64_t>(element_count(specs[i].shape, specs[i].name)) *
               size_of(specs[i].dtype);
    }
  }
  const nlohmann::json index{{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return index.dump(2) + "\n";
}

// Joins neighbouring runs of one rank into one span, also across tensors.
std::vector<FileSpan> join_spans(std::vector<FileSpan> spans) {
  std::sort(spans.begin(), spans.end(),
            [](const FileSpan& a, const FileSpan& b) { return a.begin < b.begin; });
  std::vector<FileSpan> joined;
  for (const FileSpan& span : spans) {
    if (joined.empty() || joined.back().rank != span.rank) joined.push_back(span);
  }
  return joined;
}

void plan_full_file(const SectionToSave& section, const std::vector<PieceLists>& of_ranks,
                    const std::vector<std::size_t>& tensors, const std::string& name,
                    SavePlan& plan) {
  std::vector<TensorSpec> specs;
  const std::size_t prefix = tensor_prefix(name).size();
  for (const std::size_t i : tensors) {
    specs.push_back(section.specs[i]);
    specs.back().name.erase(0, prefix);
  }
  const ComposedHeader header = compose_safetensors_header(specs);
  PlannedFile file{name, header.bytes, header.file_bytes, 0, true, {{0, 0}}};
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    const std::size_t i = tensors[n];
    const LogicalTensor& tensor = section.tensors[i];
    const DType dtype = section.specs[i].dtype;
    const auto place = [&](std::int64_t first) {
      return header.offsets[n] + static_cast<std::uint64_t>(first) * size_of(dtype);
    };
    for (const Piece& piece : tensor.pieces) {
      if (piece.count == 0) continue;
      plan.writes.push_back({plan.files.size(), place(piece.first), piece.data, piece.count,
                             tensor.dtype, dtype, piece.device, piece.file});
    }
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
      for (const Run& run : (of_ranks[rank].*section.pieces)[i]) {
        file.spans.push_back({place(run.first), static_cast<int>(rank)});
      }
    }
  }
  file.spans = join_spans(std::move(file.spans));
  plan.files.push_back(std::move(file));
}

Section plan_full(const SectionToSave& section, const std::vector<PieceLists>& of_ranks,
                  std::uint64_t limit, const std::set<std::string>& folders, SavePlan& plan) {
  std::vector<std::size_t> outside;
  std::map<std::string, std::vector<std::size_t>> of_folder;
  for (std::size_t i = 0; i < section.specs.size(); ++i) {
    const std::string& name = section.specs[i].name;
    const auto dot = name.find('.');
    const bool apart = dot != std::string::npos && folders.contains(name.substr(0, dot));
    (apart ? of_folder[name.substr(0, dot)] : outside).push_back(i);
  }
  const auto files = divide(section.specs, outside, limit);
  Section out;
  for (std::size_t file = 0; file < files.size(); ++file) {
    out.files.push_back(files.size() == 1 ? section.file + ".safetensors"
                                          : fmt::format("{}-{:05}-of-{:05}.safetensors",
                                                        section.file, file + 1, files.size()));
    plan_full_file(section, of_ranks, files[file], out.files.back(), plan);
  }
  for (const auto& [folder, tensors] : of_folder) {
    out.files.push_back(folder + "/" + section.stem + ".safetensors");
    plan_full_file(section, of_ranks, tensors, out.files.back(), plan);
  }
  if (files.size() > 1) {
    plan.texts[section.file + ".safetensors.index.json"] =
        index_text(section.specs, files, out.files);
  }
  return out;
}

Section plan_sharded(const SectionToSave& section, const std::vector<PieceLists>& of_ranks,
                     int rank, SavePlan& plan) {
  Section out;
  out.tensors = section.specs;
  for (std::size_t r = 0; r < of_ranks.size(); ++r) {
    std::vector<TensorSpec> specs;
    auto& records = out.pieces.emplace_back();
    const RankPieces& pieces = of_ranks[r].*section.pieces;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      for (const Run& run : pieces[i]) {
        specs.push_back(
            {piece_name(section.specs[i].name, run.first), section.specs[i].dtype, {run.count}});
        records.push_back({i, run.first, run.count});
      }
    }
    const ComposedHeader header = compose_safetensors_header(specs);
    if (static_cast<int>(r) == rank) {
      std::size_t next = 0;
      for (const LogicalTensor& tensor : section.tensors) {
        for (const Piece& piece : tensor.pieces) {
          if (piece.count == 0) continue;
          plan.writes.push_back({plan.files.size(), header.offsets[next], piece.data, piece.count,
                                 tensor.dtype, specs[next].dtype, piece.device, piece.file});
          ++next;
        }
      }
    }
    out.files.push_back(
        fmt::format("{}-rank-{:05}-of-{:05}.safetensors", section.stem, r, of_ranks.size()));
    const auto owner = static_cast<int>(r);
    plan.files.push_back(
        {out.files.back(), header.bytes, header.file_bytes, owner, false, {{0, owner}}});
  }
  return out;
}

}  // namespace

FileRecord PlannedFile::record() const {
  FileRecord record{name, bytes, chunk_bytes_of(bytes), {}, {}};
  for (std::size_t span = 1; span < spans.size(); ++span) record.cuts.push_back(spans[span].begin);
  return record;
}

std::uint64_t SavePlan::total_bytes() const {
  std::uint64_t total = 0;
  for (const PlannedFile& file : files) total += file.bytes;
  return total;
}

PieceLists list_pieces(const State& state) {
  return {list_section(state.model, "model"), list_section(state.optimizer, "optimizer")};
}

void check_coverage(const State& state, const std::vector<PieceLists>& of_ranks) {
  check_section(state.model, of_ranks, &PieceLists::model);
  check_section(state.optimizer, of_ranks, &PieceLists::optimizer);
}

SavePlan plan_save(const State& state, const SaveOptions& options,
                   const std::vector<PieceLists>& of_ranks, int rank, bool with_optimizer) {
  SavePlan plan;
  const SectionToSave model{"model", options.model_file, state.model,
                            specs_of(state.model, options.model_dtype), &PieceLists::model};
  const SectionToSave optimizer{"optimizer", "optimizer", state.optimizer,
                                specs_of(state.optimizer, std::nullopt), &PieceLists::optimizer};
  if (options.type == StateDictType::full) {
    plan.model = plan_full(model, of_ranks, options.max_file_size, options.tensor_folders, plan);
    if (with_optimizer)
      plan.optimizer = plan_full(optimizer, of_ranks, options.max_file_size, {}, plan);
  } else {
    plan.model = plan_sharded(model, of_ranks, rank, plan);
    if (with_optimizer) plan.optimizer = plan_sharded(optimizer, of_ranks, rank, plan);
  }
  std::sort(plan.writes.begin(), plan.writes.end(),
            [](const PlannedWrite& a, const PlannedWrite& b) {
              return std::pair(a.file, a.offset) < std::pair(b.file, b.offset);
            });
  return plan;
}

}  // namespace tessera::checkpoint
