// `tessera env`.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/environment.h"
#include "cli/subcommands.h"

namespace tessera::cli {

void add_environment(CLI::App& command, Invocation& invocation) {
  const auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "One JSON object instead of text");
  command.callback([json, &invocation] {
    invocation.action = [json] {
      const nlohmann::ordered_json environment = describe_environment();
      fmt::print("{}", *json ? environment.dump(2) + "\n" : environment_text(environment));
      return 0;
    };
  });
}

}  // namespace tessera::cli
