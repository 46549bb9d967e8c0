// The JSON inside Scalars, for the code that writes and reads manifests.
#pragma once

#include <nlohmann/json.hpp>

#include <utility>

#include "checkpoint/state/scalars.h"

namespace tessera {

struct Scalars::Data {
  nlohmann::json json = nlohmann::json::object();
};

namespace checkpoint {

// The names of optimizers' scalars: steps by parameter; numbers by name, then by parameter; groups.
inline constexpr const char* step_counts_key = "optimizer_step_counts";
inline constexpr const char* numbers_key = "optimizer_numbers";
inline constexpr const char* groups_key = "optimizer_groups";

inline nlohmann::json& json_of(Scalars& scalars) {
  return scalars.data().json;
}
inline const nlohmann::json& json_of(const Scalars& scalars) {
  return scalars.data().json;
}
inline Scalars to_scalars(nlohmann::json json) {
  Scalars scalars;
  json_of(scalars) = std::move(json);
  return scalars;
}

}  // namespace checkpoint
}  // namespace tessera
