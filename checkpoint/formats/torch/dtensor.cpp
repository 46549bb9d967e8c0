// Finds the placements and the mesh among the attributes of a pickled DTensor. Their names differ
// between versions of PyTorch: torch/distributed/device_mesh.py and
// torch/distributed/tensor/_dtensor_spec.py.
#include "checkpoint/formats/torch/dtensor.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>

#include "base/error.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::int64_t mesh_limit = 1 << 20;  // ranks
constexpr int layout_depth = 8;

bool is_dtensor_global(std::string_view global) {
  constexpr std::array<std::string_view, 5> modules{
      "torch.distributed.tensor.", "torch.distributed._tensor.", "torch.distributed.device_mesh.",
      "torch.distributed._mesh_layout.", "torch.distributed._pycute."};
  return global == "torch._utils._rebuild_wrapper_subclass" || is_torch_global(global) ||
         std::any_of(modules.begin(), modules.end(),
                     [&](std::string_view module) { return global.starts_with(module); });
}

const char* advice_about_fsdp1(std::string_view global, std::string_view /*pickle*/) {
  return global.starts_with("torch.distributed._shard.")
             ? "It has ShardedTensors of FSDP1, whose parts are not joined: save by "
               "torch.distributed.checkpoint.save (use_dcp=True of Accelerate) or with "
               "FULL_STATE_DICT, or under FSDP2, which saves DTensors"
             : nullptr;
}

// The class of an object without its module.
std::string_view class_of(const PickleValue& object) {
  if (!object.is(PickleKind::object) || !object.at(0).is(PickleKind::global)) return {};
  const std::string_view name = object.at(0).global();
  return name.substr(name.rfind('.') + 1);
}

// An attribute of a state: a dict, or a dict (or None) and that of the slots.
std::optional<PickleValue> attribute_of(const PickleValue& state, std::string_view name) {
  if (state.is(PickleKind::dict)) return state.find(name);
  if (!state.is(PickleKind::tuple)) return std::nullopt;
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (const auto found = state.at(i).find(name)) return found;
  }
  return std::nullopt;
}

std::optional<PickleValue> attribute(const PickleValue& object, std::string_view name) {
  if (!object.is(PickleKind::object)) return std::nullopt;
  const auto state = object.state();
  return state.has_value() ? attribute_of(*state, name) : std::nullopt;
}

class DTensorReader {
 public:
  explicit DTensorReader(const TorchArchive& archive) : archive_(archive) {}

  // The arguments of _rebuild_from_type_v2: _rebuild_wrapper_subclass, the class, the arguments of
  // that function (class, dtype, size, ...), and the state.
  DTensorPart read(const PickleValue& arguments) {
    const PickleValue state = arguments.at(3);
    const auto local = attribute_of(state, "_local_tensor");
    const auto spec = attribute_of(state, "_spec");
    check(local.has_value() && spec.has_value(), "without _local_tensor or _spec");
    auto tensor = archive_.tensor(*local);
    check(tensor.has_value(), "whose _local_tensor is not a tensor");
    const auto placements = attribute(*spec, "placements");
    const auto mesh = attribute(*spec, "mesh");
    check(placements.has_value() && mesh.has_value(), "without placements or a mesh");
    DTensorPart out{integers_of(arguments.at(2).at(2)), {}, std::move(*tensor)};
    element_count(out.shape, archive_.source());
    out.box = {std::vector<std::int64_t>(out.shape.size(), 0), out.shape};
    cut(out.box, *placements, *mesh);
    const bool empty =
        std::find(out.box.sizes.begin(), out.box.sizes.end(), 0) != out.box.sizes.end();
    if (empty && element_count(out.local.shape, archive_.source()) == 0) {
      out.local.shape = out.box.sizes;
      out.local.strides = row_major_strides(out.box.sizes);
    }
    check(out.local.shape == out.box.sizes,
          fmt::format("with a local shape of {}, where its placements give {} of {}",
                      describe_shape(out.local.shape), describe_shape(out.box.sizes),
                      describe_shape(out.shape)));
    return out;
  }

 private:
  void check(bool condition, const std::string& problem) const {
    if (condition) return;
    fail(ErrorCode::checkpoint, "{}: a DTensor {}", archive_.source(), problem);
  }

  // Cuts the box to the rank's part in each dimension of the mesh.
  void cut(Box& box, const PickleValue& placements, const PickleValue& mesh) const {
    const std::vector<std::int64_t> sizes = mesh_sizes(mesh);
    const std::vector<std::int64_t> place = coordinates(mesh);
    check(placements.size() == sizes.size() && place.size() == sizes.size(),
          "whose placements do not fit its mesh");
    std::vector<bool> is_cut(box.sizes.size(), false);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      check(sizes[i] >= 1 && sizes[i] <= mesh_limit && place[i] >= 0 && place[i] < sizes[i],
            "with a rank outside of its mesh");
      const std::string_view kind = class_of(placements.at(i));
      if (kind == "Replicate" || sizes[i] == 1) continue;
      check(kind == "Shard",
            fmt::format("is placed by {}, which is not joined: only Shard and Replicate are",
                        shown(kind)));
      const auto dim = attribute(placements.at(i), "dim");
      check(dim.has_value() && dim->is(PickleKind::integer) && dim->integer() >= 0 &&
                dim->integer() < static_cast<std::int64_t>(box.sizes.size()),
            "is cut along a dimension that it does not have");
      const auto d = static_cast<std::size_t>(dim->integer());
      check(!is_cut[d],
            "is cut along one dimension by two dimensions of its mesh (FSDP with tensor "
            "parallelism), which is not joined");
      is_cut[d] = true;
      const std::int64_t whole = box.sizes[d];
      const std::int64_t part = whole / sizes[i] + (whole % sizes[i] != 0 ? 1 : 0);
      box.offsets[d] = std::min(place[i] * part, whole);
      box.sizes[d] = std::min(part, whole - box.offsets[d]);
    }
  }

  // Until PyTorch 2.8 a mesh has a tensor of its ranks, later a layout: an axis for each dimension,
  // with one or several sizes.
  std::vector<std::int64_t> mesh_sizes(const PickleValue& mesh) const {
    if (const auto ranks = attribute(mesh, "mesh")) {
      const auto tensor = archive_.tensor(*ranks);
      check(tensor.has_value(), "whose mesh is not a tensor of ranks");
      return tensor->shape;
    }
    const auto layout = attribute(mesh, "_layout");
    check(layout.has_value(), "with a mesh of an unknown form");
    std::vector<std::int64_t> sizes;
    if (const auto axes = attribute(*layout, "axes")) {
      for (std::size_t i = 0; i < axes->size(); ++i) {
        const auto shape = attribute(axes->at(i), "shape");
        check(shape.has_value(), "with a mesh of an unknown form");
        sizes.push_back(product(*shape, 0));
      }
      return sizes;
    }
    const auto shape = attribute(*layout, "shape");
    check(shape.has_value(), "with a mesh of an unknown form");
    if (shape->is(PickleKind::integer)) return {product(*shape, 0)};
    for (std::size_t i = 0; i < shape->size(); ++i) sizes.push_back(product(shape->at(i), 0));
    return sizes;
  }

  // The product of a number, or of nested tuples of them.
  std::int64_t product(const PickleValue& value, int depth) const {
    check(depth < layout_depth, "with a mesh that is nested too deep");
    if (!value.is(PickleKind::tuple) && !value.is(PickleKind::list)) {
      const std::int64_t size = value.integer();
      check(size >= 1 && size <= mesh_limit, "with a mesh that is too large");
      return size;
    }
    std::int64_t out = 1;
    for (std::size_t i = 0; i < value.size(); ++i) {
      out *= product(value.at(i), depth + 1);
      check(out <= mesh_limit, "with a mesh that is too large");
    }
    return out;
  }

  std::vector<std::int64_t> coordinates(const PickleValue& mesh) const {
    const auto place = attribute(mesh, "_coordinate_on_dim");
    check(place.has_value() && !place->is(PickleKind::none),
          "whose mesh does not say where its rank is (_coordinate_on_dim)");
    return integers_of(*place);
  }

  const TorchArchive& archive_;
};

}  // namespace

const PickleRules dtensor_rules{is_dtensor_global, "a state dict of tensors and DTensors",
                                "Load the file where it was made and trusted, and save "
                                "model.state_dict() (and the optimizer's) alone",
                                advice_about_fsdp1};

std::optional<DTensorPart> read_dtensor(const TorchArchive& archive, const PickleValue& value) {
  if (!value.is_object_of("torch._tensor._rebuild_from_type_v2")) return std::nullopt;
  const PickleValue arguments = value.at(1);
  if (!arguments.at(0).is_global("torch._utils._rebuild_wrapper_subclass") ||
      !arguments.at(1).is(PickleKind::global) || !arguments.at(1).global().ends_with(".DTensor")) {
    return std::nullopt;
  }
  return DTensorReader(archive).read(arguments);
}

}  // namespace tessera::checkpoint::formats
