// DeepSpeed's folders. Every rank's optimizer file has its partition of the flat fp32 weights and
// moments. The ranks' model files have the names and the order of the parameters in them.
#include <fmt/format.h>
#include <algorithm>
#include <memory>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/formats/beside.h"
#include "checkpoint/formats/deepspeed/zero_files.h"
#include "checkpoint/formats/deepspeed/zero_model.h"
#include "checkpoint/formats/deepspeed/zero_partitions.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/torch/torch_state.h"

namespace tessera::checkpoint::formats {

namespace {

namespace fs = std::filesystem;

class ZeroOpener {
 public:
  explicit ZeroOpener(fs::path folder)
      : folder_(std::move(folder)),
        source_(fmt::format("'{}'", folder_.string())),
        contents_(store_, source_) {}

  std::unique_ptr<Source> open(const fs::path& path) {
    const fs::path& folder = folder_;
    files_ = list_zero_files(folder);
    check_ranks();
    zero_ = read_zero_partitions(store_, files_, source_);
    model_ = read_zero_model(store_, files_, zero_.stage, contents_);
    if (zero_.stage == 3) {
      join_stage_3();
    } else {
      join_stage_2();
    }
    contents_.note("ZeRO stage {}, {}; the weights are the optimizer's, in {}", zero_.stage,
                   counted(zero_.of_ranks.size(), "rank"), zero_.stored->name);
    finish_zero_contents(contents_, model_, std::move(zero_.groups), zero_.step);
    add_model_files(contents_.state().contents, folder);
    add_model_files(contents_.state().contents, path);
    note_other_weights(contents_.state().contents, path, {});
    return make_source(std::move(store_), std::move(contents_.state()));
  }

 private:
  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    check_zero(source_, condition, format, std::forward<Args>(args)...);
  }

  void check_ranks() const {
    check(!files_.model.empty(), "no model_states.pt: the checkpoint is incomplete");
    check(!files_.optimizer.empty(),
          "no *_optim_states.pt, where the fp32 weights are: convert its 16-bit weights "
          "(mp_rank_00_model_states.pt) as a torch.save file instead");
    std::size_t next = 0;
    for (const auto& [rank, file] : files_.optimizer) {
      check(rank == next,
            "the optimizer file of rank {} is missing: a process did not save, or "
            "files of an older checkpoint were overwritten",
            next);
      ++next;
    }
  }

  // Adds the parameter's elements from each kind of lane.
  template <class Cut>
  void add_parameter(const NamedShape& parameter, const Lanes& kinds, const Cut& cut) {
    for (const auto& [kind, unused] : kinds) {
      PiecedTensor tensor{zero_.stored, {parameter.count}, {}};
      cut(kind, tensor.pieces);
      const bool weights = kind == weights_lane;
      contents_.add_pieced(
          weights ? Part::model : Part::optimizer,
          weights ? parameter.name : ZeroContents::plain_name(parameter.name) + "." + kind,
          parameter.shape, std::move(tensor));
    }
  }

  // A group's flat weights are the ranks' partitions one after the other.
  void join_stage_2() {
    for (const auto& rank : zero_.of_ranks) {
      check(rank.size() == model_.shapes.size(), "it has {} parameter groups, a rank {} partitions",
            model_.shapes.size(), rank.size());
    }
    for (std::size_t group = 0; group < model_.shapes.size(); ++group) {
      Lanes joined;
      for (const auto& rank : zero_.of_ranks) {
        check(rank[group].size() == zero_.of_ranks.front()[group].size(),
              "its ranks have different optimizer state");
        for (const auto& [kind, lane] : rank[group]) joined[kind].append(lane);
      }
      std::int64_t offset = 0;
      for (const NamedShape& parameter : model_.shapes[group]) {
        check(parameter.count <= joined.at(weights_lane).size() - offset,
              "group {} has fewer elements than its parameters", group);
        add_parameter(parameter, joined, [&](const std::string& kind, std::vector<Piece>& pieces) {
          joined.at(kind).cut(offset, parameter.count, 0, pieces);
        });
        offset += parameter.count;
      }
      const auto align = static_cast<std::int64_t>(2 * zero_.of_ranks.size());
      const std::int64_t padded = (offset + align - 1) / align * align;
      const std::int64_t have = joined.at(weights_lane).size();
      check(have == offset || have == padded,
            "group {} has {} elements where its parameters need {}: the shapes do not belong to "
            "these partitions",
            group, have, offset);
    }
  }

  // Every parameter is cut into equal parts, one a rank; a rank's parts lie one after the other.
  void join_stage_3() {
    std::vector<Lanes> ranks;
    for (const auto& groups : zero_.of_ranks) {
      Lanes& joined = ranks.emplace_back();
      for (const Lanes& lanes : groups) {
        check(lanes.size() == groups.front().size(), "its groups have different optimizer state");
        for (const auto& [kind, lane] : lanes) joined[kind].append(lane);
      }
      check(joined.size() == ranks.front().size(), "its ranks have different optimizer state");
    }
    check(!ranks.front().empty(), "it has no partitions");
    const auto world = static_cast<std::int64_t>(ranks.size());
    std::int64_t offset = 0;
    for (const auto& group : model_.shapes) {
      for (const NamedShape& parameter : group) {
        const std::int64_t part = parameter.count / world + (parameter.count % world != 0 ? 1 : 0);
        add_parameter(parameter, ranks.front(),
                      [&](const std::string& kind, std::vector<Piece>& pieces) {
                        for (std::int64_t rank = 0; rank < world; ++rank) {
                          const auto& lanes = ranks[static_cast<std::size_t>(rank)];
                          const auto lane = lanes.find(kind);
                          check(lane != lanes.end() && offset <= lane->second.size() &&
                                    part <= lane->second.size() - offset,
                                "rank {} has fewer elements than its parameters", rank);
                          const std::int64_t at = std::min(rank * part, parameter.count);
                          const std::int64_t count = std::min(part, parameter.count - at);
                          lane->second.cut(offset, count, at, pieces);
                        }
                      });
        offset += part;
      }
    }
    for (const Lanes& lanes : ranks) {
      check(
          lanes.at(weights_lane).size() == offset,
          "a rank has {} elements where its parameters need {}: the shapes do not belong to these "
          "partitions",
          lanes.at(weights_lane).size(), offset);
    }
  }

  fs::path folder_;
  std::string source_;
  PieceStore store_;
  ZeroContents contents_;
  ZeroFiles files_;
  ZeroPartitions zero_;
  ZeroModel model_;
};

std::unique_ptr<Source> open_deepspeed(const fs::path& path) {
  return ZeroOpener(zero_tag_folder(path)).open(path);
}

}  // namespace

const Format& deepspeed_format() {
  static const Format format{
      "deepspeed",    "a DeepSpeed ZeRO checkpoint (*_optim_states.pt), read only",
      false,          recognises_deepspeed,
      open_deepspeed, nullptr};
  return format;
}

}  // namespace tessera::checkpoint::formats
