// The keys of Accelerate's configuration files as one table. It reads the files, is the table of
// docs/from-accelerate.md, and is what `tessera config explain` says. A new key is a row.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "training/recipe/accelerate/config.h"

namespace tessera::cli {

// A value as a file has it; what it makes of the row's recipe key, as JSON, or nothing where that
// is no key of the recipe; and what it means, where the key's help does not say.
struct AccelerateExample {
  std::string value;
  std::string result = {};
  std::string meaning = {};
};

struct AccelerateKey {
  std::string group;  // "fsdp_config"; empty: the top of the file
  std::string name;
  std::string becomes;  // a key of the recipe, or words; empty: nothing
  std::string help;     // what it does here
  std::vector<AccelerateExample> taken;
  std::vector<std::string> refused = {};
  std::vector<std::string> aliases = {};  // names of older files and of other tools
  int version = 0;                        // 1 or 2: a key of that FSDP alone
  bool idle = false;                      // whatever it says changes nothing here
  bool elsewhere = false;  // for hardware or software that is not here: reported as unused
  std::function<void(const AccelerateEntry&, AccelerateConfig&)> read = {};
};

// Those of the top first, then by group.
const std::vector<AccelerateKey>& accelerate_keys();
// The groups that have rows: "fsdp_config", "parallelism_config".
const std::vector<std::string>& accelerate_groups();

// docs/from-accelerate.md's tables.
std::string accelerate_reference();

}  // namespace tessera::cli
