// Groups members by their names.
#include "tasks/columnar/tar/tar_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text/ascii_lower.h"
#include "checkpoint/io/json.h"
#include "tasks/columnar/tar/tar_reader.h"

namespace tessera::tasks {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t largest_sample = std::int64_t{64} << 20;
constexpr std::size_t most_files = 1000;  // of a sample

// "data/0001" and "en.txt" of "data/0001.en.txt". None for a name that is in no sample.
std::optional<std::pair<std::string, std::string>> key_and_ending(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::size_t name = slash == std::string::npos ? 0 : slash + 1;
  const std::size_t dot = path.find('.', name);
  const bool meant = dot != std::string::npos && dot > name && path.compare(name, 2, "__") != 0;
  if (!meant) return std::nullopt;
  return std::pair(path.substr(0, dot), ascii_lower(std::string_view(path).substr(dot + 1)));
}

// The part behind the last dot says what is in the file.
bool is_one_of(std::string_view ending, std::initializer_list<std::string_view> kinds) {
  const std::string_view last = ending.substr(ending.rfind('.') + 1);
  return std::find(kinds.begin(), kinds.end(), last) != kinds.end();
}

class SampleRows {
 public:
  SampleRows(const std::string& archive,
             const std::function<void(const ordered_json&, const std::string&)>& take)
      : archive_(archive), take_(take) {}

  void add(TarReader& tar, const TarReader::Member& member, const std::string& key,
           const std::string& ending) {
    const bool text = is_one_of(ending, {"txt", "text", "transcript"});
    const bool json = is_one_of(ending, {"json", "jsn"});
    if (!member.elsewhere.empty() && !text && !json) return;
    if (!key_ || *key_ != key) {
      finish();
      key_ = key;
    }
    TESSERA_CHECK(endings_.insert(ending).second, ErrorCode::data,
                  "{}: two files end in .{}; a sample's files have different endings", place(),
                  ending);
    TESSERA_CHECK(member.elsewhere.empty(), ErrorCode::data,
                  "{}: its .{} is {}, which is not read; write the archive with whole files (GNU "
                  "tar: --hard-dereference, --dereference, without --sparse)",
                  place(), ending, member.elsewhere);
    if (text || json) bytes_ += member.bytes;
    TESSERA_CHECK(bytes_ <= largest_sample && endings_.size() <= most_files, ErrorCode::data,
                  "{}: a sample of {} files and {} bytes; at most {} and {} are read", place(),
                  endings_.size(), bytes_, most_files, largest_sample);
    if (text) {
      row_[ending] = tar.read();
    } else if (json) {
      row_[ending] = parsed(tar.read(), fmt::format("{}, .{}", place(), ending));
    }
  }

  // Hands out the sample whose files have been added.
  void finish() {
    if (!key_) return;
    ordered_json row = ordered_json::object();
    row["__key__"] = *key_;
    for (auto& [ending, value] : row_.items()) row[ending] = value;
    if (row.contains("txt") && !row.contains("text")) row["text"] = row["txt"];
    for (const auto& [ending, value] : row_.items()) {
      if (!value.is_object()) continue;
      for (const auto& [name, member] : value.items()) {
        if (!row.contains(name)) row[name] = member;
      }
    }
    take_(row, place());
    any_ = true;
    row_ = ordered_json::object();
    endings_.clear();
    bytes_ = 0;
    key_.reset();
  }

  [[nodiscard]] bool any() const { return any_; }

 private:
  static ordered_json parsed(const std::string& text, const std::string& place) {
    try {
      // This checks it: the depth, and that every name is there once. It sorts members.
      (void)checkpoint::parse_json(text, place);
      return ordered_json::parse(text);
    } catch (const Error& error) {
      throw Error(ErrorCode::data, error.what());
    }
  }
  [[nodiscard]] std::string place() const {
    return fmt::format("{}, sample {}", archive_, key_.value_or(""));
  }

  const std::string& archive_;
  const std::function<void(const ordered_json&, const std::string&)>& take_;
  std::optional<std::string> key_;
  std::set<std::string> endings_;
  std::int64_t bytes_ = 0;  // of the texts and JSON
  ordered_json row_ = ordered_json::object();
  bool any_ = false;
};

}  // namespace

void for_each_tar_sample(
    TextReader& reader,
    const std::function<void(const ordered_json& row, const std::string& place)>& take) {
  TarReader tar(reader);
  SampleRows samples(reader.name(), take);
  while (const auto member = tar.next()) {
    if (const auto parts = key_and_ending(member->name)) {
      samples.add(tar, *member, parts->first, parts->second);
    }
  }
  samples.finish();
  TESSERA_CHECK(samples.any(), ErrorCode::data,
                "{} has no sample: no file with a name like 0001.txt or 0001.json", reader.name());
}

}  // namespace tessera::tasks
