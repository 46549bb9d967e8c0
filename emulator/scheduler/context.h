// Stacks that can be left and entered again: the fibers on which the threads of a block run.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace tessera::emulator {

// A stack and the point where its execution stopped. Only the OS thread whose multiprocessor owns
// the context enters it. A context must not be destroyed while it runs.
class Context {
 public:
  // The calling OS thread's own stack.
  Context();
  // A new stack on which `entry` starts when the context is first entered; `entry` never returns.
  // For the thread sanitizer the code on it is a thread of its own, or continues that of the OS
  // thread.
  enum class Identity { own, of_its_os_thread };
  Context(void (*entry)(), Identity identity);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Stops here, in the running context, and continues in `to`. Returns when another context
  // switches back. Orders nothing for the thread sanitizer.
  void switch_to(Context& to);

  // For contexts of an OS thread: the thread's identity may have changed since the last use.
  void adopt_calling_thread();

 private:
  void begin(Context& to, void** fake_stack);
  void jump(Context& to);
  void finish_switch();
  void close();

  std::byte* mapping_ = nullptr;  // guard page and stack; null: an OS thread's own
  const void* stack_ = nullptr;   // its lowest address
  std::size_t stack_bytes_ = 0;
  void (*entry_)() = nullptr;
  bool closing_ = false;                               // the next entry ends it
  [[maybe_unused]] void* fake_stack_ = nullptr;        // the address sanitizer's
  [[maybe_unused]] void* sanitizer_thread_ = nullptr;  // the thread sanitizer's
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t native_{};
#endif
};

}  // namespace tessera::emulator
