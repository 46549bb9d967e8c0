// Whole parameters outside of passes: for programs that write them, and to restore the module.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/tensor.h"
#include "sharding/runtime/parameter_gatherer.h"
#include "sharding/runtime/process_groups.h"
#include "sharding/runtime/side_streams.h"
#include "sharding/units/unit.h"

namespace tessera {

class PrivateCopy;

// Used by the compute stream's thread.
class UnshardedWriter {
 public:
  // All arguments must outlive this object.
  UnshardedWriter(const std::vector<std::unique_ptr<Unit>>& units, const ProcessGroups& groups,
                  ParameterGatherer& gatherer);
  // ShardedModel::write_unsharded().
  void write(const std::function<void()>& write);
  // True while the program writes.
  [[nodiscard]] bool is_writing() const { return is_writing_; }

 private:
  void compare(const std::vector<PrivateCopy>& copies);

  const std::vector<std::unique_ptr<Unit>>& units_;
  const ProcessGroups& groups_;
  ParameterGatherer& gatherer_;
  bool is_writing_ = false;
};

// Collective. The unit's whole masters, one tensor for each slot.
std::vector<Tensor> gather_masters(const Unit& unit, const ProcessGroups& groups,
                                   SideStreams& streams);

}  // namespace tessera
