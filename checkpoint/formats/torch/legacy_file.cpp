// Reads the parts of an old torch.save file in their order.
#include "checkpoint/formats/torch/legacy_file.h"

#include <fmt/format.h>
#include <array>
#include <optional>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle_length.h"
#include "checkpoint/formats/torch/torch_archive.h"

namespace tessera::checkpoint::formats {

namespace {

// LONG1 with the ten bytes of 0x1950a86a20f9469cfc6c, and STOP.
constexpr std::string_view pickled_magic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
constexpr std::int64_t legacy_version = 1001;

// The pickled magic number begins here; none: `head` is something else.
std::optional<std::size_t> magic_place(std::string_view head) {
  const bool begins = head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
  if (!begins) return std::nullopt;
  const std::size_t at = head[2] == '\x95' ? 11 : 2;  // protocol 4 has a frame
  if (head.size() < at || !head.substr(at).starts_with(pickled_magic)) return std::nullopt;
  return at;
}

class LegacyReader {
 public:
  LegacyReader(FileTable& files, std::size_t file, std::uint64_t offset, std::uint64_t bytes,
               const std::string& source)
      : files_(files), file_(file), offset_(offset), bytes_(bytes), source_(source) {}

  LegacyFile run(const PickleRules& rules) {
    std::array<char, legacy_head_bytes> head{};
    const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(bytes_, head.size()));
    read(0, head.data(), length);
    const auto magic = magic_place({head.data(), length});
    TESSERA_REQUIRE(magic.has_value(), "{} does not begin with the magic number", source_);
    at_ = *magic + pickled_magic.size();
    const PickleRules nothing{[](std::string_view) { return false; },
                              "the beginning of a torch.save file", "The file is damaged"};
    check_version(*next_pickle(nothing));
    check_machine(*next_pickle(nothing));
    LegacyFile out;
    out.pickle = next_pickle(rules);
    const auto keys = next_pickle(nothing);
    add_storages(out, keys->root());
    return out;
  }

 private:
  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail(ErrorCode::checkpoint, "{} {}", source_, fmt::format(format, std::forward<Args>(args)...));
  }

  void read(std::uint64_t at, void* data, std::size_t count) {
    files_.read(file_, offset_ + at, data, count);
  }

  std::unique_ptr<Pickle> next_pickle(const PickleRules& rules) {
    const ReadBytes reader = [this](std::uint64_t at, void* data, std::size_t count) {
      read(at, data, count);
    };
    std::string text(pickle_length(reader, at_, bytes_, source_), '\0');
    read(at_, text.data(), text.size());
    at_ += text.size();
    return std::make_unique<Pickle>(text, source_, rules);
  }

  void check_version(const Pickle& pickle) const {
    const PickleValue version = pickle.root();
    check(version.is(PickleKind::integer) && version.integer() == legacy_version,
          "has another version than {} of the torch.save format before PyTorch 1.6",
          legacy_version);
  }

  void check_machine(const Pickle& pickle) const {
    const auto little = pickle.root().find("little_endian");
    check(little.has_value() && little->is(PickleKind::boolean),
          "does not say which byte order it has; the file is damaged");
    check(little->boolean(), "has big-endian numbers: load and save it on a little-endian machine");
  }

  // The bytes of an element of each storage, by its key: the first type that the pickle names for
  // it is the one in which PyTorch counts.
  std::map<std::string, std::uint64_t> element_sizes(const Pickle& pickle) const {
    std::map<std::string, std::uint64_t> sizes;
    for (std::size_t id = 0; id < pickle.values(); ++id) {
      const PickleValue value(pickle, static_cast<std::uint32_t>(id));
      if (!value.is(PickleKind::persistent)) continue;
      const PickleValue storage = value.at(0);
      check(storage.is(PickleKind::tuple) && storage.size() >= 5 &&
                storage.at(0).is(PickleKind::text) && storage.at(0).text() == "storage",
            "refers to an object outside of its pickle that is not a storage");
      const std::string& type = storage.at(1).global();
      const std::uint64_t size = storage_element_bytes(type);
      check(size > 0, "has a storage of {}, which cannot be read; cast its tensors first",
            shown(type));
      sizes.emplace(storage.at(2).text(), size);
    }
    return sizes;
  }

  void add_storages(LegacyFile& out, const PickleValue& keys) {
    const std::map<std::string, std::uint64_t> sizes = element_sizes(*out.pickle);
    check(keys.is(PickleKind::list), "has {} in place of the list of its storages",
          name_of(keys.kind()));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::string& key = keys.at(i).text();
      const auto size = sizes.find(key);
      check(size != sizes.end(), "has a storage {} that its pickle does not name", shown(key));
      std::array<unsigned char, 8> raw{};
      check(raw.size() <= bytes_ - at_, "is cut short: it ends before storage {}", shown(key));
      read(at_, raw.data(), raw.size());
      at_ += raw.size();
      std::uint64_t count = 0;
      for (std::size_t b = raw.size(); b > 0; --b) count = (count << 8) | raw[b - 1];
      check(count <= (bytes_ - at_) / size->second,
            "is cut short: storage {} has {} elements of {} bytes, and {} bytes are left",
            shown(key), count, size->second, bytes_ - at_);
      StoredRecord record{file_, offset_ + at_, count * size->second, 0, "storage " + key};
      check(out.storages.emplace(key, std::move(record)).second, "has storage {} twice",
            shown(key));
      at_ += count * size->second;
    }
    check(at_ == bytes_,
          "has {} bytes behind its last storage: a file with several objects has to be saved as "
          "one, in a dict",
          bytes_ - at_);
  }

  FileTable& files_;
  std::size_t file_;
  std::uint64_t offset_;
  std::uint64_t bytes_;
  const std::string& source_;
  std::uint64_t at_ = 0;
};

}  // namespace

bool is_legacy_file(std::string_view head) {
  return magic_place(head).has_value();
}

LegacyFile read_legacy_file(FileTable& files, std::size_t file, std::uint64_t offset,
                            std::uint64_t bytes, const std::string& source,
                            const PickleRules& rules) {
  return LegacyReader(files, file, offset, bytes, source).run(rules);
}

}  // namespace tessera::checkpoint::formats
