// Calls of ops with kernels of the program's own: their memory, their place on the tape, and their
// work for plans.
#include "engine/interop/own_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/queue.h"

namespace tessera {
namespace {

using Types = std::vector<ValueType>;
using Tensors = std::vector<Tensor>;

Types types_of(const Tensors& tensors) {
  Types types;
  for (const Tensor& tensor : tensors) types.push_back({tensor.shape(), tensor.dtype()});
  return types;
}

Tensor empty_of(const ValueType& type, Device device) {
  return Tensor::empty(type.shape, type.dtype, device);
}

// The dtype in which a call computes, for plans.
DType compute_dtype(const Types& inputs, const Types& results) {
  for (const Types* const types : {&results, &inputs}) {
    for (const ValueType& type : *types) {
      if (is_floating(type.dtype)) return type.dtype;
    }
  }
  return DType::float32;
}

double bytes_of(const Types& types) {
  double bytes = 0;
  for (const ValueType& type : types) {
    bytes += static_cast<double>(type.shape.elements()) * static_cast<double>(size_of(type.dtype));
  }
  return bytes;
}

// The state that a call keeps until its backward.
struct OpenCall {
  std::shared_ptr<const OwnOp> op;
  Device device;
  Types inputs, results;
  std::vector<autograd::SavedValue> saved_inputs, saved_results;
};

// An exception of the program's kernel gets the op's name, unless it begins with it. Classes of its
// own stay as they are.
template <class Kernel>
void run_named(const OwnOp& op, const Kernel& kernel) {
  const auto with_name = [&](const std::exception& error) {
    const std::string_view text = error.what();
    return text.starts_with(op.name()) ? std::string(text) : fmt::format("{}: {}", op.name(), text);
  };
  try {
    kernel();
  } catch (const Error& error) {
    if (typeid(error) != typeid(Error)) throw;
    throw Error(error.code(), with_name(error));
  } catch (const std::logic_error& error) {
    if (typeid(error) != typeid(std::logic_error)) throw;
    throw std::logic_error(with_name(error));
  } catch (const std::runtime_error& error) {
    if (typeid(error) != typeid(std::runtime_error)) throw;
    throw Error(ErrorCode::runtime, with_name(error));
  }
}

void run(const OwnOp& op, OwnPass pass, OwnCall call, const Types& inputs, const Types& results) {
  if (call.device.is_meta()) return;
  if (const std::size_t bytes = op.workspace_bytes(pass, inputs); bytes > 0) {
    call.workspace = Tensor::empty({static_cast<std::int64_t>(bytes)}, uint8, call.device);
  }
  const OwnCost cost = op.cost(pass, inputs);
  // A backward reads what the forward did and the gradients of results, and writes the others.
  const double passes = pass == OwnPass::forward ? 1 : 2;
  const OwnWork work{.name = op.name(),
                     .dtype = compute_dtype(inputs, results),
                     .operations = cost.operations,
                     .bytes = cost.bytes.value_or(passes * (bytes_of(inputs) + bytes_of(results)))};
  current_queue(call.device).run_own(work, [&](void* stream) {
    const bool on_gpu = call.device.type == DeviceType::cuda;
    run_named(op, [&] {
      if (pass == OwnPass::forward) {
        on_gpu ? op.forward_cuda(call, stream) : op.forward_cpu(call);
      } else {
        on_gpu ? op.backward_cuda(call, stream) : op.backward_cpu(call);
      }
    });
  });
}

void run_backward(const OpenCall& kept, std::vector<Tensor>& result_gradients,
                  autograd::GradientSink& sink) {
  Tensors inputs, results, gradients, wanted;
  for (const autograd::SavedValue& saved : kept.saved_inputs) inputs.push_back(saved.get());
  for (const autograd::SavedValue& saved : kept.saved_results) results.push_back(saved.get());
  for (std::size_t i = 0; i < kept.results.size(); ++i) {
    const ValueType& type = kept.results[i];
    gradients.push_back(result_gradients[i].defined()
                            ? result_gradients[i]
                            : Tensor::zeros(type.shape, type.dtype, kept.device));
  }
  for (std::size_t i = 0; i < kept.inputs.size(); ++i) {
    const bool wants = sink.wants(static_cast<int>(i)) && is_floating(kept.inputs[i].dtype);
    wanted.push_back(wants ? empty_of(kept.inputs[i], kept.device) : Tensor());
  }
  run(*kept.op, OwnPass::backward,
      {.device = kept.device,
       .inputs = inputs,
       .results = results,
       .result_gradients = gradients,
       .input_gradients = wanted,
       .workspace = {}},
      kept.inputs, kept.results);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].defined()) sink.add(static_cast<int>(i), wanted[i]);
  }
}

void record(const std::shared_ptr<const OwnOp>& op, const Tensors& inputs, const Tensors& results,
            const Types& input_types, const Types& result_types) {
  OpenCall kept{.op = op,
                .device = results.front().device(),
                .inputs = input_types,
                .results = result_types,
                .saved_inputs = {},
                .saved_results = {}};
  auto reads = autograd::Reads::nothing;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool read = op->reads_input(i);
    kept.saved_inputs.emplace_back(read ? inputs[i] : Tensor());
    if (read) reads = autograd::Reads::inputs;
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    const bool read = op->reads_result(i);
    kept.saved_results.emplace_back(read ? results[i].detach() : Tensor());
    if (read) reads = autograd::Reads::anything;
  }
  Tensors differentiable;  // the results, undefined in the place of one that has no gradient
  for (const Tensor& result : results) {
    differentiable.push_back(is_floating(result.dtype()) ? result : Tensor());
  }
  autograd::record(
      {Op::custom, op->name()}, std::span<const Tensor>(inputs),
      std::span<const Tensor>(differentiable),
      [kept = std::move(kept)](std::vector<Tensor>& gradients, autograd::GradientSink& sink) {
        run_backward(kept, gradients, sink);
      },
      reads);
}

[[noreturn]] void refuse(const OwnOp& op, const OwnCall& call, const char* kernel) {
  misuse("{}: there is no kernel for {}; override {}()", op.name(), call.device.to_string(),
         kernel);
}

void check_inputs(const OwnOp& op, const Tensors& inputs) {
  TESSERA_REQUIRE(!inputs.empty(), "{}: no inputs; a call has at least one", op.name());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TESSERA_REQUIRE(
        inputs[i].defined(),
        "{}: input {} is an undefined tensor: it was default-constructed or moved from; "
        "assign a tensor to it first",
        op.name(), i + 1);
    TESSERA_REQUIRE(inputs[i].device() == inputs[0].device(),
                    "{}: inputs on {} and {}; move one of them with Tensor::to(device)", op.name(),
                    inputs[0].device().to_string(), inputs[i].device().to_string());
  }
}

}  // namespace

void OwnOp::forward_cpu(const OwnCall& call) const {
  refuse(*this, call, "forward_cpu");
}
void OwnOp::forward_cuda(const OwnCall& call, void* /*stream*/) const {
  refuse(*this, call, "forward_cuda");
}
void OwnOp::backward_cpu(const OwnCall& call) const {
  refuse(*this, call, "backward_cpu");
}
void OwnOp::backward_cuda(const OwnCall& call, void* /*stream*/) const {
  refuse(*this, call, "backward_cuda");
}

std::vector<Tensor> call(const std::shared_ptr<const OwnOp>& op,
                         const std::vector<Tensor>& inputs) {
  TESSERA_REQUIRE(op != nullptr, "call: the op is null");
  check_inputs(*op, inputs);
  const Device device = inputs.front().device();
  const Types input_types = types_of(inputs), result_types = op->results(input_types);
  TESSERA_REQUIRE(!result_types.empty(), "{}: no results; results() gives at least one",
                  op->name());
  Tensors results;
  for (const ValueType& type : result_types) results.push_back(empty_of(type, device));
  const bool differentiable = op->differentiable();
  if (!differentiable) autograd::note_read();
  if (!differentiable || autograd::value_is_needed()) {
    run(*op, OwnPass::forward,
        {.device = device,
         .inputs = inputs,
         .results = results,
         .result_gradients = {},
         .input_gradients = {},
         .workspace = {}},
        input_types, result_types);
  }
  if (differentiable) record(op, inputs, results, input_types, result_types);
  return results;
}

}  // namespace tessera
