// Compares wanted and stored tensors by name, shape and dtype.
#include "checkpoint/load/match.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/io/failure.h"
#include "checkpoint/state/transfer.h"

namespace tessera::checkpoint {
namespace {

// Names of a section that take part in a load.
using StoredNames = std::vector<std::string>;

StoredNames names_taking_part(const Catalogue& stored, const NameFilter& takes_part) {
  StoredNames names;
  for (const auto& entry : stored) {
    if (!takes_part || takes_part(entry.first)) names.push_back(entry.first);
  }
  return names;
}

// Adds the problems of a tensor that both sides have.
void compare(const LogicalTensor& wanted, const StoredTensor& stored, std::string_view section,
             std::vector<std::string>& problems) {
  if (stored.shape != wanted.shape) {
    problems.push_back(fmt::format("{} tensor '{}' has shape {}, wanted {}", section, wanted.name,
                                   describe_shape(stored.shape), describe_shape(wanted.shape)));
  } else if (!stored.stored->dtype || !can_convert(*stored.stored->dtype, wanted.dtype)) {
    problems.push_back(fmt::format("{} tensor '{}' is {}, wanted {}", section, wanted.name,
                                   stored.stored->name, name_of(wanted.dtype)));
  }
}

}  // namespace

Matched match(const std::vector<LogicalTensor>& wanted, const Catalogue& stored,
              std::string_view section, bool strict, const NameFilter& takes_part,
              std::vector<std::string>& problems) {
  const StoredNames present = names_taking_part(stored, takes_part);
  Matched result;
  std::set<std::string> names;
  std::vector<std::string> required;  // of those that are missing
  for (const LogicalTensor& tensor : wanted) {
    if (takes_part && !takes_part(tensor.name)) continue;
    names.insert(tensor.name);
    if (stored.contains(tensor.name)) {
      result.tensors.push_back(&tensor);
    } else {
      result.mismatch.missing.push_back(tensor.name);
      if (!tensor.optional) required.push_back(tensor.name);
    }
  }
  for (const std::string& name : present) {
    if (!names.contains(name)) result.mismatch.unexpected.push_back(name);
  }
  // Another model, or an adapter instead of a whole model: one line instead of a list of all names.
  // A load that is not strict would load nothing.
  const std::size_t few = strict ? 3 : 0;
  if (result.tensors.empty() && names.size() > few && present.size() > few) {
    problems.push_back(fmt::format("none of its {} {} tensors ('{}') is one of the {} here ('{}')",
                                   present.size(), section, present.front(), names.size(),
                                   result.mismatch.missing.front()));
    return result;
  }
  // A folder of weights alone, or of an optimizer without moments.
  if (strict && present.empty() && required.size() > few) {
    problems.push_back(fmt::format("it has none of the {} {} tensors ('{}')", required.size(),
                                   section, required.front()));
    return result;
  }
  for (const std::string& name : required) {
    if (strict) problems.push_back(fmt::format("missing {} tensor '{}'", section, name));
  }
  for (const LogicalTensor* tensor : result.tensors) {
    compare(*tensor, stored.at(tensor->name), section, problems);
  }
  for (const std::string& name : result.mismatch.unexpected) {
    if (strict) problems.push_back(fmt::format("unexpected {} tensor '{}'", section, name));
  }
  return result;
}

std::string parameter_of_state(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

void refuse_misfit(const std::vector<std::string>& problems, const Selection& selection) {
  if (problems.empty()) return;
  throw Misfit(fmt::format("the checkpoint does not fit this run: {}; {}", join_some(problems),
                           selection.way_out));
}

void refuse_empty(std::size_t stored, std::vector<std::string>& problems) {
  if (stored == 0 || !problems.empty()) return;
  problems.push_back(fmt::format(
      "the filters and the function for names take none of its {} tensors; nothing would be loaded",
      stored));
}

}  // namespace tessera::checkpoint
