// PCRE2 in UTF-8 mode. Its check of UTF-8 is off: the caller makes texts valid.
#include "tokenizers/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.h"

namespace tessera::tokenizers {
namespace {

// The PCRE2 form of one of Oniguruma's class escapes, inside brackets and outside; nullptr: the
// same.
struct ClassEscape {
  char name;
  const char* outside;
  const char* inside;
};

constexpr std::array<ClassEscape, 6> class_escapes = {{
    {'s', "\\p{White_Space}", "\\p{White_Space}"},
    {'S', "\\P{White_Space}", "\\P{White_Space}"},
    {'d', "\\p{Nd}", "\\p{Nd}"},
    {'D', "\\P{Nd}", "\\P{Nd}"},
    {'w', "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]", "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"},
    {'W', "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]", nullptr},
}};

std::string for_pcre2(std::string_view expression) {
  std::string out;
  int brackets = 0;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\' && i + 1 < expression.size()) {
      const char name = expression[++i];
      const char* replacement = nullptr;
      for (const ClassEscape& escape : class_escapes) {
        if (escape.name == name) replacement = brackets > 0 ? escape.inside : escape.outside;
      }
      if (replacement != nullptr) {
        out += replacement;
      } else {
        out += c;
        out += name;
      }
      continue;
    }
    if (c == '[' && brackets == 0) {
      brackets = 1;
      // A closing bracket at the beginning belongs to the class.
      out += c;
      if (i + 1 < expression.size() && expression[i + 1] == '^') out += expression[++i];
      if (i + 1 < expression.size() && expression[i + 1] == ']') out += expression[++i];
      continue;
    }
    if (c == ']' && brackets > 0) brackets = 0;
    out += c;
  }
  return out;
}

}  // namespace

struct Pattern::Code {
  explicit Code(pcre2_code* made) : code(made) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* code;
};

Pattern::Pattern(std::string_view expression, const std::string& source) : source_(source) {
  const std::string text = for_pcre2(expression);
  int error = 0;
  PCRE2_SIZE where = 0;
  pcre2_code* const code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE,
      &error, &where, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    fail(ErrorCode::data, "{}: the pattern is not understood at character {}: {}", source, where,
         reinterpret_cast<const char*>(message.data()));
  }
  code_ = std::make_unique<Code>(code);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // if it fails, the interpreter matches
}

Pattern Pattern::literal(std::string_view text, const std::string& source) {
  std::string quoted;
  for (const char c : text) {
    if (std::string_view("\\^$.[]|()?*+{}#-").find(c) != std::string_view::npos) quoted += '\\';
    quoted += c;
  }
  return {quoted, source};
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

struct Pattern::Matcher::State {
  explicit State(const pcre2_code* code)
      : data(pcre2_match_data_create_from_pattern(code, nullptr)),
        context(pcre2_match_context_create(nullptr)) {
    TESSERA_CHECK(data != nullptr && context != nullptr, ErrorCode::out_of_memory,
                  "no memory to match a pattern in");
  }
  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack = nullptr;  // made when the 32 KiB of the machine stack are not enough
};

Pattern::Matcher::Matcher(const Pattern& pattern)
    : pattern_(pattern), state_(std::make_unique<State>(pattern.code_->code)) {}

Pattern::Matcher::~Matcher() = default;

bool Pattern::Matcher::find(std::string_view text, std::size_t from, Match& match) {
  // An empty view may have a null address, which PCRE2 refuses.
  const char* const data = text.empty() ? "" : text.data();
  const auto match_once = [&] {
    return pcre2_match(pattern_.code_->code, reinterpret_cast<PCRE2_SPTR>(data), text.size(), from,
                       PCRE2_NO_UTF_CHECK, state_->data, state_->context);
  };
  int found = match_once();
  if (found == PCRE2_ERROR_JIT_STACKLIMIT && state_->stack == nullptr) {
    state_->stack = pcre2_jit_stack_create(std::size_t{1} << 20, std::size_t{256} << 20, nullptr);
    pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
    found = match_once();
  }
  if (found == PCRE2_ERROR_NOMATCH) return false;
  TESSERA_CHECK(found > 0, ErrorCode::data,
                "{}: the pattern gives up on a text of {} bytes (PCRE2's error {}); cut the text "
                "in shorter lines",
                pattern_.source_, text.size(), found);
  const PCRE2_SIZE* const vector = pcre2_get_ovector_pointer(state_->data);
  TESSERA_CHECK(from <= vector[0] && vector[0] <= vector[1], ErrorCode::data,
                "{}: the pattern moves a match's beginning out of the match", pattern_.source_);
  match = {vector[0], vector[1]};
  return true;
}

}  // namespace tessera::tokenizers
