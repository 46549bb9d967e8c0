// Builds the tree from yaml-cpp's events and refuses unwanted ones at once.
#include "training/recipe/yaml/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"

namespace tessera::training {
namespace {

constexpr std::size_t max_bytes = std::size_t{1} << 20;
constexpr std::size_t max_nodes = 20'000;
constexpr std::size_t max_depth = 16;

class Place {
 public:
  Place(std::string source, bool numbered) : source_(std::move(source)), numbered_(numbered) {}
  [[nodiscard]] std::string at(int line) const {
    return numbered_ ? fmt::format("{}:{}", source_, line) : source_;
  }
  [[nodiscard]] std::string at(const YAML::Mark& mark) const { return at(mark.line + 1); }

 private:
  std::string source_;
  bool numbered_;
};

class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(Place place) : place_(std::move(place)) {}

  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(node(YamlNode::Kind::null, mark, "", anchor));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse_anchors(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode scalar = node(YamlNode::Kind::scalar, mark, tag, anchor);
    scalar.quoted = tag == "!";
    scalar.text = value;
    if (!scalar.quoted && (value == "~" || value == "null" || value == "Null" || value == "NULL")) {
      scalar.kind = YamlNode::Kind::null;
    }
    add(std::move(scalar));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(node(YamlNode::Kind::sequence, mark, tag, anchor));
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(node(YamlNode::Kind::mapping, mark, tag, anchor));
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    YamlNode node;
    YamlNode key;
    bool has_key = false;
  };

  [[noreturn]] void refuse_anchors(const YAML::Mark& mark) const {
    fail(ErrorCode::configuration,
         "{}: anchors (&) and aliases (*) are not part of a recipe; write the value out",
         place_.at(mark));
  }

  YamlNode node(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
                YAML::anchor_t anchor) {
    if (anchor != 0) refuse_anchors(mark);
    TESSERA_CHECK(tag.empty() || tag == "?" || tag == "!", ErrorCode::configuration,
                  "{}: tags ({}) are not part of a recipe; leave it out", place_.at(mark), tag);
    TESSERA_CHECK(++nodes_ <= max_nodes, ErrorCode::configuration,
                  "{}: more than {} values, which no recipe needs", place_.at(mark), max_nodes);
    YamlNode result;
    result.kind = kind;
    result.where = place_.at(mark);
    return result;
  }

  void open(YamlNode opened) {
    TESSERA_CHECK(levels_.size() < max_depth, ErrorCode::configuration,
                  "{}: nested deeper than {} levels, which no recipe needs", opened.where,
                  max_depth);
    Level level;
    level.node = std::move(opened);
    levels_.push_back(std::move(level));
  }

  void close() {
    YamlNode closed = std::move(levels_.back().node);
    levels_.pop_back();
    add(std::move(closed));
  }

  void add(YamlNode added) {
    if (levels_.empty()) {
      root_ = std::move(added);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == YamlNode::Kind::sequence) {
      level.node.items.push_back(std::move(added));
    } else if (!level.has_key) {
      set_key(level, std::move(added));
    } else {
      add_pair(level, std::move(added));
      level.has_key = false;
    }
  }

  // A name that stands twice with one value has that value.
  static void add_pair(Level& level, YamlNode value) {
    for (std::size_t i = 0; i < level.node.keys.size(); ++i) {
      const YamlNode& earlier = level.node.keys[i];
      if (earlier.text != level.key.text) continue;
      const YamlNode& held = level.node.items[i];
      TESSERA_CHECK(
          held.kind == YamlNode::Kind::scalar && value.kind == held.kind && value.text == held.text,
          ErrorCode::configuration, "{}: key {} is given twice, first at {}; keep one",
          level.key.where, level.key.text, earlier.where);
      return;
    }
    level.node.keys.push_back(std::move(level.key));
    level.node.items.push_back(std::move(value));
  }

  static void set_key(Level& level, YamlNode key) {
    // A missing bracket or quote makes the rest of the file a "key".
    constexpr std::size_t longest = 64;
    const bool name = key.kind == YamlNode::Kind::scalar && !key.text.empty() &&
                      key.text.size() <= longest &&
                      key.text.find_first_of("\n\r\t") == std::string::npos;
    TESSERA_CHECK(name, ErrorCode::configuration,
                  "{}: a key must be a name; is a bracket, quote or colon missing or left over?",
                  key.where);
    level.key = std::move(key);
    level.has_key = true;
  }

  Place place_;
  std::vector<Level> levels_;
  YamlNode root_;
  std::size_t nodes_ = 0;
};

// Length of the UTF-8 sequence at `text`, or 0 if it is not valid.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto continued = [&](std::size_t count) {
    for (std::size_t i = 1; i <= count; ++i) {
      if ((byte(i) & 0xc0u) != 0x80u) return false;
    }
    return true;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf && continued(1)) return 2;
  if (first >= 0xe0 && first <= 0xef && continued(2)) {
    const bool overlong = first == 0xe0 && byte(1) < 0xa0;
    const bool surrogate = first == 0xed && byte(1) >= 0xa0;
    return overlong || surrogate ? 0 : 3;
  }
  if (first >= 0xf0 && first <= 0xf4 && continued(3)) {
    const bool overlong = first == 0xf0 && byte(1) < 0x90;
    const bool beyond = first == 0xf4 && byte(1) >= 0x90;
    return overlong || beyond ? 0 : 4;
  }
  return 0;
}

// Finds text that yaml-cpp would misread or report poorly: encodings, control characters, and tabs
// that indent.
void check_characters(std::string_view text, const Place& place) {
  int line = 1;
  bool indentation = true;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text.substr(i));
    TESSERA_CHECK(length > 0, ErrorCode::configuration,
                  "{}: not UTF-8 (byte 0x{:02x}); save it as UTF-8", place.at(line),
                  static_cast<unsigned char>(text[i]));
    const char c = text[i];
    const bool control =
        length == 1 && static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t';
    TESSERA_CHECK(!control, ErrorCode::configuration,
                  "{}: control character 0x{:02x}; a recipe is plain text", place.at(line),
                  static_cast<unsigned char>(c));
    TESSERA_CHECK(!(indentation && c == '\t'), ErrorCode::configuration,
                  "{}: a tab in the indentation; YAML requires spaces", place.at(line));
    if (c == '\n') {
      ++line;
      indentation = true;
    } else if (c != ' ') {
      indentation = false;
    }
    i += length;
  }
}

}  // namespace

YamlNode parse_yaml(std::string_view text, const std::string& source, bool numbered) {
  const Place place(source, numbered);
  TESSERA_CHECK(text.size() <= max_bytes, ErrorCode::configuration,
                "{}: {} bytes are more than the {} that a recipe may have", source, text.size(),
                max_bytes);
  check_characters(text, place);
  TreeBuilder builder(place);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return {};
    YamlNode root = builder.take();
    TreeBuilder second(place);
    TESSERA_CHECK(!parser.HandleNextDocument(second), ErrorCode::configuration,
                  "{}: a second document begins after ---; a recipe is one document", source);
    return root;
  } catch (const YAML::Exception& error) {
    const int line = error.mark.is_null() ? 1 : error.mark.line + 1;
    fail(ErrorCode::configuration, "{}: not valid YAML: {}", place.at(line), error.msg);
  }
}

}  // namespace tessera::training
