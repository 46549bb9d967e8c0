// Muon.
#include "engine/optim/muon.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "base/error.h"
#include "engine/device/launch.h"
#include "engine/device/memory_kind.h"
#include "engine/device/queue.h"
#include "engine/nn/layers.h"
#include "engine/nn/output_head.h"
#include "engine/optim/adamw_update.h"
#include "engine/optim/matrices/matrix_owners.h"
#include "engine/optim/matrices/newton_schulz.h"
#include "engine/optim/parts/shard_peers.h"
#include "engine/optim/settings.h"

namespace tessera::optim {
namespace {

double factor_of(MuonRate rate, std::int64_t rows, std::int64_t columns) {
  const auto r = static_cast<double>(rows);
  const auto c = static_cast<double>(columns);
  return rate == MuonRate::original ? std::sqrt(std::max(1.0, r / c))
                                    : 0.2 * std::sqrt(std::max(r, c));
}

}  // namespace

Settings settings_of(const MuonOptions& options) {
  const double adamw_lr = options.adamw_lr.value_or(options.lr);
  return Settings("Muon")
      .not_negative("lr", options.lr)
      .below_one("momentum", options.momentum)
      .add("nesterov", options.nesterov)
      .add("ns_steps", options.ns_steps)
      .require(options.ns_steps >= 1, "it must be at least 1")
      .require(options.ns_steps < 100, "it must be below 100")
      .add("ns_coefficients", fmt::format("{}", fmt::join(options.ns_coefficients, ", ")))
      .add("eps", options.eps)
      .require(options.eps > 0, "it must be above 0")
      .add("adjust_lr", static_cast<int>(options.adjust_lr))
      .add("products", name_of(options.products))
      .require(options.products == bfloat16 || options.products == float32,
               "it is bfloat16 or float32")
      .not_negative("weight_decay", options.weight_decay)
      .function("matrices", static_cast<bool>(options.matrices))
      .not_negative("adamw_lr", adamw_lr)
      .require(options.lr > 0 || adamw_lr == 0, "it is kept as a multiple of lr, which is 0")
      .below_one("beta1", options.beta1)
      .below_one("beta2", options.beta2)
      .not_negative("adamw_eps", options.adamw_eps)
      .function("decay", static_cast<bool>(options.decay))
      .groups(options.groups);
}

ShardNeeds needs_of(const MuonOptions& options) {
  return {.apart = matrices_of(options)};
}

ParameterFilter hidden_matrices(nn::Module& module) {
  auto others = std::make_shared<std::set<std::string>>();
  for (const auto& [name, part] : module.named_modules()) {
    const bool table = dynamic_cast<const nn::EmbeddingImpl*>(part) != nullptr;
    const bool head =
        dynamic_cast<const nn::LinearImpl*>(part) != nullptr && nn::is_output_head(name);
    // Beside tensors of more dimensions, such as the matrices of many experts in one, a parameter
    // with two dimensions holds many vectors.
    const auto& parameters = part->own_parameters();
    const bool stack = std::any_of(parameters.begin(), parameters.end(),
                                   [](const auto& own) { return own.second.dimensions() > 2; });
    if (!table && !head && !stack) continue;
    for (const auto& own : parameters) {
      others->insert(name.empty() ? own.first : name + "." + own.first);
    }
  }
  return [others](const nn::NamedParameter& parameter) {
    return parameter.shape.dimensions() == 2 && !others->contains(parameter.name);
  };
}

ParameterFilter matrices_of(const MuonOptions& options) {
  return [matrices = options.matrices](const nn::NamedParameter& parameter) {
    return parameter.shape.dimensions() == 2 && (!matrices || matrices(parameter));
  };
}

// The matrices of one step with the same peers.
class Muon::Matrices {
 public:
  Matrices(Muon& muon, ShardPeers& peers, const std::vector<std::size_t>& parameters);
  void step();

 private:
  void allocate();
  void gather(const std::vector<OwnedMatrix>& round);
  void orthogonalise(const std::vector<OwnedMatrix>& round);
  void give_back(const std::vector<OwnedMatrix>& round);
  // Adds the gradients of this rank's part to its momentum, and writes the part of u to `out`,
  // unless it is null.
  void take_momentum(const Update& update, std::byte* out) const;
  void apply(std::size_t matrix, const std::byte* direction) const;
  // Calls exchange(rank, part) for the other ranks that have a part.
  template <class Exchange>
  void for_others(const SharedMatrix& matrix, const Exchange& exchange) const;
  [[nodiscard]] const ElementRange& own_part(std::size_t matrix) const {
    return matrices_[matrix].parts[static_cast<std::size_t>(peers_.rank())];
  }
  [[nodiscard]] std::size_t bytes_of(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * size_of(muon_.options_.products);
  }
  [[nodiscard]] std::byte* in(const Tensor& tensor, const ElementRange& part) const {
    return tensor.raw_data() + bytes_of(part.first);
  }

  Muon& muon_;
  ShardPeers& peers_;
  std::vector<SharedMatrix> matrices_;
  std::vector<Update> updates_;  // by matrix
  Device device_;
  // x of the own matrix of a round; parts on their way, and scratch; u in the masters' dtype.
  Tensor whole_, parts_, u_;
  std::unique_ptr<NewtonSchulz> iteration_;
};

Muon::Matrices::Matrices(Muon& muon, ShardPeers& peers, const std::vector<std::size_t>& parameters)
    : muon_(muon), peers_(peers) {
  for (const std::size_t parameter : parameters) {
    const nn::NamedParameter& named = muon.parameters()[parameter];
    if (named.shape.elements() == 0) continue;
    matrices_.push_back({named.shape[0], named.shape[1], peers.parts_of(named.tensor)});
    updates_.push_back(*muon.update_of(parameter));
    device_ = updates_.back().device;
  }
}

void Muon::Matrices::step() {
  if (matrices_.empty() || device_.is_meta()) return;
  allocate();
  for (const std::vector<OwnedMatrix>& round : share_matrices(matrices_, peers_.size())) {
    gather(round);
    orthogonalise(round);
    give_back(round);
  }
}

// The same on every rank, whichever matrices and parts it has.
void Muon::Matrices::allocate() {
  std::int64_t elements = 0, side = 0;
  std::size_t part_bytes = 0;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    elements = std::max(elements, matrices_[i].elements());
    side = std::max(side, matrices_[i].smaller_side());
    for (const ElementRange& part : matrices_[i].parts) {
      const auto piece = static_cast<std::size_t>(std::min(part.count, muon_piece));
      part_bytes = std::max(part_bytes, piece * size_of(updates_[i].dtype));
    }
  }
  const MuonOptions& options = muon_.options_;
  const MemoryScope kind(MemoryKind::other);
  whole_ = Tensor::empty({elements}, options.products, device_);
  parts_ = Tensor::empty({elements}, options.products, device_);
  u_ = Tensor::empty({static_cast<std::int64_t>(part_bytes)}, DType::uint8, device_);
  iteration_ = std::make_unique<NewtonSchulz>(
      NewtonSchulz::Options{options.ns_coefficients, options.ns_steps, options.eps}, side,
      options.products, device_);
}

template <class Exchange>
void Muon::Matrices::for_others(const SharedMatrix& matrix, const Exchange& exchange) const {
  for (int rank = 0; rank < peers_.size(); ++rank) {
    const ElementRange& part = matrix.parts[static_cast<std::size_t>(rank)];
    if (rank != peers_.rank() && part.count > 0) exchange(rank, part);
  }
}

// All ranks pass the matrices of a round in the same order, and each matrix's parts in that of the
// ranks: of the messages that are left, both ends of the first one are ready for it.
void Muon::Matrices::gather(const std::vector<OwnedMatrix>& round) {
  for (const OwnedMatrix& owned : round) {
    const SharedMatrix& matrix = matrices_[owned.matrix];
    const ElementRange& own = own_part(owned.matrix);
    const bool whole = matrix.is_whole_everywhere();
    if (owned.owner == peers_.rank()) {
      take_momentum(updates_[owned.matrix], in(whole_, own));
      if (whole) continue;
      for_others(matrix, [&](int rank, const ElementRange& part) {
        peers_.receive(in(whole_, part), bytes_of(part.count), rank);
      });
    } else if (own.count > 0) {
      take_momentum(updates_[owned.matrix], whole ? nullptr : parts_.raw_data());
      if (!whole) peers_.send(parts_.raw_data(), bytes_of(own.count), owned.owner);
    }
  }
}

void Muon::Matrices::orthogonalise(const std::vector<OwnedMatrix>& round) {
  for (const OwnedMatrix& owned : round) {
    if (owned.owner != peers_.rank()) continue;
    const SharedMatrix& matrix = matrices_[owned.matrix];
    (*iteration_)(whole_, parts_, matrix.rows, matrix.columns);
  }
}

void Muon::Matrices::give_back(const std::vector<OwnedMatrix>& round) {
  for (const OwnedMatrix& owned : round) {
    const SharedMatrix& matrix = matrices_[owned.matrix];
    const ElementRange& own = own_part(owned.matrix);
    const bool owns = owned.owner == peers_.rank();
    if (matrix.is_whole_everywhere()) {
      const Tensor& memory = owns ? whole_ : parts_;
      peers_.broadcast(memory.raw_data(), bytes_of(matrix.elements()), owned.owner);
      apply(owned.matrix, memory.raw_data());
    } else if (owns) {
      for_others(matrix, [&](int rank, const ElementRange& part) {
        peers_.send(in(whole_, part), bytes_of(part.count), rank);
      });
      apply(owned.matrix, in(whole_, own));
    } else if (own.count > 0) {
      peers_.receive(parts_.raw_data(), bytes_of(own.count), owned.owner);
      apply(owned.matrix, parts_.raw_data());
    }
  }
}

// SGD's kernel from u = 0 with a rate of -1: momentum * m + (1 - momentum) * g is its buffer for
// the gradient (1 - momentum) * g, and its direction is u, which it also writes in the other dtype.
void Muon::Matrices::take_momentum(const Update& update, std::byte* out) const {
  const MuonOptions& options = muon_.options_;
  const std::size_t element = size_of(update.dtype);
  for (std::int64_t first = 0; first < update.count; first += muon_piece) {
    const std::int64_t count = std::min(muon_piece, update.count - first);
    const auto at = static_cast<std::size_t>(first);
    current_queue(device_).zero(u_.raw_data(), static_cast<std::size_t>(count) * element);
    TESSERA_LAUNCH(
        device_, sgd_step,
        {.param = u_.raw_data(),
         .grad = update.gradient + at * size_of(update.gradient_dtype),
         .momentum_buffer = update.states[0] + at * element,
         .copy = out == nullptr ? nullptr : out + bytes_of(first),
         .n = count,
         .dtype = update.dtype,
         .grad_dtype = update.gradient_dtype,
         .copy_dtype = options.products,
         .lr = -1,
         .momentum = options.momentum,
         .dampening = 0,
         .weight_decay = 0,
         .nesterov = options.nesterov,
         .first_step = false,
         .grad_scale = static_cast<float>(update.gradient_scale * (1 - options.momentum))});
  }
}

// SGD's kernel without momentum: p -= rate * (factor * x + weight_decay * p).
void Muon::Matrices::apply(std::size_t matrix, const std::byte* direction) const {
  const Update& update = updates_[matrix];
  if (update.count == 0) return;
  const MuonOptions& options = muon_.options_;
  const double factor =
      factor_of(options.adjust_lr, matrices_[matrix].rows, matrices_[matrix].columns);
  TESSERA_LAUNCH(device_, sgd_step,
                 {.param = update.parameter,
                  .grad = direction,
                  .momentum_buffer = nullptr,
                  .copy = nullptr,
                  .n = update.count,
                  .dtype = update.dtype,
                  .grad_dtype = options.products,
                  .copy_dtype = update.dtype,
                  .lr = muon_.learning_rate() * update.lr_scale,
                  .momentum = 0,
                  .dampening = 0,
                  .weight_decay = update.decay_or(options.weight_decay),
                  .nesterov = false,
                  .first_step = false,
                  .grad_scale = static_cast<float>(factor)});
}

Muon::Muon(std::vector<nn::NamedParameter> parameters, const MuonOptions& options)
    : Optimizer(std::move(parameters), options.decay, options.groups, matrices_of(options)),
      options_(options),
      is_chosen_(matrices_of(options)) {
  settings_of(options).check();
  check_parameters();
  set_learning_rate(options.lr);
  if (options.lr > 0) adamw_factor_ = options.adamw_lr.value_or(options.lr) / options.lr;
}

bool Muon::is_matrix(std::size_t parameter) const {
  return is_chosen_(this->parameters()[parameter]);
}

std::vector<std::string> Muon::state_names_of(std::size_t parameter) const {
  return is_matrix(parameter) ? std::vector<std::string>{"momentum"} : state_names();
}

void Muon::check_parameters() const {
  require_on_device("Muon");
  bool any = false;
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    const nn::NamedParameter& parameter = parameters()[i];
    if (!parameter.tensor.requires_grad()) continue;
    any = any || is_matrix(i);
  }
  TESSERA_CHECK(any, ErrorCode::configuration,
                "Muon has no matrix: none of the {} parameters is trained, has two dimensions and "
                "is one of MuonOptions::matrices; take AdamW",
                parameters().size());
}

void Muon::step() {
  std::vector<std::size_t> matrices;
  for (std::size_t s = segments().size(); s > 0; --s) {
    if (!begin_matrices(s - 1, matrices)) Optimizer::step(s - 1);
  }
  step_matrices(std::move(matrices));
}

void Muon::step(std::size_t segment) {
  std::vector<std::size_t> matrices;
  if (!begin_matrices(segment, matrices)) return Optimizer::step(segment);
  step_matrices(std::move(matrices));
}

bool Muon::begin_matrices(std::size_t segment, std::vector<std::size_t>& matrices) {
  const std::vector<std::size_t>& parameters = segments()[segment].parameters;
  if (!is_matrix(parameters.front())) return false;
  if (!begin_step(segment)) return true;
  for (const std::size_t i : parameters) {
    const auto& data = this->parameters()[i].tensor.impl();
    if (data->requires_grad && data->grad_ready) matrices.push_back(i);
  }
  return true;
}

// In the order of the parameters, which all ranks share.
void Muon::step_matrices(std::vector<std::size_t> matrices) {
  std::sort(matrices.begin(), matrices.end());
  std::vector<std::pair<std::shared_ptr<ShardPeers>, std::vector<std::size_t>>> by_peers;
  for (const std::size_t i : matrices) {
    const std::shared_ptr<ShardPeers>& peers = parameters()[i].tensor.storage()->shard().peers;
    auto same = std::find_if(by_peers.begin(), by_peers.end(),
                             [&](const auto& entry) { return entry.first == peers; });
    if (same == by_peers.end()) same = by_peers.insert(same, {peers, {}});
    same->second.push_back(i);
  }
  NoPeers no_peers;
  for (const auto& entry : by_peers) {
    Matrices(*this, entry.first ? *entry.first : no_peers, entry.second).step();
  }
}

void Muon::update(const Update& u) {
  TESSERA_REQUIRE(u.states.size() == 2,
                  "Muon updates matrices whole: call step(), not update_range()");
  update_by_adamw(u, learning_rate() * adamw_factor_,
                  {.beta1 = options_.beta1,
                   .beta2 = options_.beta2,
                   .eps = options_.adamw_eps,
                   .weight_decay = options_.weight_decay});
}

}  // namespace tessera::optim
