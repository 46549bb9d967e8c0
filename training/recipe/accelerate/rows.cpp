// Makes and reads rows.
#include "training/recipe/accelerate/rows.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "training/recipe/values.h"

namespace tessera::training::accelerate {

YamlNode scalar(std::string text, const std::string& where) {
  YamlNode node;
  node.kind = YamlNode::Kind::scalar;
  node.text = std::move(text);
  node.where = where;
  return node;
}

std::string said(const Entry& entry) {
  return fmt::format("{}: {}", entry.written, describe(entry.value));
}

void set(Config& config, const Entry& entry, const std::string& recipe_key, YamlNode value) {
  config.settings.push_back({recipe_key, std::move(value), entry.where, said(entry), false});
}

void note(Config& config, const Entry& entry, std::string_view text) {
  config.notes.push_back(fmt::format("{}: {}: {}", entry.where, said(entry), text));
}

Row setting(std::string group, std::string name, const std::string& recipe_key, std::string help,
            Examples taken, std::vector<std::string> refused) {
  Row row{.group = std::move(group),
          .name = std::move(name),
          .becomes = recipe_key,
          .help = {},
          .taken = std::move(taken),
          .refused = std::move(refused)};
  row.help = std::move(help);
  row.read = [recipe_key](const Entry& entry, Config& config) {
    set(config, entry, recipe_key, entry.value);
  };
  return row;
}

Row holds_always(std::string group, std::string name, bool so, std::string help) {
  Row row{.group = std::move(group),
          .name = std::move(name),
          .becomes = {},
          .help = help,
          .taken = {{"true", "", so ? "always so here" : "no effect"},
                    {"false", "", so ? "no effect" : "always so here"}},
          .refused = {"maybe"}};
  row.read = [so, help = std::move(help)](const Entry& entry, Config& config) {
    if (read_bool(entry.value, entry.written) != so) {
      note(config, entry, "no effect: " + help);
    }
  };
  return row;
}

Row without_effect(std::string name, std::string help, Examples taken) {
  return {.group = {},
          .name = std::move(name),
          .becomes = {},
          .help = std::move(help),
          .taken = std::move(taken),
          .idle = true,
          .read = [](const Entry&, Config&) {}};
}

Row unused(std::string group, std::string name, std::string help, Examples taken) {
  Row row{.group = std::move(group),
          .name = std::move(name),
          .becomes = {},
          .help = std::move(help),
          .taken = std::move(taken)};
  row.elsewhere = true;
  return row;
}

Row also_written(std::vector<std::string> aliases, Row row) {
  row.aliases = std::move(aliases);
  return row;
}

Row of_version(int version, Row row) {
  row.version = version;
  return row;
}

Row refused_above(std::string group, std::string name, std::int64_t most, std::string help) {
  Row row{.group = std::move(group),
          .name = std::move(name),
          .becomes = {},
          .help = help,
          .taken = {{fmt::format("{}", most)}},
          .refused = {fmt::format("{}", most + 1)}};
  row.read = [most, help = std::move(help)](const Entry& entry, Config&) {
    TESSERA_CHECK(read_integer(entry.value, entry.written) <= most, ErrorCode::configuration,
                  "{}: {}: {}", entry.where, said(entry), help);
  };
  return row;
}

}  // namespace tessera::training::accelerate
