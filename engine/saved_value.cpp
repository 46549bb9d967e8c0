// Values that nodes save for their backward, and the hooks of programs on gradients.
#include <utility>

#include "base/error.h"
#include "engine/autograd_node.h"
#include "engine/recompute_region.h"

namespace tessera::autograd {

SavedValue::SavedValue(Tensor tensor) : tensor_(std::move(tensor)) {
  // A first run keeps only the inputs; the graph of the second run is used at once.
  if (!tensor_.defined() || !grad_enabled()) return;
  if (Region::in_first_run()) {
    Region::note_saved(tensor_);
    return;
  }
  version_ = tensor_.version();
  noted_ = *version_;
}

void SavedValue::fail_changed() const {
  misuse(
      "{}: {} of {} and shape {}, which its backward reads, has been written since the forward (by "
      "an optimizer's step, or copy_from()): run backward before that, or the forward again after "
      "it",
      running_node() == nullptr ? "an op" : running_node()->name,
      tensor_.requires_grad() && !tensor_.impl()->grad_node ? "a parameter" : "a tensor",
      name_of(tensor_.dtype()), tensor_.shape().to_string());
}

SavedTensor::SavedTensor(const Tensor& tensor) {
  if (tensor.defined()) recompute_ = tensor.impl()->recompute;
  if (!recompute_) value_ = SavedValue(tensor);
}

bool sole_owner(const Tensor& tensor) {
  return tensor.impl().use_count() == 1 && tensor.storage().use_count() == 1;
}

HookHandle add_gradient_hook(const Tensor& tensor, std::function<Tensor(const Tensor&)> hook) {
  TESSERA_REQUIRE(tensor.defined(), "register_hook() of an undefined tensor");
  const auto& node = tensor.impl()->grad_node;
  TESSERA_REQUIRE(node,
                  "register_hook() of {}: hooks are for what an op has computed with gradients on",
                  tensor.requires_grad() ? "a leaf, whose gradient is grad() after backward"
                                         : "a tensor that no gradient reaches");
  // The second run registers the hook on the node that has the whole gradient.
  if (Region::in_first_run()) return {};
  TESSERA_REQUIRE(node->backward || node->region,
                  "register_hook() after backward: the graph of {} is freed", node->name);
  if (!node->hooks) node->hooks = std::make_unique<GradientHooks>();
  return node->hooks->of_output[tensor.impl()->grad_output].add(
      [hook = std::move(hook), name = node->name](Tensor& gradient) {
        const Tensor replaced = hook(gradient);
        if (!replaced.defined()) return;
        TESSERA_REQUIRE(
            replaced.shape() == gradient.shape() && replaced.dtype() == gradient.dtype() &&
                replaced.device() == gradient.device(),
            "{}: a hook returns {} of shape {} in place of a gradient of {} of shape {}", name,
            name_of(replaced.dtype()), replaced.shape().to_string(), name_of(gradient.dtype()),
            gradient.shape().to_string());
        gradient = replaced;
      });
}

}  // namespace tessera::autograd
