// Uses PCRE2's interpreter: names are short, and compilation to machine code would take longer than
// matching.
#include "engine/nn/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.h"

namespace tessera {
namespace {

constexpr std::size_t longest_expression = 16384;
constexpr std::uint32_t most_steps = 1'000'000;

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

template <typename T>
std::unique_ptr<T, Free> owned(T* made) {
  TESSERA_CHECK(made != nullptr, ErrorCode::out_of_memory, "no memory for a regular expression");
  return std::unique_ptr<T, Free>(made);
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> message{};
  pcre2_get_error_message(error, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

// An empty view may have a null address, which PCRE2 does not accept.
PCRE2_SPTR bytes_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
}

}  // namespace

struct NamePattern::Compiled {
  std::string expression, where;
  std::shared_ptr<pcre2_code> code;
  std::shared_ptr<pcre2_match_context> limits;
};

NamePattern::NamePattern(std::string_view expression, std::string_view where) {
  TESSERA_CHECK(expression.size() <= longest_expression, ErrorCode::configuration,
                "{} an expression of {} bytes is too long; at most {} are allowed", where,
                expression.size(), longest_expression);
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* const code =
      pcre2_compile(bytes_of(expression), expression.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C,
                    &error, &at, nullptr);
  TESSERA_CHECK(code != nullptr, ErrorCode::configuration,
                "{} \"{}\" is not a regular expression: {}, at byte {}", where, expression,
                message_of(error), at);
  auto compiled = std::make_shared<Compiled>();
  compiled->code = owned(code);
  compiled->expression = expression;
  compiled->where = where;
  compiled->limits = owned(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(compiled->limits.get(), most_steps);
  compiled_ = std::move(compiled);
}

bool NamePattern::matches(std::string_view name) const {
  const auto data = owned(pcre2_match_data_create(1, nullptr));
  const int found =
      pcre2_match(compiled_->code.get(), bytes_of(name), name.size(), 0,
                  PCRE2_ANCHORED | PCRE2_ENDANCHORED, data.get(), compiled_->limits.get());
  if (found == PCRE2_ERROR_NOMATCH) return false;
  TESSERA_CHECK(found >= 0, ErrorCode::configuration,
                "{} \"{}\" gives up on the name {}: {}; avoid repetitions inside "
                "repetitions",
                compiled_->where, compiled_->expression, name, message_of(found));
  return true;
}

}  // namespace tessera
