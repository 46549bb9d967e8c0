// Compares wanted and stored tensors by name, shape and dtype.
#include "checkpoint/load/match.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/io/failure.h"
#include "checkpoint/load/quantizing_reader.h"

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
  if (stored.shape != stored_shape(wanted)) {
    problems.push_back(fmt::format("{} tensor '{}' has shape {}, wanted {}", section, wanted.name,
                                   describe_shape(stored.shape),
                                   describe_shape(stored_shape(wanted))));
  } else if (!stored.stored->dtype || !can_load(*stored.stored->dtype, wanted)) {
    problems.push_back(fmt::format("{} tensor '{}' is {}, wanted {}", section, wanted.name,
                                   stored.stored->name, name_of(wanted.dtype)));
  }
}

constexpr std::string_view moment_numbers = ".exp_avg", moment_codes = ".exp_avg_8bit";
// What AdamW has beside them. Lion and Muon have moments of these names without it.
constexpr std::string_view squares = ".exp_avg_sq", square_codes = ".exp_avg_sq_8bit";

// A run whose AdamW moments have 8 bits and a checkpoint whose moments do not, or the reverse, for
// all parameters or for those of some sizes. Empty: neither.
std::string other_moments(const std::vector<LogicalTensor>& wanted, const Catalogue& stored) {
  const bool wants_codes = std::any_of(wanted.begin(), wanted.end(), [](const auto& tensor) {
    return tensor.name.ends_with(moment_codes);
  });
  const bool has_codes = std::any_of(stored.begin(), stored.end(), [](const auto& tensor) {
    return tensor.first.ends_with(moment_codes);
  });
  const auto trains_by_adamw = [&wanted](const std::string& parameter) {
    return std::any_of(wanted.begin(), wanted.end(), [&](const auto& tensor) {
      return tensor.name == parameter + std::string(squares) ||
             tensor.name == parameter + std::string(square_codes);
    });
  };
  for (const LogicalTensor& tensor : wanted) {
    for (const bool to_codes : {true, false}) {
      const std::string_view own = to_codes ? moment_codes : moment_numbers;
      if (!tensor.name.ends_with(own) || stored.contains(tensor.name)) continue;
      const std::string parameter = tensor.name.substr(0, tensor.name.size() - own.size());
      const auto has = [&](std::string_view state) {
        return stored.contains(parameter + std::string(state));
      };
      if (!has(to_codes ? moment_numbers : moment_codes)) continue;
      if (!has(to_codes ? squares : square_codes) || !trains_by_adamw(parameter)) continue;
      const std::string way = wants_codes && has_codes
                                  ? "set train.adamw8bit.min_size to that of the checkpoint; "
                                    "`tessera convert` has 4096"
                                  : fmt::format(
                                        "convert the checkpoint by `tessera convert STEP "
                                        "OUT --to full --moments {}`",
                                        to_codes ? "8bit" : "fp32");
      return fmt::format("the moments of '{}' have {} and this run's have {} ({})", parameter,
                         to_codes ? "16 or 32 bits" : "8 bits",
                         to_codes ? "8 bits" : fmt::format("{} bits", 8 * size_of(tensor.dtype)),
                         way);
    }
  }
  return {};
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
  if (strict) {
    if (std::string moments = other_moments(wanted, stored); !moments.empty()) {
      problems.push_back(std::move(moments));
      return result;
    }
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
