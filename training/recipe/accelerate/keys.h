// The keys of Accelerate's configuration files as one table. The program reads the files with it,
// prints the table of docs/from-accelerate.md from it, and `tessera config explain` quotes it. A
// new key is a row.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "training/recipe/accelerate/config.h"

namespace tessera::training {

// A value in a file. `result`: the value of the row's recipe key that it sets, as JSON; empty if it
// sets no key of the recipe. `meaning`: its meaning, if the key's help does not explain it.
struct AccelerateExample {
  std::string value;
  std::string result = {};
  std::string meaning = {};
};

struct AccelerateKey {
  std::string group;  // "fsdp_config"; empty: the top of the file
  std::string name;
  std::string becomes;  // a key of the recipe, or a description; empty: nothing
  std::string help;     // its effect here
  std::vector<AccelerateExample> taken;
  std::vector<std::string> refused = {};
  std::vector<std::string> aliases = {};  // names of older files and of other tools
  int version = 0;                        // 1 or 2: a key of that FSDP version alone
  bool idle = false;                      // no value has an effect here
  bool elsewhere = false;  // for hardware or software that Tessera does not use: reported as unused
  std::function<void(const AccelerateEntry&, AccelerateConfig&)> read = {};
};

// First the keys at the top of the file, then by group.
const std::vector<AccelerateKey>& accelerate_keys();
// The groups that have rows: "fsdp_config", "parallelism_config".
const std::vector<std::string>& accelerate_groups();

}  // namespace tessera::training
