// Scores the units of each layer, and reads the elements of those that are kept.
#include "checkpoint/narrow/narrowed_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {
namespace {

using formats::Contents;
using formats::Part;
using formats::TensorInfo;

constexpr std::int64_t scored_elements = std::int64_t{1} << 17;  // at a time

// A tensor as [outer, units * width, inner], of whose second axis units are kept.
struct CutTensor {
  LayerTensor place;
  std::int64_t outer = 1, units = 0, width = 1, inner = 1;

  [[nodiscard]] std::int64_t row() const { return units * width * inner; }
  [[nodiscard]] std::int64_t unit() const { return width * inner; }
};

class NarrowedSource final : public formats::Source {
 public:
  NarrowedSource(std::unique_ptr<formats::Source> from, const std::string& config,
                 const NarrowOptions& options)
      : from_(std::move(from)), plan_(plan_narrowing(config, options)) {
    const Contents& all = from_->contents();
    contents_.files = all.files;
    contents_.aliases = all.aliases;
    contents_.notes = all.notes;
    contents_.texts = all.texts;
    contents_.text_modes = all.text_modes;
    contents_.files.erase("config.json");
    contents_.texts["config.json"] = plan_.config;
    bool trains = !all.unread_state.empty();
    for (std::size_t i = 0; i < all.tensors.size(); ++i) {
      if (all.tensors[i].part == Part::model) {
        add(i);
      } else {
        trains = true;
      }
    }
    require_all(config);
    choose();
    if (trains) {
      contents_.notes.emplace_back("training state is left behind: it is that of the larger model");
    }
  }

  [[nodiscard]] const Contents& contents() const override { return contents_; }

  void read(std::size_t tensor, std::int64_t first, std::int64_t count, std::byte* data) override {
    const std::size_t source = index_[tensor];
    if (!cuts_[tensor]) {
      from_->read(source, first, count, data);
      return;
    }
    const CutTensor& cut = *cuts_[tensor];
    const std::vector<std::int32_t>& kept = kept_of(cut.place);
    const std::size_t size = contents_.tensors[tensor].stored->bits / 8;
    const std::int64_t narrow_row = static_cast<std::int64_t>(kept.size()) * cut.unit();
    row_.resize(static_cast<std::size_t>(cut.outer > 1 ? cut.row() : 0) * size);
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t outer = (first + done) / narrow_row;
      const std::int64_t begin = (first + done) % narrow_row;
      const std::int64_t end = std::min(narrow_row, begin + count - done);
      if (cut.outer > 1) from_->read(source, outer * cut.row(), cut.row(), row_.data());
      // Units that lie beside each other in the source are one run.
      for (std::int64_t at = begin; at < end;) {
        const auto unit = static_cast<std::size_t>(at / cut.unit());
        std::size_t next = unit + 1;
        while (next < kept.size() && kept[next] == kept[next - 1] + 1) ++next;
        const std::int64_t run = std::min(static_cast<std::int64_t>(next) * cut.unit(), end) - at;
        const std::int64_t from = kept[unit] * cut.unit() + at % cut.unit();
        std::byte* const to = data + static_cast<std::size_t>(done + at - begin) * size;
        if (cut.outer > 1) {
          std::memcpy(to, row_.data() + static_cast<std::size_t>(from) * size,
                      static_cast<std::size_t>(run) * size);
        } else {
          from_->read(source, from, run, to);
        }
        at += run;
      }
      done += end - begin;
    }
  }

  std::vector<std::string> verify(const std::function<void(std::uint64_t)>& progress) override {
    return from_->verify(progress);
  }

 private:
  [[nodiscard]] const LayerUnits& units_of(const LayerTensor& place) const {
    return place.heads ? plan_.groups : plan_.columns;
  }
  [[nodiscard]] std::vector<std::int32_t>& kept_of(const LayerTensor& place) {
    auto& kept = place.heads ? kept_groups_ : kept_columns_;
    return kept[static_cast<std::size_t>(place.layer)];
  }

  // Adds the tensor, with the shape that it has in the smaller model.
  void add(std::size_t source) {
    TensorInfo tensor = from_->contents().tensors[source];
    const std::optional<LayerTensor> place = find_layer_tensor(tensor.name);
    std::optional<CutTensor> cut;
    if (place && units_of(*place).kept > 0) {
      TESSERA_CHECK(place->layer < plan_.layers, ErrorCode::checkpoint,
                    "tensor '{}' is of a layer that config.json does not have: there are {}",
                    tensor.name, plan_.layers);
      cut = cut_of(tensor, *place);
      tensor.shape[static_cast<std::size_t>(place->axis)] = units_of(*place).kept * cut->width;
    }
    contents_.tensors.push_back(std::move(tensor));
    index_.push_back(source);
    cuts_.push_back(cut);
  }

  [[nodiscard]] CutTensor cut_of(const TensorInfo& tensor, const LayerTensor& place) const {
    const bool vector = tensor.name.ends_with(".bias");
    const std::int64_t units = units_of(place).count;
    const std::size_t axis = static_cast<std::size_t>(place.axis);
    TESSERA_CHECK(tensor.shape.size() == (vector ? 1U : 2U) && tensor.shape[axis] > 0 &&
                      tensor.shape[axis] % units == 0 &&
                      (place.heads || tensor.shape[axis] == units),
                  ErrorCode::checkpoint,
                  "tensor '{}' has the shape {}, and config.json says that it has {} {}",
                  tensor.name, describe_shape(tensor.shape), units,
                  place.heads ? "groups of heads" : "feed-forward columns");
    TESSERA_CHECK(tensor.stored->dtype && is_floating(*tensor.stored->dtype), ErrorCode::checkpoint,
                  "tensor '{}' is {}, which has no magnitudes", tensor.name, tensor.stored->name);
    CutTensor cut{place, 1, units, tensor.shape[axis] / units, 1};
    if (!vector) (place.axis == 1 ? cut.outer : cut.inner) = tensor.shape[1 - axis];
    return cut;
  }

  // Every layer has every matrix once.
  void require_all(const std::string& config) const {
    for (const bool heads : {true, false}) {
      if ((heads ? plan_.groups : plan_.columns).kept == 0) continue;
      for (const std::string& rest : unit_matrices(config, heads)) {
        for (std::int64_t layer = 0; layer < plan_.layers; ++layer) {
          const std::string end = fmt::format(".{}.{}", layer, rest);
          std::int64_t found = 0;
          for (std::size_t i = 0; i < cuts_.size(); ++i) {
            if (!cuts_[i] || cuts_[i]->place.layer != layer) continue;
            found += contents_.tensors[i].name.ends_with(end) ? 1 : 0;
          }
          TESSERA_CHECK(found == 1, ErrorCode::checkpoint,
                        "{} tensors end with '{}', which a layer of this model has once", found,
                        end);
        }
      }
    }
  }

  void choose() {
    kept_groups_.resize(static_cast<std::size_t>(plan_.layers));
    kept_columns_.resize(kept_groups_.size());
    for (const bool heads : {true, false}) {
      const LayerUnits& units = heads ? plan_.groups : plan_.columns;
      if (units.kept == 0) continue;
      for (std::int64_t layer = 0; layer < plan_.layers; ++layer) choose(heads, layer, units);
      contents_.notes.push_back(fmt::format(
          "each of {} layers keeps the {} of {} {} with the largest weights", plan_.layers,
          units.kept, units.count, heads ? "groups of heads" : "feed-forward columns"));
    }
  }

  void choose(bool heads, std::int64_t layer, const LayerUnits& units) {
    std::vector<double> scores(static_cast<std::size_t>(units.count), 0.0);
    for (std::size_t i = 0; i < cuts_.size(); ++i) {
      if (!cuts_[i] || cuts_[i]->place.heads != heads || cuts_[i]->place.layer != layer) continue;
      if (contents_.tensors[i].shape.size() == 2) add_squares(index_[i], *cuts_[i], scores);
    }
    std::vector<std::int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    order.resize(static_cast<std::size_t>(units.kept));
    std::sort(order.begin(), order.end());
    kept_of({layer, heads, 0}) = std::move(order);
  }

  void add_squares(std::size_t source, const CutTensor& cut, std::vector<double>& scores) {
    const TensorInfo& tensor = from_->contents().tensors[source];
    const DType stored = *tensor.stored->dtype;
    const std::int64_t all = cut.outer * cut.row();
    std::vector<double> values(static_cast<std::size_t>(std::min(all, scored_elements)));
    raw_.resize(values.size() * size_of(stored));
    for (std::int64_t done = 0; done < all; done += scored_elements) {
      const std::int64_t n = std::min(scored_elements, all - done);
      from_->read(source, done, n, raw_.data());
      kernels::cpu::cast({.in = raw_.data(),
                          .out = reinterpret_cast<std::byte*>(values.data()),
                          .n = n,
                          .in_dtype = stored,
                          .out_dtype = float64});
      for (std::int64_t i = 0; i < n;) {
        const std::int64_t at = (done + i) % cut.row();
        const std::int64_t run = std::min(cut.unit() - at % cut.unit(), n - i);
        double& score = scores[static_cast<std::size_t>(at / cut.unit())];
        for (const std::int64_t end = i + run; i < end; ++i) {
          const double value = values[static_cast<std::size_t>(i)];
          score += value * value;
        }
      }
    }
  }

  std::unique_ptr<formats::Source> from_;
  NarrowPlan plan_;
  Contents contents_;
  std::vector<std::size_t> index_;              // of each tensor: its index in `from_`
  std::vector<std::optional<CutTensor>> cuts_;  // of each tensor that is divided
  // For each layer, in rising order.
  std::vector<std::vector<std::int32_t>> kept_groups_, kept_columns_;
  std::vector<std::byte> raw_, row_;
};

}  // namespace

std::unique_ptr<formats::Source> open_narrowed(std::unique_ptr<formats::Source> from,
                                               const std::string& config,
                                               const NarrowOptions& options) {
  return std::make_unique<NarrowedSource>(std::move(from), config, options);
}

}  // namespace tessera::checkpoint
