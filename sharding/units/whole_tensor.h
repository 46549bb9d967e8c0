// Tensors that every rank holds whole: parameters of ignored modules, and buffers.
#pragma once

#include <string>

#include "engine/tensor.h"

namespace tessera {

// The same values on `device`, in memory of the kind `parameters`; the tensor itself if it is
// already there. One on `meta` gets the values of its initializer; without an initializer it is a
// logic_error that names `what` and `maker`, the function that makes such a tensor.
Tensor whole_on(Device device, const Tensor& source, const std::string& what, const char* maker);

}  // namespace tessera
