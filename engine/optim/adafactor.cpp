// Adafactor.
#include "engine/optim/adafactor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "base/error.h"
#include "engine/device/launch.h"
#include "engine/device/memory_kind.h"
#include "engine/device/queue.h"
#include "engine/optim/parts/shard_peers.h"

namespace tessera::optim {
namespace {

constexpr std::int64_t sum_limbs = kernels::ExactSum::limbs;

double eps1_of(const AdafactorOptions& options, DType dtype) {
  return options.eps1.value_or(dtype == float64 ? std::numeric_limits<double>::epsilon()
                                                : std::numeric_limits<float>::epsilon());
}

std::int64_t aligned_factors(std::int64_t bytes) {
  return (bytes + 15) / 16 * 16;
}

}  // namespace

bool is_factored(const nn::NamedParameter& parameter) {
  return parameter.shape.dimensions() >= 2 && parameter.shape.elements() > 0;
}

Settings settings_of(const AdafactorOptions& options) {
  const double eps1 = eps1_of(options, float32);
  return Settings("Adafactor")
      .not_negative("lr", options.lr)
      .add("beta2_decay", options.beta2_decay)
      .require(options.beta2_decay <= 0, "it cannot be positive")
      .add("eps1", options.eps1 ? fmt::format("{}", *options.eps1) : "of the dtype")
      .require(eps1 > 0 && static_cast<float>(eps1 * eps1) >= std::numeric_limits<float>::min(),
               "its square must be a normal number of fp32: at least 1.1e-19")
      .not_negative("eps2", options.eps2)
      .add("clip_threshold", options.clip_threshold)
      .require(options.clip_threshold >= 1, "it must be at least 1")
      .not_negative("weight_decay", options.weight_decay)
      .function("decay", static_cast<bool>(options.decay))
      .groups(options.groups);
}

ShardNeeds needs_of(const AdafactorOptions& /*options*/) {
  return {.apart = is_factored};
}

// The steps of parameters with the same peers, in rounds that share the messages.
class Adafactor::Steps {
 public:
  // Ranks that hold whole copies have nothing to add: `shared` is false.
  Steps(Adafactor& adafactor, ShardPeers& peers, bool shared,
        const std::vector<std::size_t>& parameters);
  void run();

 private:
  // A parameter as a stack of matrices.
  struct Stack {
    std::int64_t matrices = 1, rows = 1, columns = 1;

    explicit Stack(const Shape& shape) {
      const int dimensions = shape.dimensions();
      if (dimensions < 2) return;
      rows = shape[dimensions - 2];
      columns = shape[dimensions - 1];
      matrices = shape.elements() / (rows * columns);
    }
    [[nodiscard]] std::int64_t all_rows() const { return matrices * rows; }
    // High and low sums of all rows and columns.
    [[nodiscard]] std::int64_t sums() const { return 2 * matrices * (rows + columns); }
  };
  struct Item {
    std::size_t parameter;
    Update update;
    bool factored;
    Stack shape;
    std::int64_t elements;  // of the whole parameter
    std::int64_t first;     // of this rank's part
    std::int64_t sums_at = 0, factors_at = 0;
    std::byte* row_var = nullptr;  // null on devices without memory, and of vectors
    std::byte* column_var = nullptr;
  };
  // With the numbers that ranks add for it, and the sums and bytes of factors of all its items.
  struct Round {
    std::vector<Item> items;
    std::int64_t numbers = 0, sums = 0, factor_bytes = 0;
  };
  // The sizes of the largest round. They are equal on all ranks.
  struct Needs {
    std::int64_t parameters = 0, exact_sums = 0, factor_sums = 0, factor_bytes = 0;
    std::int64_t direction_bytes = 0;
  };

  void add(std::size_t parameter);
  void allocate();
  void run(const Round& round);
  // The sums over all ranks of the exact sums [0, count), to totals[at ...].
  void total(std::int64_t count, std::int64_t at) const;
  void sum_parameters(const Round& round) const;
  void move_factors(const Round& round);
  void sum_directions(const Round& round) const;
  void square(const void* x, std::int64_t count, DType dtype, float scale, std::int64_t at) const;
  void zero(const Tensor& tensor, std::int64_t bytes) const;
  [[nodiscard]] kernels::AdafactorStep step_of(const Item& item) const;
  [[nodiscard]] std::byte* factors(const Item& item) const {
    return factors_.raw_data() + item.factors_at;
  }
  [[nodiscard]] double* numbers(const Tensor& tensor, std::int64_t at) const {
    return reinterpret_cast<double*>(tensor.raw_data()) + at;
  }
  [[nodiscard]] double weight(const Item& item) const {
    return std::pow(static_cast<double>(item.update.step), adafactor_.options_.beta2_decay);
  }

  Adafactor& adafactor_;
  ShardPeers& peers_;
  bool shared_;
  std::vector<Round> rounds_;
  Needs needs_;
  Device device_;
  // Exact sums, as limbs and as numbers; totals: of each parameter, of each factored gradient,
  // and of each direction; sums and factors of rows and columns; directions of a piece.
  Tensor exact_, limbs_, totals_, sums_, factors_, directions_;
};

Adafactor::Steps::Steps(Adafactor& adafactor, ShardPeers& peers, bool shared,
                        const std::vector<std::size_t>& parameters)
    : adafactor_(adafactor), peers_(peers), shared_(shared) {
  for (const std::size_t parameter : parameters) add(parameter);
}

void Adafactor::Steps::add(std::size_t parameter) {
  const nn::NamedParameter& named = adafactor_.parameters()[parameter];
  Item item{
      parameter,          *adafactor_.update_of(parameter), is_factored(named),
      Stack(named.shape), named.shape.elements(),           adafactor_.first_in_whole(parameter)};
  device_ = item.update.device;
  const std::int64_t numbers = 3 * sum_limbs + (item.factored ? item.shape.sums() : 0);
  if (rounds_.empty() || rounds_.back().numbers + numbers > adafactor_numbers) {
    rounds_.emplace_back();
  }
  Round& round = rounds_.back();
  round.numbers += numbers;
  if (item.factored) {
    item.sums_at = round.sums;
    item.factors_at = aligned_factors(round.factor_bytes);
    round.sums += item.shape.sums();
    round.factor_bytes = item.factors_at + item.shape.all_rows() * static_cast<std::int64_t>(
                                                                       size_of(item.update.dtype));
    if (!device_.is_meta()) {
      item.row_var = adafactor_.state(parameter, "row_var").raw_data();
      item.column_var = adafactor_.state(parameter, "col_var").raw_data();
    }
  }
  for (const ElementRange& part : peers_.parts_of(named.tensor)) {
    const std::int64_t piece = std::min(part.count, adafactor_piece);
    needs_.direction_bytes = std::max(
        needs_.direction_bytes, piece * static_cast<std::int64_t>(size_of(item.update.dtype)));
  }
  round.items.push_back(std::move(item));
}

void Adafactor::Steps::allocate() {
  for (const Round& round : rounds_) {
    const auto count = static_cast<std::int64_t>(round.items.size());
    const auto factored = std::count_if(round.items.begin(), round.items.end(),
                                        [](const Item& item) { return item.factored; });
    needs_.factor_sums = std::max(needs_.factor_sums, round.sums);
    needs_.factor_bytes = std::max(needs_.factor_bytes, round.factor_bytes);
    needs_.parameters = std::max(needs_.parameters, count);
    needs_.exact_sums = std::max(needs_.exact_sums, count + factored);
  }
  constexpr auto exact_bytes = static_cast<std::int64_t>(sizeof(kernels::ExactSum));
  const MemoryScope kind(MemoryKind::other);
  exact_ = Tensor::empty({needs_.exact_sums * exact_bytes}, DType::uint8, device_);
  limbs_ = Tensor::empty({needs_.exact_sums * sum_limbs}, float64, device_);
  totals_ = Tensor::empty({needs_.exact_sums + needs_.parameters}, float64, device_);
  sums_ = Tensor::empty({needs_.factor_sums}, float64, device_);
  factors_ = Tensor::empty({needs_.factor_bytes}, DType::uint8, device_);
  directions_ = Tensor::empty({needs_.direction_bytes}, DType::uint8, device_);
}

void Adafactor::Steps::run() {
  if (rounds_.empty() || device_.is_meta()) return;
  allocate();
  for (const Round& round : rounds_) run(round);
}

void Adafactor::Steps::run(const Round& round) {
  sum_parameters(round);
  move_factors(round);
  sum_directions(round);
  std::int64_t i = 0;
  for (const Item& item : round.items) {
    kernels::AdafactorStep step = step_of(item);
    step.param = item.update.parameter;
    step.param_total = numbers(totals_, i);
    step.direction_total = numbers(totals_, needs_.exact_sums + i);
    TESSERA_LAUNCH(device_, adafactor_step, step);
    ++i;
  }
}

void Adafactor::Steps::zero(const Tensor& tensor, std::int64_t bytes) const {
  if (bytes > 0) current_queue(device_).zero(tensor.raw_data(), static_cast<std::size_t>(bytes));
}

// Adds squares to exact sum `at`.
void Adafactor::Steps::square(const void* x, std::int64_t count, DType dtype, float scale,
                              std::int64_t at) const {
  if (count == 0) return;
  auto* const sums = reinterpret_cast<kernels::ExactSum*>(exact_.raw_data());
  TESSERA_LAUNCH(device_, sum_of_squares,
                 {.x = x, .n = count, .dtype = dtype, .scale = scale, .sum = sums + at});
}

void Adafactor::Steps::total(std::int64_t count, std::int64_t at) const {
  const auto* const sums = reinterpret_cast<const kernels::ExactSum*>(exact_.raw_data());
  TESSERA_LAUNCH(device_, exact_limbs, {.sums = sums, .numbers = numbers(limbs_, 0), .n = count});
  if (shared_) peers_.sum(numbers(limbs_, 0), count * sum_limbs);
  TESSERA_LAUNCH(device_, exact_totals,
                 {.numbers = numbers(limbs_, 0), .totals = numbers(totals_, at), .n = count});
}

// The parameters' squares, and those of the factored ones' gradients.
void Adafactor::Steps::sum_parameters(const Round& round) const {
  zero(exact_, static_cast<std::int64_t>(exact_.bytes()));
  const auto count = static_cast<std::int64_t>(round.items.size());
  std::int64_t i = 0, factored = count;
  for (const Item& item : round.items) {
    const Update& update = item.update;
    square(update.parameter, update.count, update.dtype, 1.0f, i++);
    if (!item.factored) continue;
    square(update.gradient, update.count, update.gradient_dtype, update.gradient_scale, factored++);
  }
  total(factored, 0);
}

void Adafactor::Steps::move_factors(const Round& round) {
  auto gradient = static_cast<std::int64_t>(round.items.size());
  zero(sums_, round.sums * static_cast<std::int64_t>(sizeof(double)));
  const auto rows_of = [&](const Item& item) { return numbers(sums_, item.sums_at); };
  const auto columns_of = [&](const Item& item) {
    return rows_of(item) + 2 * item.shape.all_rows();
  };
  std::int64_t total = gradient;
  for (const Item& item : round.items) {
    if (!item.factored) continue;
    const Update& update = item.update;
    TESSERA_LAUNCH(device_, factor_sums,
                   {.grad = update.gradient,
                    .total = numbers(totals_, total++),
                    .row_sums = rows_of(item),
                    .column_sums = columns_of(item),
                    .first = item.first,
                    .n = update.count,
                    .matrices = item.shape.matrices,
                    .rows = item.shape.rows,
                    .columns = item.shape.columns,
                    .dtype = update.gradient_dtype,
                    .grad_scale = update.gradient_scale});
  }
  if (shared_ && round.sums > 0) peers_.sum(numbers(sums_, 0), round.sums);
  for (const Item& item : round.items) {
    if (!item.factored) continue;
    TESSERA_LAUNCH(device_, factor_update,
                   {.total = numbers(totals_, gradient++),
                    .row_sums = rows_of(item),
                    .column_sums = columns_of(item),
                    .row_var = item.row_var,
                    .column_var = item.column_var,
                    .row_factors = factors(item),
                    .matrices = item.shape.matrices,
                    .rows = item.shape.rows,
                    .columns = item.shape.columns,
                    .dtype = item.update.dtype,
                    .weight = weight(item),
                    .eps = eps1_of(adafactor_.options_, item.update.dtype)});
  }
}

// Without what it writes, and without moving the variance of a vector.
kernels::AdafactorStep Adafactor::Steps::step_of(const Item& item) const {
  const AdafactorOptions& options = adafactor_.options_;
  const Update& update = item.update;
  const double lr = adafactor_.learning_rate() * update.lr_scale;
  kernels::AdafactorStep step{};
  step.grad = update.gradient;
  step.first = item.first;
  step.n = update.count;
  step.rows = item.shape.rows;
  step.columns = item.shape.columns;
  step.dtype = update.dtype;
  step.grad_dtype = update.gradient_dtype;
  step.grad_scale = update.gradient_scale;
  step.eps = eps1_of(options, update.dtype);
  step.rate = std::min(lr, 1 / std::sqrt(static_cast<double>(update.step)));
  step.decay = lr * update.decay_or(options.weight_decay);
  step.least_scale = options.eps2;
  step.clip_threshold = options.clip_threshold;
  step.size = static_cast<double>(item.elements);
  if (item.factored) {
    step.row_factors = factors(item);
    step.column_var = item.column_var;
  } else if (!update.states.empty()) {
    step.variance = update.states[0];
  }
  return step;
}

// Moves the variances of vectors, and sums the squares of all directions, which are made in pieces.
void Adafactor::Steps::sum_directions(const Round& round) const {
  const auto count = static_cast<std::int64_t>(round.items.size());
  zero(exact_, count * static_cast<std::int64_t>(sizeof(kernels::ExactSum)));
  std::int64_t i = 0;
  for (const Item& item : round.items) {
    const Update& update = item.update;
    kernels::AdafactorStep step = step_of(item);
    step.weight = weight(item);
    step.direction = directions_.raw_data();
    for (std::int64_t first = 0; first < update.count; first += adafactor_piece) {
      step.n = std::min(adafactor_piece, update.count - first);
      step.first = item.first + first;
      step.grad = update.gradient + static_cast<std::size_t>(first) * size_of(step.grad_dtype);
      if (!item.factored)
        step.variance = update.states[0] + static_cast<std::size_t>(first) * size_of(step.dtype);
      TESSERA_LAUNCH(device_, adafactor_step, step);
      square(step.direction, step.n, step.dtype, 1.0f, i);
    }
    ++i;
  }
  total(count, needs_.exact_sums);
}

Adafactor::Adafactor(std::vector<nn::NamedParameter> parameters, const AdafactorOptions& options)
    : Optimizer(std::move(parameters), options.decay, options.groups, is_factored),
      options_(options) {
  settings_of(options).check();
  require_on_device("Adafactor");
  set_learning_rate(options.lr);
}

std::vector<std::string> Adafactor::state_names_of(std::size_t parameter) const {
  if (!is_factored(parameters()[parameter])) return state_names();
  return {"row_var", "col_var"};
}

StateFormat Adafactor::state_format(std::size_t parameter, std::size_t which) const {
  const nn::NamedParameter& named = parameters()[parameter];
  if (!is_factored(named)) return {};
  std::vector<std::int64_t> sizes(named.shape.sizes().begin(), named.shape.sizes().end());
  sizes[sizes.size() - 1 - which] = 1;
  return {.whole = Shape(sizes)};
}

void Adafactor::step() {
  std::vector<std::size_t> parameters;
  for (std::size_t s = segments().size(); s > 0; --s) begin(s - 1, parameters);
  step_parameters(std::move(parameters));
}

void Adafactor::step(std::size_t segment) {
  std::vector<std::size_t> parameters;
  begin(segment, parameters);
  step_parameters(std::move(parameters));
}

// Begins a step of a segment, and adds its parameters with a gradient to the list.
void Adafactor::begin(std::size_t segment, std::vector<std::size_t>& parameters) {
  if (!begin_step(segment)) return;
  for (const std::size_t i : segments()[segment].parameters) {
    const auto& data = this->parameters()[i].tensor.impl();
    const bool steps = data->requires_grad && data->grad_ready;
    if (steps && this->parameters()[i].shape.elements() > 0) parameters.push_back(i);
  }
}

// In the order of the parameters, which all ranks share.
void Adafactor::step_parameters(std::vector<std::size_t> parameters) {
  std::sort(parameters.begin(), parameters.end());
  struct Group {
    std::shared_ptr<ShardPeers> peers;
    bool shared;
    std::vector<std::size_t> parameters;
  };
  std::vector<Group> groups;
  for (const std::size_t i : parameters) {
    const nn::NamedParameter& named = this->parameters()[i];
    const std::shared_ptr<ShardPeers>& peers = named.tensor.storage()->shard().peers;
    bool shared = false;
    if (peers) {
      for (const ElementRange& part : peers->parts_of(named.tensor))
        shared = shared || part.count < named.shape.elements();
    }
    auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.peers == peers && group.shared == shared;
    });
    if (same == groups.end()) same = groups.insert(same, {peers, shared, {}});
    same->parameters.push_back(i);
  }
  NoPeers no_peers;
  for (const Group& group : groups) {
    ShardPeers& peers = group.peers ? *group.peers : no_peers;
    Steps(*this, peers, group.shared, group.parameters).run();
  }
}

void Adafactor::update(const Update& /*update*/) {
  misuse("Adafactor updates parameters whole: call step(), not update_range()");
}

}  // namespace tessera::optim
