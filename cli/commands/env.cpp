// `tessera env`.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>

#include "base/text/print.h"
#include "cli/subcommands.h"
#include "planner/environment.h"

namespace tessera::cli {

Command describe_environment() {
  const auto json = std::make_shared<bool>(false);
  return {.arguments = {{"--json", json.get(), "Print one JSON object instead of text"}},
          .run = [json](const std::vector<std::string>&) {
            const nlohmann::ordered_json environment = planner::environment_report();
            print_text(*json ? environment.dump(2, ' ', true) + "\n"
                             : planner::environment_text(environment));
            return 0;
          }};
}

}  // namespace tessera::cli
