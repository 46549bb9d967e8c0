// The names that other tools use for the same things: one table, which messages quote. The recipe
// does not accept these names: it has one spelling for each key.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::training {

struct OtherWord {
  std::string_view of;    // "key", "option", "strategy", or a key of the recipe
  std::string_view word;  // in lower case, with underscores
  std::string_view here;  // a key, an option or a value; empty: no equivalent
  std::string_view note = {};
};

std::span<const OtherWord> other_words();
// The row of a word; null if no tool uses it.
const OtherWord* other_word(std::string_view of, std::string_view word);

// "; it is train.lr here", with the note, for the name of an unknown key; empty for a word that no
// tool uses. The name's sections do not count, unless they are in the table themselves.
std::string other_key(std::string_view name);
// The same for an option, and for the value of a recipe's key.
std::string other_option(std::string_view word);
std::string other_value(std::string_view key, std::string_view value);
// For a strategy on the command line: the same, or the nearest name of a strategy.
std::string strategy_meant(std::string_view word, const std::vector<std::string>& names);

}  // namespace tessera::training
