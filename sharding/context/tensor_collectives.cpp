// Gathers and sums tensors, with gradients.
#include "sharding/context/tensor_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/xxh3.h"
#include "engine/autograd.h"
#include "engine/device/queue.h"

namespace tessera {

TensorCollectives::Buffers& TensorCollectives::buffers_for(const std::string& name) {
  const auto found = std::find_if(buffers_.begin(), buffers_.end(),
                                  [&](const Buffers& each) { return each.name == name; });
  if (found != buffers_.end()) {
    buffers_.splice(buffers_.begin(), buffers_, found);
  } else {
    if (buffers_.size() == most_buffers) {
      for (const auto& buffer : {buffers_.back().rows, buffers_.back().summands}) {
        if (buffer) counts_.buffer_bytes -= buffer->bytes();
      }
      buffers_.pop_back();
    }
    buffers_.push_front({name, nullptr, nullptr});
  }
  return buffers_.front();
}

Tensor TensorCollectives::gather(const Tensor& rows) {
  TESSERA_REQUIRE(rows.dimensions() > 0, "all_gather of a scalar: give it a dimension of rows");
  const std::int64_t ranks = communicator_->size();
  if (ranks == 1) return rows;
  std::vector<std::int64_t> sizes(rows.shape().sizes().begin(), rows.shape().sizes().end());
  sizes[0] *= ranks;
  Tensor all = Tensor::empty(Shape(sizes), rows.dtype(), rows.device());
  const std::string name =
      fmt::format("all_gather of {} {}", name_of(rows.dtype()), rows.shape().to_string());
  const std::uint64_t call = calls_++;
  if (!rows.is_meta()) {
    require_device("all_gather", rows);
    autograd::note_read();
    const comm::Tag tag{call, 0, comm::Phase::forward};
    Buffers& buffers = buffers_for(name);
    if (!buffers.rows) {
      buffers.rows = communicator_->allocate(name, all.bytes(), comm::Sharing::one_copy);
      count_allocation(all.bytes());
    }
    DeviceQueue& queue = current_queue(rows.device());
    communicator_->acquire(*buffers.rows, tag);
    if (rows.elements() > 0) {
      queue.copy(
          buffers.rows->data() + rows.bytes() * static_cast<std::size_t>(communicator_->rank()),
          rows.data(), rows.bytes());
    }
    const std::size_t of_others = all.bytes() - rows.bytes();
    wait_for({ExchangeCall::Kind::all_gather, tag.phase, of_others},
             [&] { communicator_->all_gather(*buffers.rows, all.bytes(), tag); });
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

void TensorCollectives::wait_for(const ExchangeCall& call, const std::function<void()>& work) {
  ++counts_.calls;
  counts_.bytes += call.bytes;
  const auto timed = [&] { stalls_.run(work); };
  if (observer_) {
    observer_(call, timed);
  } else {
    timed();
  }
}

void TensorCollectives::count_allocation(std::size_t bytes) {
  ++counts_.allocations;
  counts_.buffer_bytes += bytes;
}

void TensorCollectives::exchange(const Tensor& pieces, const Tensor& out,
                                 const std::string& purpose, comm::Tag tag) {
  const std::size_t bytes = pieces.bytes();
  const auto ranks = static_cast<std::size_t>(communicator_->size());
  // Ranks whose pieces have as many bytes, but are not of one tensor, differ in the call's unit.
  tag.unit = static_cast<std::uint32_t>(XXH3_64bits(purpose.data(), purpose.size()));
  try {
    if (!pieces_ || pieces_->bytes() < bytes) {
      if (pieces_) counts_.buffer_bytes -= pieces_->bytes();
      pieces_.reset();
      pieces_ = communicator_->allocate("pieces of all_to_all", bytes, comm::Sharing::per_rank);
      count_allocation(bytes);
    }
    communicator_->acquire(*pieces_, tag);
    if (bytes > 0) current_queue(pieces.device()).copy(pieces_->data(), pieces.data(), bytes);
    wait_for({ExchangeCall::Kind::all_to_all, tag.phase, bytes / ranks * (ranks - 1)},
             [&] { communicator_->all_to_all(*pieces_, bytes / ranks, out.raw_data(), tag); });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::rank_failed) throw;
    fail(error.code(), "{}; this rank was in {}", error.what(), purpose);
  }
}

Tensor TensorCollectives::all_to_all(const Tensor& pieces, std::string_view purpose) {
  const std::int64_t ranks = communicator_->size();
  TESSERA_REQUIRE(pieces.dimensions() > 0 && pieces.size(0) == ranks,
                  "all_to_all of a tensor of shape {} between {} ranks; its first dimension has a "
                  "piece for each rank",
                  pieces.shape().to_string(), ranks);
  if (ranks == 1) return pieces;
  Tensor out = Tensor::empty(pieces.shape(), pieces.dtype(), pieces.device());
  const std::uint64_t call = calls_++;
  const std::string what =
      fmt::format("all_to_all of {} {}{}{}", name_of(pieces.dtype()), pieces.shape().to_string(),
                  purpose.empty() ? "" : " for ", purpose);
  if (!pieces.is_meta()) {
    require_device("all_to_all", pieces);
    autograd::note_read();
    exchange(pieces, out, what, {call, 0, comm::Phase::forward});
  }
  autograd::record(
      Op::custom, {pieces}, {out},
      [self = shared_from_this(), what, call](std::vector<Tensor>& dout,
                                              autograd::GradientSink& sink) {
        const Tensor gradient = Tensor::empty(dout[0].shape(), dout[0].dtype(), dout[0].device());
        self->exchange(dout[0], gradient, "the gradient of " + what,
                       {call, 0, comm::Phase::backward});
        sink.add(0, gradient);
      },
      autograd::Reads::nothing);
  return out;
}

ExchangeCounts TensorCollectives::counts() const {
  ExchangeCounts result = counts_;
  result.seconds = stalls_.seconds();
  return result;
}

Tensor TensorCollectives::all_reduce(const Tensor& x, float scale, std::string_view call_name) {
  TESSERA_REQUIRE(is_floating(x.dtype()),
                  "{} of a tensor of {}; cast it to float64, which holds whole numbers up to 2^53 "
                  "exactly",
                  call_name, name_of(x.dtype()));
  if (communicator_->size() == 1) return x;
  Tensor sums = Tensor::empty(x.shape(), x.dtype(), x.device());
  const std::string name =
      fmt::format("{} of {} {}", call_name, name_of(x.dtype()), x.shape().to_string());
  const comm::Reduction reduction{.in_dtype = x.dtype(), .out_dtype = x.dtype(), .scale = scale};
  const std::uint64_t call = calls_++;
  if (!x.is_meta()) {
    require_device(call_name, x);
    autograd::note_read();
    sum_all(name, x, sums, reduction, {call, 0, comm::Phase::forward});
  }
  autograd::record(
      Op::custom, {x}, {sums},
      [self = shared_from_this(), name, reduction, call](std::vector<Tensor>& dout,
                                                         autograd::GradientSink& sink) {
        const auto [out, accumulate] = sink.slot(0);
        comm::Reduction of_gradients = reduction;
        of_gradients.accumulate = accumulate;
        self->sum_all(name, dout[0], out, of_gradients, {call, 0, comm::Phase::backward});
      },
      autograd::Reads::nothing);
  return sums;
}

comm::Buffer& TensorCollectives::filled_with(const std::string& name, const Tensor& summands,
                                             comm::Tag tag) {
  Buffers& buffers = buffers_for(name);
  if (!buffers.summands) {
    buffers.summands = communicator_->allocate(name, summands.bytes(), comm::Sharing::per_rank);
    count_allocation(summands.bytes());
  }
  communicator_->acquire(*buffers.summands, tag);
  if (summands.elements() > 0) {
    current_queue(summands.device())
        .copy(buffers.summands->data(), summands.data(), summands.bytes());
  }
  return *buffers.summands;
}

void TensorCollectives::reduce(const std::string& name, std::uint64_t call, const Tensor& gradients,
                               const Tensor& out, bool accumulate) {
  const comm::Tag tag{call, 0, comm::Phase::backward};
  const std::int64_t mine = out.elements();
  comm::Buffer& buffer = filled_with(name, gradients, tag);
  const auto of_others =
      static_cast<std::uint64_t>(mine * (communicator_->size() - 1)) * size_of(gradients.dtype());
  wait_for({ExchangeCall::Kind::reduce_scatter, tag.phase, of_others}, [&] {
    communicator_->reduce_scatter(
        buffer, {{.first = mine * communicator_->rank(), .count = mine, .out = out.raw_data()}},
        {.in_dtype = gradients.dtype(), .out_dtype = out.dtype(), .accumulate = accumulate}, tag);
  });
}

void TensorCollectives::sum_all(const std::string& name, const Tensor& summands, const Tensor& out,
                                const comm::Reduction& reduction, comm::Tag tag) {
  comm::Buffer& buffer = filled_with(name, summands, tag);
  // Sums are distributed, and gathered again.
  const auto ranks = static_cast<std::uint64_t>(communicator_->size());
  wait_for({ExchangeCall::Kind::all_reduce, tag.phase, 2 * summands.bytes() / ranks * (ranks - 1)},
           [&] {
             communicator_->all_reduce(buffer, summands.elements(), out.raw_data(), reduction, tag);
           });
}

void TensorCollectives::require_device(std::string_view call, const Tensor& tensor) const {
  TESSERA_REQUIRE(tensor.device() == communicator_->device(),
                  "{} of a tensor on {} between ranks on {}; move it with "
                  "Tensor::to(context.device())",
                  call, tensor.device().to_string(), communicator_->device().to_string());
}

}  // namespace tessera
