// Which of a checkpoint's tensors fill which of a state's, and what does not match.
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

// Of the tensors that `takes_part` (none: all of them). What does not fit is added to `problems`:
// other shapes and dtypes, when `strict` also what is missing and unexpected, else a section of
// which nothing matches. `section` says in messages what the tensors are.
Matched match(const std::vector<LogicalTensor>& wanted, const Catalogue& stored,
              std::string_view section, bool strict, const NameFilter& takes_part,
              std::vector<std::string>& problems);

// "layer.weight" of the optimizer's tensor "layer.weight.exp_avg".
std::string parameter_of_state(const std::string& name);

// Throws Misfit when there are problems.
void refuse_misfit(const std::vector<std::string>& problems, const Selection& selection);

// Adds a problem when a load takes no tensor at all and there is no other problem.
void refuse_empty(std::size_t stored, std::vector<std::string>& problems);

}  // namespace tessera::checkpoint
