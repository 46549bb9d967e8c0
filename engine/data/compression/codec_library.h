// A shared library of a compression, which is loaded when a file needs it.
#pragma once

namespace tessera {

// It stays loaded until the process ends.
class CodecLibrary {
 public:
  // Throws Error(configuration) with the Debian package if it cannot be loaded.
  CodecLibrary(const char* file, const char* package);

  // Throws Error(configuration) if the library has no such function.
  template <class Function>
  [[nodiscard]] Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

 private:
  [[nodiscard]] void* symbol(const char* name) const;

  const char* file_;
  void* object_;
};

}  // namespace tessera
