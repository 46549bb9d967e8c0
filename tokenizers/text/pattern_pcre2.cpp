// PCRE2 in UTF-8 mode, as machine code, for the syntax that it shares with Oniguruma. Its check of
// UTF-8 is off: the caller makes texts valid.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.h"
#include "tokenizers/text/pattern_engines.h"

namespace tessera::tokenizers {
namespace {

// Oniguruma's blanks; PCRE2's lack one.
std::string for_pcre2(std::string_view expression) {
  std::string out;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const std::string_view escape = expression.substr(i, 2);
    if (escape == "\\s" || escape == "\\S") {
      out += escape == "\\s" ? "\\p{White_Space}" : "\\P{White_Space}";
      ++i;
    } else {
      out += expression[i];
      if (expression[i] == '\\' && i + 1 < expression.size()) out += expression[++i];
    }
  }
  return out;
}

class Pcre2Code final : public PatternCode {
 public:
  Pcre2Code(std::string_view expression, const std::string& source)
      : expression_(expression), source_(source) {
    const std::string text = for_pcre2(expression);
    int error = 0;
    PCRE2_SIZE where = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error, &where, nullptr);
    if (code_ == nullptr) {
      std::array<PCRE2_UCHAR, 256> message{};
      pcre2_get_error_message(error, message.data(), message.size());
      fail(ErrorCode::data, "{}: the pattern {} is not understood: {}", source,
           shown_pattern(expression), reinterpret_cast<const char*>(message.data()));
    }
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);  // if it fails, the interpreter matches
  }
  ~Pcre2Code() override { pcre2_code_free(code_); }
  Pcre2Code(const Pcre2Code&) = delete;
  Pcre2Code& operator=(const Pcre2Code&) = delete;

  [[nodiscard]] std::unique_ptr<PatternSearch> search() const override;
  [[nodiscard]] const pcre2_code* code() const { return code_; }
  [[noreturn]] void give_up(int error, std::size_t bytes) const {
    fail(ErrorCode::data,
         "{}: the pattern {} gives up on a text of {} bytes (PCRE2's error {}); cut the text in "
         "shorter lines",
         source_, shown_pattern(expression_), bytes, error);
  }

 private:
  std::string expression_, source_;
  pcre2_code* code_ = nullptr;
};

class Pcre2Search final : public PatternSearch {
 public:
  explicit Pcre2Search(const Pcre2Code& code)
      : code_(code),
        data_(pcre2_match_data_create_from_pattern(code.code(), nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    TESSERA_CHECK(data_ != nullptr && context_ != nullptr, ErrorCode::out_of_memory,
                  "no memory to match a pattern in");
  }
  ~Pcre2Search() override {
    pcre2_jit_stack_free(stack_);
    pcre2_match_context_free(context_);
    pcre2_match_data_free(data_);
  }
  Pcre2Search(const Pcre2Search&) = delete;
  Pcre2Search& operator=(const Pcre2Search&) = delete;

  bool find(std::string_view text, std::size_t from, Pattern::Matcher::Match& match) override {
    int found = match_once(text, from);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT && stack_ == nullptr) {
      stack_ = pcre2_jit_stack_create(std::size_t{1} << 20, std::size_t{256} << 20, nullptr);
      pcre2_jit_stack_assign(context_, nullptr, stack_);
      found = match_once(text, from);
    }
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found <= 0) code_.give_up(found, text.size());
    const PCRE2_SIZE* const vector = pcre2_get_ovector_pointer(data_);
    match = {vector[0], vector[1]};
    return true;
  }

 private:
  int match_once(std::string_view text, std::size_t from) {
    // An empty view may have a null address, which PCRE2 refuses.
    const char* const data = text.empty() ? "" : text.data();
    return pcre2_match(code_.code(), reinterpret_cast<PCRE2_SPTR>(data), text.size(), from,
                       PCRE2_NO_UTF_CHECK, data_, context_);
  }

  const Pcre2Code& code_;
  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_ = nullptr;  // made when the 32 KiB of the machine stack are not enough
};

std::unique_ptr<PatternSearch> Pcre2Code::search() const {
  return std::make_unique<Pcre2Search>(*this);
}

}  // namespace

std::unique_ptr<PatternCode> compile_with_pcre2(std::string_view expression,
                                                const std::string& source) {
  return std::make_unique<Pcre2Code>(expression, source);
}

}  // namespace tessera::tokenizers
