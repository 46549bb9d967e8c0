// Optimizers over fp32 parameters: an unsharded module's, or one rank's shards. Both give the same
// bits: most updates are element-wise, and the others (Muon, Adafactor) exchange messages. State is
// made at the first step that sees a gradient.
//
// Parameters that are adjacent in memory, like a shard's, form segments (segments.h): one kernel
// updates a segment. step() updates all of them, in pieces if parameters, gradients or state are in
// files or partly on a GPU's host (engine/storage). To update piece by piece, possibly on copies of
// the memory, call begin_step() for a segment and then update_range().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.h"
#include "engine/optim/parts/segments.h"

namespace tessera::optim {

using ParameterFilter = std::function<bool(const nn::NamedParameter&)>;

// Decays matrices and tables, but not biases and norms: the usual choice for transformers.
bool decay_matrices(const nn::NamedParameter& parameter);

// Trained parameters with settings of their own: those whose whole name the regular expression
// matches. If several groups match, the first one applies.
struct ParameterGroup {
  std::string pattern;
  double lr_scale = 1;                      // factor of the optimizer's learning rate
  std::optional<double> weight_decay = {};  // for the whole group; unset: the optimizer's
  friend bool operator==(const ParameterGroup&, const ParameterGroup&) = default;
};

// The ShardingOptions that an optimizer needs. They do not change the results of other optimizers.
struct ShardNeeds {
  ParameterFilter apart = {};
  std::int64_t block = 1;  // elements of a parameter that no shard boundary may separate
};

// How a state tensor is stored.
struct StateFormat {
  std::optional<DType> dtype = {};  // unset: the parameter's
  std::int64_t block = 1;           // elements of a parameter for which there is one element
  // Set: every rank has the whole tensor, of this shape, with the same values.
  std::optional<Shape> whole = {};

  // For `count` elements of a parameter; of a whole tensor, all.
  [[nodiscard]] std::int64_t elements_for(std::int64_t count) const {
    return whole ? whole->elements() : (count + block - 1) / block;
  }
};

// The arguments of an optimizer's kernel: neighbouring elements with the same settings, and their
// memory.
struct Update {
  Device device;
  std::byte* parameter = nullptr;
  const std::byte* gradient = nullptr;
  std::vector<std::byte*> states;  // in the order of state_names_of() the parameter
  std::int64_t count = 0;
  DType dtype = DType::float32;  // of parameter and states (without a StateFormat)
  bool has_formats = false;      // a state has a StateFormat
  DType gradient_dtype = DType::float32;
  float gradient_scale = 1.0f;      // factor to multiply in (clipping)
  std::size_t parameter_index = 0;  // of the first element's parameter in parameters()
  // The first element's place in the whole parameter, for optimizers with updates_one_by_one().
  std::int64_t first = 0;
  std::int64_t step = 1;            // counted from 1
  std::span<const double> numbers;  // in the order of number_names()
  double lr_scale = 1;
  std::optional<double> weight_decay;  // instead of the optimizer's
  // The elements whose weights decay: [edges[0], edges[1]), [edges[2], edges[3]) ...
  std::span<const std::int64_t> decay_edges;

  // The decay of those elements; `usual` is the optimizer's. 0 where none decays.
  [[nodiscard]] double decay_or(double usual) const {
    return decay_edges.empty() ? 0.0 : weight_decay.value_or(usual);
  }
};

class Optimizer {
 public:
  // `decay` selects the parameters whose weights decay; empty: all. A group that matches no trained
  // parameter is an Error(configuration). Parameters for which `apart` is true share no segment
  // with the others: an optimizer that overrides step() treats them in its own way.
  explicit Optimizer(std::vector<nn::NamedParameter> parameters, const ParameterFilter& decay = {},
                     std::vector<ParameterGroup> groups = {}, const ParameterFilter& apart = {});
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that has a gradient. Others are unchanged, including their state.
  // Gradients on the host arrive in the order of the backward, the last unit's first: the CPU
  // updates each unit's parameters when they have arrived, while the GPU continues.
  virtual void step();
  void zero_grad();

  [[nodiscard]] const std::vector<Segment>& segments() const { return segments_; }
  // The same as step(), for one segment.
  virtual void step(std::size_t segment);
  // Counts a step of the segment's parameters that have gradients, and notifies their storage of
  // the write. False: none has a gradient, so there is nothing to update.
  bool begin_step(std::size_t segment);
  // Memory that holds a range of a segment, with gradients and state, or a copy of it.
  struct Memory {
    Device device;
    std::byte* parameter = nullptr;
    const std::byte* gradient = nullptr;
    std::vector<std::byte*> states;  // in the order of state_names_of() the parameter
  };
  // After begin_step(): updates elements `range` of the segment in `memory`. Ranges may be split
  // anywhere and come in any order, but cover each element once. Gradients must be laid out like
  // their parameters.
  void update_range(std::size_t segment, ElementRange range, const Memory& memory);
  // The memory of a range in place. Makes the state if it does not exist.
  [[nodiscard]] Memory memory_of(std::size_t segment, ElementRange range);

  [[nodiscard]] double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double value) { learning_rate_ = value; }
  [[nodiscard]] const std::vector<nn::NamedParameter>& parameters() const { return parameters_; }
  [[nodiscard]] const std::vector<ParameterGroup>& groups() const { return groups_; }

  // The names of the state tensors of each parameter ("exp_avg"); each has the parameter's local
  // shape and dtype, unless state_format() differs.
  [[nodiscard]] virtual std::vector<std::string> state_names() const = 0;
  // The same of one parameter, where they differ. All parameters of a segment have the same.
  [[nodiscard]] virtual std::vector<std::string> state_names_of(std::size_t /*parameter*/) const {
    return state_names();
  }
  // The format of state `which`, an index into state_names_of() the parameter. Formats need state
  // in the memory of the device: the optimizer calls require_on_device(). With a block, every
  // update() begins at a multiple of it in a parameter, and goes to a multiple or to a parameter's
  // end, if ShardingOptions::block is a multiple of it too. A `whole` state is that of an optimizer
  // which overrides step(), and keeps it equal on all ranks; Update::states has its beginning.
  [[nodiscard]] virtual StateFormat state_format(std::size_t /*parameter*/,
                                                 std::size_t /*which*/) const {
    return {};
  }
  // State tensor `name` of parameter `index`, made with zeros if absent: for saving and loading.
  // With a block it has one dimension, and a whole one has its own shape.
  Tensor state(std::size_t index, const std::string& name);
  // State `which` (an index into state_names_of() its parameters) of a whole segment, made if
  // absent.
  Tensor segment_state(std::size_t segment, std::size_t which);
  // The number of steps of each parameter (for bias correction).
  [[nodiscard]] std::vector<std::int64_t> step_counts() const { return steps_; }
  [[nodiscard]] std::int64_t step_count(std::size_t parameter) const { return steps_[parameter]; }
  void set_step_counts(std::vector<std::int64_t> counts);
  // Names of numbers that change with a parameter's steps, as their count does. They begin as 0;
  // checkpoints have them.
  [[nodiscard]] virtual std::vector<std::string> number_names() const { return {}; }
  // By parameter, in the order of the names; none before its first step.
  [[nodiscard]] const std::vector<std::vector<double>>& numbers() const { return numbers_; }
  void set_numbers(std::vector<std::vector<double>> numbers);

  // An optimizer may evaluate, save and export other weights than those of the next step's
  // gradients: averages. This is the state that has them, an index into state_names_of() each
  // parameter. A checkpoint has it as the weights, and not among the states.
  [[nodiscard]] virtual std::optional<std::size_t> average_state() const { return {}; }
  // Between these calls the parameters are the averages, and a step is a std::logic_error. The
  // second gives them the bits that they had before. Both write the parameters as a step does, on
  // every rank. They have no effect on the values of an optimizer without averages. A Trainer calls
  // them for its evaluation; saves and loads of an optimizer need no call.
  void begin_evaluation();
  void end_evaluation();
  // The tensor that a save stores as the parameter: the average, or the parameter itself.
  [[nodiscard]] Tensor weights(std::size_t parameter);
  // state_names_of() without the average.
  [[nodiscard]] std::vector<std::string> saved_state_names_of(std::size_t parameter) const;
  // The parts of a parameter that a load has written.
  struct LoadedParts {
    bool weights = false;
    bool state = false;
  };
  // For the end of a load, after set_step_counts() and set_numbers(), by parameter.
  void end_load(const std::vector<LoadedParts>& loaded);
  // Bytes of all state tensors.
  [[nodiscard]] std::size_t state_bytes() const;

 protected:
  // Updates elements with the same settings; states begin as zeros. Several calls make a step, in
  // any order, each with its own elements: an update that treats every element alone has the same
  // bits under every strategy. The memory is on update.device, in the order of its current queue;
  // on `meta` and `planned` devices it must not be read. engine/optim/update_elements.h has the
  // loop for the CPU. Constructors of derived classes call set_learning_rate(), which is 0 before.
  virtual void update(const Update& update) = 0;

  // A step of the parameter has been counted; for an optimizer with number_names().
  virtual void count_step(std::size_t /*parameter*/, double /*lr_scale*/,
                          std::span<double> /*numbers*/) {}

  // For an optimizer with averages; updates without gradients. The first makes the parameters what
  // the last step left, from the states. After a load the parameters are loaded averages: the
  // second takes them over, and without `has_state` makes the other states agree with them.
  virtual void return_to_training(const Update& /*update*/) {}
  virtual void take_weights(const Update& /*update*/, bool /*has_state*/) {}

  // For optimizers that override step(), after begin_step(): what update() would get for one
  // parameter. Empty if the parameter has no gradient; `count` is 0 if this rank has no element of
  // it.
  [[nodiscard]] std::optional<Update> update_of(std::size_t parameter);

  // True: each parameter is updated by itself, so that Update::first is the place of all elements.
  [[nodiscard]] virtual bool updates_one_by_one() const { return false; }

  // The first element of a parameter that this rank has.
  [[nodiscard]] std::int64_t first_in_whole(std::size_t parameter);

  // Error(configuration) if parameters, gradients or state are offloaded to files or to a GPU's
  // host.
  void require_on_device(std::string_view optimizer) const;

  // Makes the state files, so that a folder without room is refused before the first step. The
  // constructors of optimizers call it because they know the names of the states. Otherwise the
  // first step makes them.
  void make_state_files(const std::vector<std::string>& names);

 private:
  // The files of the segments whose state is in one folder.
  struct StateFiles {
    std::shared_ptr<const StateFolder> folder;
    std::vector<std::shared_ptr<StateFile>> files;  // by state
  };

  [[nodiscard]] Tensor make_state(std::size_t segment, std::size_t which);
  void step_through_files(std::size_t segment, const std::vector<GradientRun>& runs);
  [[nodiscard]] bool passes_host_link(std::size_t segment) const;
  void step_over_host_link(std::size_t segment, const std::vector<GradientRun>& runs);
  void find_groups();
  void find_decay_edges(const ParameterFilter& decay);
  // Null: no group.
  [[nodiscard]] const ParameterGroup* group_of(std::size_t parameter) const;
  [[nodiscard]] std::vector<GradientRun> runs_of(std::size_t segment) const;
  [[nodiscard]] Memory memory_in(std::size_t segment, const GradientRun& run, ElementRange range);
  [[nodiscard]] StateFormat format_in(std::size_t segment, std::size_t which) const;
  // Bytes from a segment's first element of a state to that of element `element`.
  [[nodiscard]] std::int64_t state_offset(std::size_t segment, std::size_t which,
                                          std::int64_t element) const;
  // The same of a whole state, to that of the segment's parameter `member`; of all members: its
  // bytes.
  [[nodiscard]] std::int64_t whole_offset(std::size_t segment, std::size_t which,
                                          std::size_t member);
  // Whether a state has a StateFormat.
  [[nodiscard]] bool has_formats(std::size_t segment) const;
  // Parameters and states of a range, without gradients.
  [[nodiscard]] Update update_of_weights(std::size_t segment, ElementRange range);
  // Calls write(update) for the parameters that have taken steps and for which `concerns` is true;
  // several of a segment may be in one call.
  void write_weights(const std::function<bool(std::size_t parameter)>& concerns,
                     const std::function<void(const Update&)>& write);
  // `memory` holds `part`, which is inside the run.
  void update_run(std::size_t segment, const GradientRun& run, ElementRange part, Memory memory);
  // All but the decay's edges.
  [[nodiscard]] Update update_settings(std::size_t parameter, DType gradient_dtype,
                                       float factor) const;

  std::vector<nn::NamedParameter> parameters_;
  std::vector<ParameterGroup> groups_;
  std::vector<std::optional<std::size_t>> group_of_;  // by parameter; empty without groups
  std::vector<Segment> segments_;
  std::vector<std::size_t> segment_of_;           // by parameter
  std::vector<std::size_t> member_of_;            // its place among the segment's parameters
  std::vector<std::vector<std::int64_t>> edges_;  // by segment
  // By segment and state: whole_offset() of each member, and of all.
  std::vector<std::vector<std::vector<std::int64_t>>> whole_offsets_;
  std::vector<std::int64_t> firsts_in_whole_;  // by parameter, once it is asked for; else -1
  std::vector<std::vector<Tensor>> states_;    // by segment, in the order of state_names_of()
  std::vector<StateFiles> state_files_;
  std::vector<std::int64_t> steps_;
  std::vector<std::vector<double>> numbers_;  // by parameter
  bool evaluates_ = false;                    // between begin_evaluation() and end_evaluation()
  double learning_rate_ = 0;
};

// Makes an optimizer, of the program's own perhaps, from a model's parameters.
using OptimizerFactory =
    std::function<std::unique_ptr<Optimizer>(std::vector<nn::NamedParameter> parameters)>;

class AdamW;
struct AdamWOptions {
  using Made = AdamW;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  ParameterFilter decay = {};  // which parameters decay; empty: all
  std::vector<ParameterGroup> groups = {};
  // The dtype of the moments: float32 (float64 for fp64 parameters), or bfloat16, rounded at random
  // by `seed`, the parameter's name, the step and the element's place in the parameter
  // (kernels::AdamWRoundedStep): 4 bytes an element instead of 8.
  DType state_dtype = DType::float32;
  std::uint64_t seed = 0;
};

// With bf16 moments, Error(configuration) if parameters, gradients or state are offloaded, or if a
// trained parameter is fp64.
class AdamW : public Optimizer {
 public:
  AdamW(std::vector<nn::NamedParameter> parameters, const AdamWOptions& options);
  [[nodiscard]] std::vector<std::string> state_names() const override {
    return {"exp_avg", "exp_avg_sq"};
  }
  [[nodiscard]] StateFormat state_format(std::size_t parameter, std::size_t which) const override;

 protected:
  void update(const Update& update) override;
  [[nodiscard]] bool updates_one_by_one() const override { return is_rounded(); }

 private:
  [[nodiscard]] bool is_rounded() const { return options_.state_dtype == DType::bfloat16; }
  void check_parameters() const;
  void update_rounded(const Update& update) const;

  AdamWOptions options_;
};

class Lion;
struct LionOptions {
  using Made = Lion;
  double lr = 1e-4;  // a third to a tenth of AdamW's, says the paper
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;     // decoupled: multiplied by the learning rate, as AdamW's
  ParameterFilter decay = {};  // which parameters decay; empty: all
  std::vector<ParameterGroup> groups = {};
};

// Lion (Chen et al. 2023, arXiv:2302.06675): each step moves an element by the learning rate in the
// direction of the sign of a mean of gradients. Its state is half of AdamW's. kernels/optimizer.h
// has the formula.
class Lion : public Optimizer {
 public:
  Lion(std::vector<nn::NamedParameter> parameters, const LionOptions& options);
  [[nodiscard]] std::vector<std::string> state_names() const override { return {"exp_avg"}; }

 protected:
  void update(const Update& update) override;

 private:
  LionOptions options_;
};

class Sgd;
struct SgdOptions {
  using Made = Sgd;
  double lr = 1e-2;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  ParameterFilter decay = {};
  std::vector<ParameterGroup> groups = {};
};

class Sgd : public Optimizer {
 public:
  Sgd(std::vector<nn::NamedParameter> parameters, const SgdOptions& options);
  [[nodiscard]] std::vector<std::string> state_names() const override;

 protected:
  void update(const Update& update) override;

 private:
  SgdOptions options_;
};

}  // namespace tessera::optim
