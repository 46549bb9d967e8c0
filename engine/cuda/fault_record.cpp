// Turns reports of kernels into exceptions.
#include "engine/cuda/fault_record.h"

#include <new>

#include "base/error.h"
#include "engine/cuda/pinned.h"

namespace tessera::cuda {
namespace {

[[noreturn]] void raise(const kernels::cuda::Fault& fault) {
  switch (fault.kind) {
    case kernels::cuda::Fault::embedding_id:
      fail(ErrorCode::data,
           "embedding: id {} at position {} is outside the table of {} entries; check the "
           "tokenizer and the model's vocabulary size",
           fault.value, fault.position, fault.limit);
    case kernels::cuda::Fault::cross_entropy_target:
      fail(ErrorCode::data,
           "cross-entropy: target {} of row {} is outside the vocabulary of {}; only the ignored "
           "target may be",
           fault.value, fault.position, fault.limit);
    case kernels::cuda::Fault::axis_id:
      fail(ErrorCode::data, "id {} at position {} is outside the dimension of size {}", fault.value,
           fault.position, fault.limit);
    default:
      fail(ErrorCode::data, "a kernel refuses the value {} at position {}: the limit is {}",
           fault.value, fault.position, fault.limit);
  }
}

}  // namespace

FaultRecord::FaultRecord()
    : memory_(pinned_pool()->allocate(sizeof(kernels::cuda::Fault))),
      fault_(new (memory_.get()) kernels::cuda::Fault{}) {}

void FaultRecord::check() const {
  if (fault_->kind != kernels::cuda::Fault::none) raise(*fault_);
}

void FaultRecord::check_and_clear() {
  const kernels::cuda::Fault seen = *fault_;
  if (seen.kind == kernels::cuda::Fault::none) return;
  *fault_ = {};
  raise(seen);
}

}  // namespace tessera::cuda
