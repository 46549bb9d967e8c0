// A task whose module is, or holds, a model that folders of transformers can hold.
#pragma once

#include <string>
#include <vector>

#include "models/model.h"
#include "tasks/task.h"

namespace tessera::tasks {

class ModelTask : public Task {
 public:
  // The model that folders hold: its configuration and the names of its tensors.
  [[nodiscard]] virtual const models::Model& model() const = 0;
  // Collective. Fills a pretrained model's tensors from a folder that transformers or Sentence
  // Transformers saved. Tensors that are not read from the folder keep their initial values.
  virtual void load_weights(const std::string& folder,
                            std::vector<checkpoint::LogicalTensor>& tensors) const {
    const models::HuggingFaceNames names = model().hugging_face_names();
    checkpoint::load_hugging_face(folder, tensors, names.ignored, names.aliases);
  }
};

}  // namespace tessera::tasks
