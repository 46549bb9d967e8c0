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

// Compares the wanted tensors with the stored ones. Only tensors for which `takes_part` returns
// true are compared; without a function, all are. Adds a line to `problems` for each tensor of
// another shape or dtype. A strict match adds a line for each tensor that is missing, unless it is
// optional, and for each that is unexpected. One line replaces these when no name matches. Messages
// call the tensors "model tensor" or "optimizer tensor", as `section` says.
Matched match(const std::vector<LogicalTensor>& wanted, const Catalogue& stored,
              std::string_view section, bool strict, const NameFilter& takes_part,
              std::vector<std::string>& problems);

// "layer.weight" of the optimizer's tensor "layer.weight.exp_avg".
std::string parameter_of_state(const std::string& name);

// Throws Misfit when there are problems.
void refuse_misfit(const std::vector<std::string>& problems, const Selection& selection);

// For a load that takes no tensor at all: adds a problem, unless there is another one already.
// `stored` is the number of tensors in the checkpoint; one that has none cannot fill anything.
void refuse_empty(std::size_t stored, std::vector<std::string>& problems);

}  // namespace tessera::checkpoint
