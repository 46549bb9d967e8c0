// Switches stacks: eight instructions on x86-64, ucontext elsewhere.
#include "emulator/scheduler/context.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

#include "emulator/scheduler/sanitizers.h"

#if defined(__x86_64__)
// void tessera_emulator_switch(void** save, void* load): pushes the registers that a function must
// preserve, leaves the stack pointer in *save, and continues on the stack that `load` was saved
// for. swapcontext would work, but it asks the kernel for the signal mask each time: eight times
// slower.
extern "C" void tessera_emulator_switch(void** save, void* load);
asm(R"(
.pushsection .text
.globl tessera_emulator_switch
.hidden tessera_emulator_switch
.type tessera_emulator_switch, @function
tessera_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tessera_emulator_switch, . - tessera_emulator_switch
.popsection
)");
#endif

namespace tessera::emulator {
namespace {

// Frames are several times as large under the sanitizers.
constexpr std::size_t usable_stack =
    sanitizer::address || sanitizer::thread ? std::size_t{256} << 10 : std::size_t{64} << 10;

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// The context from which the running one was entered; each OS thread runs its own contexts.
thread_local Context* previous = nullptr;
thread_local Context* running_context = nullptr;

}  // namespace

Context::Context() {
  adopt_calling_thread();
}

void Context::adopt_calling_thread() {
#if defined(TESSERA_EMULATOR_THREAD)
  sanitizer_thread_ = __tsan_get_current_fiber();
#endif
}

Context::Context(void (*entry)(), [[maybe_unused]] Identity identity)
    : stack_bytes_(usable_stack), entry_(entry) {
  const std::size_t guard = page_bytes();
  void* memory = mmap(nullptr, guard + usable_stack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<std::byte*>(memory);
  if (mprotect(memory, guard, PROT_NONE) != 0) {
    munmap(memory, guard + usable_stack);
    throw std::bad_alloc();
  }
  stack_ = mapping_ + guard;
#if defined(TESSERA_EMULATOR_THREAD)
  if (identity == Identity::own) sanitizer_thread_ = __tsan_create_fiber(0);
#endif
#if defined(__x86_64__)
  // The first switch pops this: six registers, the entry's address, and a null return address that
  // ends stack traces and leaves the stack as a call would.
  auto* top = reinterpret_cast<std::uintptr_t*>(mapping_ + guard + usable_stack);
  *--top = 0;
  *--top = reinterpret_cast<std::uintptr_t>(+[] {
    running_context->finish_switch();
    running_context->entry_();
  });
  for (int i = 0; i < 6; ++i) *--top = 0;
  stack_pointer_ = top;
#else
  getcontext(&native_);
  native_.uc_stack.ss_sp = mapping_ + guard;
  native_.uc_stack.ss_size = usable_stack;
  native_.uc_link = nullptr;
  makecontext(
      &native_,
      +[] {
        running_context->finish_switch();
        running_context->entry_();
      },
      0);
#endif
}

Context::~Context() {
  if (mapping_ == nullptr) return;
  close();
#if defined(TESSERA_EMULATOR_THREAD)
  if (sanitizer_thread_ != nullptr) __tsan_destroy_fiber(sanitizer_thread_);
#endif
  sanitizer::allow(stack_, stack_bytes_);  // another mapping may reuse the addresses
  munmap(mapping_, page_bytes() + usable_stack);
}

// The address sanitizer keeps a second stack for each stack. It frees the second one only when the
// code on the first says that it leaves for good.
void Context::close() {
#if defined(TESSERA_EMULATOR_ADDRESS)
  if (fake_stack_ == nullptr) return;
  Context here;
  closing_ = true;
  here.switch_to(*this);
#endif
}

void Context::switch_to(Context& to) {
  begin(to, &fake_stack_);
  jump(to);
  finish_switch();
  if (closing_) {
    Context& back = *previous;
    begin(back, nullptr);
    jump(back);
  }
}

void Context::begin([[maybe_unused]] Context& to, [[maybe_unused]] void** fake_stack) {
  previous = this;
  running_context = &to;
#if defined(TESSERA_EMULATOR_ADDRESS)
  __sanitizer_start_switch_fiber(fake_stack, to.stack_, to.stack_bytes_);
#endif
#if defined(TESSERA_EMULATOR_THREAD)
  if (to.sanitizer_thread_ != nullptr && to.sanitizer_thread_ != __tsan_get_current_fiber()) {
    __tsan_switch_to_fiber(to.sanitizer_thread_, __tsan_switch_to_fiber_no_sync);
  }
#endif
}

void Context::jump(Context& to) {
#if defined(__x86_64__)
  tessera_emulator_switch(&stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&native_, &to.native_);
#endif
}

void Context::finish_switch() {
#if defined(TESSERA_EMULATOR_ADDRESS)
  // This also yields the bounds of an OS thread's own stack.
  __sanitizer_finish_switch_fiber(fake_stack_, &previous->stack_, &previous->stack_bytes_);
#endif
}

}  // namespace tessera::emulator
