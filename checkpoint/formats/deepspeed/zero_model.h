// The contents of a DeepSpeed folder's model files: names and shapes of the parameters, buffers,
// frozen and shared parameters. And the tensors of such a checkpoint as they are found.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/formats/deepspeed/zero_partitions.h"
#include "checkpoint/formats/torch/torch_state.h"

namespace tessera::checkpoint::formats {

// The tensors that were found, by their plain names.
class ZeroContents {
 public:
  // `source` begins every Error.
  ZeroContents(PieceStore& store, std::string source) : store_(store), source_(std::move(source)) {}

  // Without wrappers and `module.`.
  static std::string plain_name(const std::string& name);
  // Error(checkpoint) for a name that is there already.
  void add(Part part, const std::string& name, const StoredDType* stored,
           const std::vector<std::int64_t>& shape, std::size_t handle);
  void add_pieced(Part part, const std::string& name, const std::vector<std::int64_t>& shape,
                  PiecedTensor tensor);
  [[nodiscard]] bool has(Part part, const std::string& name) const {
    return names_.contains({part, plain_name(name)});
  }
  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    state_.contents.notes.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  [[nodiscard]] NamedState& state() { return state_; }
  [[nodiscard]] const std::string& source() const { return source_; }

 private:
  PieceStore& store_;
  std::string source_;
  NamedState state_;
  std::set<std::pair<Part, std::string>> names_;
};

struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t count = 0;
};

struct ZeroModel {
  std::vector<std::vector<NamedShape>> shapes;  // of the trained parameters, by group
  std::map<std::string, std::string> shared;    // name to the name of the same memory
  std::optional<std::int64_t> steps;            // done by the program
};

// Reads the model files, of which there is at least one. Adds buffers and frozen parameters; under
// stage 3 every rank's file has a fragment of these.
ZeroModel read_zero_model(PieceStore& store, const ZeroFiles& files, int stage,
                          ZeroContents& contents);
// Adds shared parameters as aliases, the step, and the groups' hyperparameters with the names of
// their parameters.
void finish_zero_contents(ZeroContents& contents, const ZeroModel& model,
                          std::vector<nlohmann::json> groups, std::optional<std::int64_t> step);

}  // namespace tessera::checkpoint::formats
