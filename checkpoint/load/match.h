// Matches a checkpoint's tensors to those of a state, and lists the mismatches.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/steps/source.h"

namespace tessera::checkpoint {

struct Matched {
  std::vector<const LogicalTensor*> tensors;  // those that are filled
  Mismatch mismatch;
};

// Matches the tensors that `takes_part` selects (no function: all). Adds to `problems`: other
// shapes and dtypes; if `strict`, missing and unexpected tensors; otherwise a section in which
// nothing matches. `section` names the kind of tensors in messages.
Matched match(const std::vector<LogicalTensor>& wanted, const Catalogue& stored,
              std::string_view section, bool strict, const NameFilter& takes_part,
              std::vector<std::string>& problems);

// "layer.weight" of the optimizer's tensor "layer.weight.exp_avg".
std::string parameter_of_state(const std::string& name);

// Throws Misfit when there are problems.
void refuse_misfit(const std::vector<std::string>& problems, const Selection& selection);

// Adds a problem when a load takes no tensor at all and has no other problem.
void refuse_empty(std::size_t stored, std::vector<std::string>& problems);

}  // namespace tessera::checkpoint
