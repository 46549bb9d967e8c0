// Weights from a plain Hugging Face folder into a rank's pieces.
#include <fmt/format.h>
#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/load/match.h"
#include "checkpoint/load/quantizing_reader.h"
#include "checkpoint/load_pieces.h"
#include "checkpoint/state/transfer.h"

namespace tessera::checkpoint {

namespace {

std::string list_names(const std::vector<std::string>& names) {
  return names.size() == 1 ? fmt::format("'{}'", names.front())
                           : fmt::format("any of '{}'", fmt::join(names, "', '"));
}

void read_pieces(const LogicalTensor& tensor, const StoredWeight& weight, Staging& staging) {
  const DType stored = *weight.entry->stored->dtype;
  if (tensor.quantized) {
    const auto read = [&](std::int64_t first, std::int64_t count, std::byte* out) {
      weight.read(first, count, out);
    };
    return load_quantized(tensor, stored, read, staging);
  }
  for (const Piece& piece : tensor.pieces) {
    const auto get = [&](std::uint64_t offset, void* data, std::size_t bytes) {
      weight.read(piece.first + static_cast<std::int64_t>(offset / size_of(stored)),
                  static_cast<std::int64_t>(bytes / size_of(stored)),
                  static_cast<std::byte*>(data));
    };
    if (piece.file) {
      staging.load(piece.file, piece.count, stored, tensor.dtype, get);
    } else {
      staging.load(piece.data, piece.device, piece.count, stored, tensor.dtype, get);
    }
  }
}

// 8-bit integers stay integers for a tensor that holds them.
StoredWeight as_wanted(const StoredWeight& weight, const LogicalTensor& wanted) {
  if (wanted.dtype != uint8 || wanted.quantized || weight.decoder == nullptr) return weight;
  std::shared_ptr<const WeightDecoder> rows = weight.decoder->as_int8_rows();
  if (rows == nullptr) return weight;
  return {weight.file, &rows->entry(), rows};
}

}  // namespace

bool matches_name(std::string_view pattern, std::string_view name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t at = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (at == name.size() || (pattern[i] == '#' ? !is_digit(name[at]) : pattern[i] != name[at])) {
      return false;
    }
    ++at;
    while (pattern[i] == '#' && at < name.size() && is_digit(name[at])) ++at;
  }
  return at == name.size();
}

void load_hugging_face(const std::string& source, std::vector<LogicalTensor>& tensors,
                       const std::vector<std::string>& ignored, const Aliases& rename) {
  fill_from(open_weights(source), tensors, ignored, rename, [&](const std::string& problems) {
    return fmt::format(
        "the weights in '{}' do not fit the model: {}; check the folder's config.json", source,
        problems);
  });
}

LoadedPieces load_weights(const std::string& source, State& state, LoadParts parts,
                          const Selection& selection) {
  TESSERA_CHECK(parts == LoadParts::model_only, ErrorCode::checkpoint,
                "'{}' has weights and no optimizer's state; load it without the optimizer, which "
                "then begins anew",
                source);
  const HuggingFaceFolder opened = open_weights(source);
  Catalogue stored;
  for (const auto& [name, place] : opened.tensors) {
    stored[name] = {place.entry->stored, place.entry->shape, {}};
  }
  std::vector<std::string> problems;
  Matched matched =
      match(state.model, stored, "model", selection.strict, selection.model, problems);
  if (matched.tensors.empty()) refuse_empty(stored.size(), problems);
  refuse_misfit(problems, selection);
  Staging staging;
  for (const LogicalTensor* tensor : matched.tensors) {
    read_pieces(*tensor, opened.tensors.at(tensor->name), staging);
  }
  return {Scalars(), {std::move(matched.mismatch), {}}};
}

void fill_from(const HuggingFaceFolder& opened, std::vector<LogicalTensor>& tensors,
               const std::vector<std::string>& ignored, const Aliases& rename,
               const std::function<std::string(const std::string& problems)>& message) {
  std::vector<std::string> problems;
  std::vector<StoredWeight> sources;
  std::set<std::string> used;
  for (const LogicalTensor& tensor : tensors) {
    const auto names = rename ? rename(tensor.name) : std::vector{tensor.name};
    auto it = opened.tensors.end();
    for (const std::string& name : names) {
      if ((it = opened.tensors.find(name)) != opened.tensors.end()) break;
    }
    if (it == opened.tensors.end()) {
      problems.push_back(fmt::format("missing tensor {}", list_names(names)));
      continue;
    }
    sources.push_back(as_wanted(it->second, tensor));
    const TensorEntry& entry = *sources.back().entry;
    used.insert(entry.name);
    if (entry.shape != stored_shape(tensor)) {
      problems.push_back(fmt::format("tensor '{}' has shape {}, wanted {}", entry.name,
                                     describe_shape(entry.shape),
                                     describe_shape(stored_shape(tensor))));
    } else if (!entry.stored->dtype || !can_load(*entry.stored->dtype, tensor)) {
      problems.push_back(fmt::format("tensor '{}' is {}, wanted {}", entry.name, entry.stored->name,
                                     name_of(tensor.dtype)));
    }
  }
  for (const auto& present : opened.tensors) {
    const std::string& name = present.first;
    const bool known = used.contains(name) ||
                       std::any_of(ignored.begin(), ignored.end(),
                                   [&](const std::string& p) { return matches_name(p, name); });
    if (!known) problems.push_back(fmt::format("unexpected tensor '{}'", name));
  }
  TESSERA_CHECK(problems.empty(), ErrorCode::checkpoint, "{}", message(join_some(problems)));
  Staging staging;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    read_pieces(tensors[i], sources[i], staging);
  }
}

}  // namespace tessera::checkpoint
