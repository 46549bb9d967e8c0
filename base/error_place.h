// The place of the calling thread, for error messages. Kernels know nothing about modules, so the
// code that knows the module registers it here.
#pragma once

#include <string>

namespace tessera {

// During its lifetime, messages of misuse() and of bad data that the calling thread throws end with
// the text of describe(), in brackets. Places nest; the innermost one is used.
class ErrorPlace {
 public:
  ErrorPlace(const ErrorPlace&) = delete;
  ErrorPlace& operator=(const ErrorPlace&) = delete;
  // " (in <the innermost place>)"; empty if there is none.
  static std::string text();

 protected:
  ErrorPlace();
  ~ErrorPlace();

 private:
  [[nodiscard]] virtual std::string describe() const = 0;  // empty: unknown

  const ErrorPlace* outer_;
};

}  // namespace tessera
