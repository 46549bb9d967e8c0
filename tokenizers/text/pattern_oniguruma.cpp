// Oniguruma in UTF-8, with its default syntax and options, as the package `tokenizers` calls it.
// Texts are valid UTF-8: the caller sees to it.
//
// The library is loaded at its first use and never linked: it has functions of its own named
// regcomp() and regexec(), which would replace the C library's in every program that uses Tessera.
#include <dlfcn.h>
#define ONIG_ESCAPE_UCHAR_COLLISION 1        // ICU has a type UChar
#define re_registers tessera_onig_registers  // <regex.h> has another struct of this name
#include <oniguruma.h>
#undef re_registers

#include <array>
#include <ctime>

#include "base/error.h"
#include "base/text/printable.h"
#include "tokenizers/text/pattern_engines.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

constexpr std::size_t longest_expression = std::size_t{1} << 16;  // 200 MiB of code at worst
constexpr unsigned deepest_expression = 256;
// Steps back in the search from one place of a text; Oniguruma's default, at which the package
// fails too.
constexpr unsigned long most_retries_of_match = 10'000'000;
constexpr unsigned most_stack_entries = 8'000'000;  // a third of a GiB
// Oniguruma counts no steps forward, of which a pattern may take as many at each place as the text
// is long. So it is asked place by place, and the search ends when the thread has spent this
// processor time on a text, and this for each byte that is done: a hundred times the usual.
constexpr double most_seconds = 2;
constexpr double seconds_of_byte = 10e-6;
constexpr unsigned places_between_clocks = 256;

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

const OnigUChar* onig_bytes(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.empty() ? "" : text.data());
}

// Since 6.9.9 [:punct:] has the symbols as well; that is the package's. Written out, it is the same
// in all versions.
std::string with_symbols_in_punct(std::string_view expression) {
  constexpr std::string_view punct = "[:punct:]";
  constexpr std::string_view not_punct = "[:^punct:]";
  std::string out;
  int brackets = 0;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const std::string_view rest = expression.substr(i);
    if (brackets > 0 && rest.starts_with(punct)) {
      out += "\\p{P}\\p{S}";
      i += punct.size() - 1;
    } else if (brackets > 0 && rest.starts_with(not_punct)) {
      out += "[^\\p{P}\\p{S}]";
      i += not_punct.size() - 1;
    } else if (rest[0] == '\\') {
      out += rest.substr(0, 2);
      i += rest.size() > 1 ? 1 : 0;
    } else if (rest[0] == '[') {
      // A bracket that closes at the beginning belongs to the class.
      const std::size_t begin = rest.starts_with("[^]") ? 3 : rest.starts_with("[]") ? 2 : 1;
      out += rest.substr(0, begin);
      i += begin - 1;
      ++brackets;
    } else {
      if (rest[0] == ']' && brackets > 0) --brackets;
      out += rest[0];
    }
  }
  return out;
}

#define TESSERA_ONIGURUMA(X)                        \
  X(onig_error_code_to_str)                         \
  X(onig_free)                                      \
  X(onig_free_match_param)                          \
  X(onig_initialize)                                \
  X(onig_initialize_match_param)                    \
  X(onig_match_with_param)                          \
  X(onig_new)                                       \
  X(onig_new_match_param)                           \
  X(onig_region_free)                               \
  X(onig_region_new)                                \
  X(onig_set_match_stack_limit_size_of_match_param) \
  X(onig_set_parse_depth_limit)                     \
  X(onig_set_retry_limit_in_match_of_match_param)   \
  X(onig_version)

// The library's functions, its encoding and its syntax.
struct Oniguruma {
#define TESSERA_ONIGURUMA_MEMBER(function) decltype(&::function) function = nullptr;
  TESSERA_ONIGURUMA(TESSERA_ONIGURUMA_MEMBER)
#undef TESSERA_ONIGURUMA_MEMBER
  OnigEncoding utf8 = nullptr;
  OnigSyntaxType* syntax = nullptr;
};

void* onig_symbol(void* object, const char* name) {
  void* const symbol = dlsym(object, name);
  TESSERA_CHECK(symbol != nullptr, ErrorCode::configuration,
                "libonig.so.5 has no {}; install another version of Oniguruma (Debian: libonig5)",
                name);
  return symbol;
}

Oniguruma load_oniguruma() {
  void* const object = dlopen("libonig.so.5", RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) {
    const char* const reason = dlerror();
    fail(ErrorCode::configuration,
         "a pattern of this tokenizer needs Oniguruma, which is not installed ({}); install it "
         "(Debian: libonig5)",
         reason != nullptr ? reason : "libonig.so.5");
  }
  Oniguruma library;
#define TESSERA_ONIGURUMA_FIND(function) \
  library.function = reinterpret_cast<decltype(library.function)>(onig_symbol(object, #function));
  TESSERA_ONIGURUMA(TESSERA_ONIGURUMA_FIND)
#undef TESSERA_ONIGURUMA_FIND
  library.utf8 = static_cast<OnigEncoding>(onig_symbol(object, "OnigEncodingUTF8"));
  library.syntax = *static_cast<OnigSyntaxType**>(onig_symbol(object, "OnigDefaultSyntax"));
  // A limit without a form for one call is set here.
  std::array<OnigEncoding, 1> encodings{library.utf8};
  TESSERA_CHECK(library.onig_initialize(encodings.data(), static_cast<int>(encodings.size())) ==
                        ONIG_NORMAL &&
                    library.onig_set_parse_depth_limit(deepest_expression) == ONIG_NORMAL,
                ErrorCode::out_of_memory, "no memory for Oniguruma's tables");
  return library;
}

const Oniguruma& oniguruma() {
  static const Oniguruma loaded = load_oniguruma();
  return loaded;
}

std::string onig_message(int error, const OnigErrorInfo* info) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  const int length = info == nullptr ? oniguruma().onig_error_code_to_str(text.data(), error)
                                     : oniguruma().onig_error_code_to_str(text.data(), error, info);
  return {reinterpret_cast<const char*>(text.data()), static_cast<std::size_t>(length)};
}

class OnigCode final : public PatternCode {
 public:
  OnigCode(std::string_view expression, const std::string& source)
      : expression_(expression), source_(source) {
    TESSERA_CHECK(expression.size() <= longest_expression, ErrorCode::data,
                  "{}: the pattern {} has {} bytes; at most {} are allowed", source,
                  shown_pattern(expression), expression.size(), longest_expression);
    OnigErrorInfo info{};
    const std::string text = with_symbols_in_punct(expression);
    const OnigUChar* const begin = onig_bytes(text);
    const int error = onig_.onig_new(&code_, begin, begin + text.size(), ONIG_OPTION_NONE,
                                     onig_.utf8, onig_.syntax, &info);
    TESSERA_CHECK(error == ONIG_NORMAL, ErrorCode::data,
                  "{}: the pattern {} is not understood: {}, says Oniguruma {}; write it so that "
                  "the package `tokenizers` accepts it",
                  source, shown_pattern(expression), printable(onig_message(error, &info)),
                  onig_.onig_version());
  }
  ~OnigCode() override { onig_.onig_free(code_); }
  OnigCode(const OnigCode&) = delete;
  OnigCode& operator=(const OnigCode&) = delete;

  [[nodiscard]] std::unique_ptr<PatternSearch> search() const override;
  [[nodiscard]] OnigRegex code() const { return code_; }
  [[noreturn]] void give_up(std::string_view why, std::size_t bytes) const {
    fail(ErrorCode::data,
         "{}: the pattern {} gives up on a text of {} bytes ({}); cut the text in shorter lines, "
         "or write the pattern without repetitions that can match the same characters",
         source_, shown_pattern(expression_), bytes, why);
  }

 private:
  const Oniguruma& onig_ = oniguruma();
  std::string expression_, source_;
  OnigRegex code_ = nullptr;
};

class OnigSearch final : public PatternSearch {
 public:
  explicit OnigSearch(const OnigCode& code)
      : code_(code), region_(onig_.onig_region_new()), limits_(onig_.onig_new_match_param()) {
    TESSERA_CHECK(region_ != nullptr && limits_ != nullptr, ErrorCode::out_of_memory,
                  "no memory to match a pattern in");
    onig_.onig_initialize_match_param(limits_);
    onig_.onig_set_match_stack_limit_size_of_match_param(limits_, most_stack_entries);
    onig_.onig_set_retry_limit_in_match_of_match_param(limits_, most_retries_of_match);
  }
  ~OnigSearch() override {
    onig_.onig_region_free(region_, 1);
    onig_.onig_free_match_param(limits_);
  }
  OnigSearch(const OnigSearch&) = delete;
  OnigSearch& operator=(const OnigSearch&) = delete;

  bool find(std::string_view text, std::size_t from, Pattern::Matcher::Match& match) override {
    if (from == 0) begin_text();
    const OnigUChar* const begin = onig_bytes(text);
    const OnigUChar* const end = begin + text.size();
    OnigOptionType options = ONIG_OPTION_NONE;
    int found = ONIG_MISMATCH;
    for (std::size_t at = from; found == ONIG_MISMATCH && at <= text.size();) {
      found = onig_.onig_match_with_param(code_.code(), begin, end, begin + at, region_, options,
                                          limits_);
      check_time(at, text.size());
      at += at < text.size() ? character_length(text[at]) : 1;
      options = ONIG_OPTION_NOT_BEGIN_POSITION;  // \G is where the search began
    }
    if (found == ONIG_MISMATCH) return false;
    if (found < 0) code_.give_up(onig_message(found, nullptr), text.size());
    // \K moves the beginning, possibly behind the end or before the place of the search.
    const auto first = static_cast<std::size_t>(region_->beg[0]);
    const auto last = static_cast<std::size_t>(region_->end[0]);
    TESSERA_CHECK(region_->beg[0] >= 0 && from <= first && first <= last && last <= text.size(),
                  ErrorCode::data, "a pattern moves a match's beginning out of the match");
    match = {first, last};
    return true;
  }

 private:
  void begin_text() {
    places_ = 0;
    begun_ = -1;
  }

  // Reads the clock once in many places; the first time begins the count.
  void check_time(std::size_t done, std::size_t bytes) {
    if (++places_ < places_between_clocks) return;
    places_ = 0;
    const double now = thread_seconds();
    if (begun_ < 0) {
      begun_ = now;
    } else if (now - begun_ > most_seconds + seconds_of_byte * static_cast<double>(done)) {
      code_.give_up("it takes too long", bytes);
    }
  }

  const Oniguruma& onig_ = oniguruma();
  const OnigCode& code_;
  OnigRegion* region_;
  OnigMatchParam* limits_;
  unsigned places_ = 0;  // since the clock was read
  double begun_ = -1;    // the thread's time early in this text
};

std::unique_ptr<PatternSearch> OnigCode::search() const {
  return std::make_unique<OnigSearch>(*this);
}

}  // namespace

std::unique_ptr<PatternCode> compile_with_oniguruma(std::string_view expression,
                                                    const std::string& source) {
  return std::make_unique<OnigCode>(expression, source);
}

}  // namespace tessera::tokenizers
