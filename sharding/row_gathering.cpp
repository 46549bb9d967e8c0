// Gathering of rows with gradients.
#include "sharding/row_gathering.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/autograd.h"
#include "engine/queue.h"
#include "kernels/base/error.h"

namespace tessera {

RowGathering::Buffers& RowGathering::buffers_for(const std::string& name) {
  const auto found = std::find_if(buffers_.begin(), buffers_.end(),
                                  [&](const Buffers& each) { return each.name == name; });
  if (found != buffers_.end()) {
    buffers_.splice(buffers_.begin(), buffers_, found);
  } else {
    if (buffers_.size() == most_buffers) buffers_.pop_back();
    buffers_.push_front({name, nullptr, nullptr});
  }
  return buffers_.front();
}

Tensor RowGathering::gather(const Tensor& rows) {
  TESSERA_REQUIRE(rows.dimensions() > 0, "all_gather of a scalar: give it a dimension of rows");
  const std::int64_t ranks = communicator_->size();
  if (ranks == 1) return rows;
  std::vector<std::int64_t> sizes(rows.shape().sizes().begin(), rows.shape().sizes().end());
  sizes[0] *= ranks;
  Tensor all = Tensor::empty(Shape(sizes), rows.dtype(), rows.device());
  const std::string name =
      fmt::format("rows {} {}", name_of(rows.dtype()), rows.shape().to_string());
  const std::uint64_t call = calls_++;
  if (!rows.is_meta()) {
    TESSERA_REQUIRE(rows.device() == communicator_->device(),
                    "all_gather of a tensor on {} between ranks on {}; move it with "
                    "Tensor::to(context.device())",
                    rows.device().to_string(), communicator_->device().to_string());
    autograd::note_read();
    const comm::Tag tag{call, 0, comm::Phase::forward};
    Buffers& buffers = buffers_for(name);
    if (!buffers.rows) {
      buffers.rows = communicator_->allocate(name, all.bytes(), comm::Sharing::one_copy);
    }
    DeviceQueue& queue = current_queue(rows.device());
    communicator_->acquire(*buffers.rows, tag);
    if (rows.elements() > 0) {
      queue.copy(
          buffers.rows->data() + rows.bytes() * static_cast<std::size_t>(communicator_->rank()),
          rows.data(), rows.bytes());
    }
    communicator_->all_gather(*buffers.rows, all.bytes(), tag);
    if (all.elements() > 0) queue.copy(all.data(), buffers.rows->data(), all.bytes());
    buffers.rows->release();
  }
  autograd::record(
      Op::custom, {rows}, {all},
      [self = shared_from_this(), name, call](std::vector<Tensor>& dout,
                                              autograd::GradientSink& sink) {
        const auto [out, accumulate] = sink.slot(0);
        self->reduce(name, call, dout[0], out, accumulate);
      },
      autograd::Reads::nothing);
  return all;
}

void RowGathering::reduce(const std::string& name, std::uint64_t call, const Tensor& gradients,
                          const Tensor& out, bool accumulate) {
  const comm::Tag tag{call, 0, comm::Phase::backward};
  Buffers& buffers = buffers_for(name);
  if (!buffers.gradients) {
    buffers.gradients =
        communicator_->allocate("gradients of " + name, gradients.bytes(), comm::Sharing::per_rank);
  }
  communicator_->acquire(*buffers.gradients, tag);
  if (gradients.elements() > 0) {
    current_queue(gradients.device())
        .copy(buffers.gradients->data(), gradients.data(), gradients.bytes());
  }
  const std::int64_t mine = out.elements();
  communicator_->reduce_scatter(
      *buffers.gradients,
      {{.first = mine * communicator_->rank(), .count = mine, .out = out.raw_data()}},
      {.in_dtype = gradients.dtype(), .out_dtype = out.dtype(), .accumulate = accumulate}, tag);
}

}  // namespace tessera
