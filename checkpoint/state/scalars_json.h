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
