// Optimizers from options.
#include "engine/optim/choice.h"

#include <concepts>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace tessera::optim {
namespace {

std::unique_ptr<Optimizer> made_from(const OptimizerFactory& make,
                                     std::vector<nn::NamedParameter> parameters) {
  std::unique_ptr<Optimizer> made = make(std::move(parameters));
  TESSERA_REQUIRE(made != nullptr,
                  "the function in TrainerOptions::optimizer returned no optimizer");
  return made;
}

template <class Options>
std::unique_ptr<Optimizer> made_from(const Options& options,
                                     std::vector<nn::NamedParameter> parameters) {
  return std::make_unique<typename Options::Made>(std::move(parameters), options);
}

template <class Options>
concept AsksSharding = requires(const Options& options) {
  { needs_of(options) } -> std::same_as<ShardNeeds>;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerChoice& choice,
                                          std::vector<nn::NamedParameter> parameters) {
  return std::visit([&](const auto& options) { return made_from(options, std::move(parameters)); },
                    choice);
}

Settings settings_of_choice(const OptimizerChoice& choice) {
  return std::visit(
      [](const auto& options) {
        if constexpr (std::is_same_v<std::decay_t<decltype(options)>, OptimizerFactory>) {
          return Settings("made by a function");
        } else {
          return settings_of(options);
        }
      },
      choice);
}

ShardNeeds needs_of_choice(const OptimizerChoice& choice) {
  return std::visit(
      [](const auto& options) {
        using Options = std::decay_t<decltype(options)>;
        if constexpr (!std::is_same_v<Options, OptimizerFactory> && AsksSharding<Options>) {
          return needs_of(options);
        } else {
          return ShardNeeds{};
        }
      },
      choice);
}

}  // namespace tessera::optim
