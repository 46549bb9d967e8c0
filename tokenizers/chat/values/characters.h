// Texts of characters as Python's str has them. All texts are valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::tokenizers::jinja {

// str.isspace(): what strip() and split() drop, and \s of regular expressions.
bool is_space(char32_t character);
// The end of the white space that begins at `at`.
std::size_t spaces_end(std::string_view text, std::size_t at);
// Drop white space, or, if `characters` is given, those characters.
std::string_view stripped_left(std::string_view text);
std::string_view stripped_right(std::string_view text);
std::string_view stripped_left(std::string_view text, std::string_view characters);
std::string_view stripped_right(std::string_view text, std::string_view characters);

// The number of characters, and the byte at which character `index` begins.
std::int64_t length_of(std::string_view text);
std::size_t byte_of(std::string_view text, std::int64_t index);
std::vector<std::string_view> characters_of(std::string_view text);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
// The first character in title case, the others in lower case.
std::string capitalized(std::string_view text);
std::string titled(std::string_view text);  // str.title()

// str.isalpha() and others, by the name behind "is"; false for an empty text.
bool all_are(std::string_view text, std::string_view property);

// Line ends of str.splitlines().
std::vector<std::string_view> lines_of(std::string_view text, bool keeps_ends);

bool is_printable(char32_t character);  // str.isprintable()

}  // namespace tessera::tokenizers::jinja
