# Sets tessera_public_roots, with commas, from the repository SOURCE: these headers are public, and the headers that they
# include. Also read without a build, by write_public_headers.cmake.
if(CMAKE_SCRIPT_MODE_FILE)
  set(watch)
else()
  set(watch CONFIGURE_DEPENDS)
endif()
file(GLOB_RECURSE tessera_public_roots RELATIVE ${SOURCE} ${watch}
     ${SOURCE}/tessera/*.h ${SOURCE}/models/*.h ${SOURCE}/engine/data/*.h)
list(APPEND tessera_public_roots
     base/parallel.h tasks/evaluators.h tasks/losses/distillation.h tasks/sentence_losses.h tokenizers/load.h)
list(JOIN tessera_public_roots "," tessera_public_roots)
