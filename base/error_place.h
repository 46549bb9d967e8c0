// Where the calling thread is, for the messages of errors: kernels know no modules, and whoever
// knows where it is says so here.
#pragma once

#include <string>

namespace tessera {

// For its lifetime, messages of misuse() and of bad data that the calling thread throws end with
// what describe() says, in brackets. Places nest; the innermost one speaks.
class ErrorPlace {
 public:
  ErrorPlace(const ErrorPlace&) = delete;
  ErrorPlace& operator=(const ErrorPlace&) = delete;
  // " (in <the innermost place>)"; empty where there is none.
  static std::string text();

 protected:
  ErrorPlace();
  ~ErrorPlace();

 private:
  [[nodiscard]] virtual std::string describe() const = 0;  // empty: nothing is known

  const ErrorPlace* outer_;
};

}  // namespace tessera
