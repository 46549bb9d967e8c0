# The headers for users of the library, in <build>/include/tessera: a build writes them again when a header has changed.
# In the repository headers name each other by their path from its root. Users with an own folder `engine` would get
# their own files. So these copies name each other by <tessera/engine/...> (write_public_headers.cmake).
set(tessera_public_include ${PROJECT_BINARY_DIR}/include)

set(SOURCE ${PROJECT_SOURCE_DIR})
include(${CMAKE_CURRENT_LIST_DIR}/public_header_roots.cmake)
unset(SOURCE)

set(tessera_write_public_headers ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D DESTINATION=${tessera_public_include}
    -D HEADERS=${tessera_public_roots} -P ${PROJECT_SOURCE_DIR}/cmake/write_public_headers.cmake)
# Once at configuration, for editors and clang-tidy, which need no build.
execute_process(COMMAND ${tessera_write_public_headers} COMMAND_ERROR_IS_FATAL ANY)

set(tessera_public_floors base kernels engine comm sharding checkpoint tokenizers models tasks trainer tessera)
list(TRANSFORM tessera_public_floors REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/\\1/*.h" OUTPUT_VARIABLE tessera_header_patterns)
file(GLOB_RECURSE tessera_headers CONFIGURE_DEPENDS ${tessera_header_patterns})
set(tessera_public_stamp ${PROJECT_BINARY_DIR}/public_headers.stamp)
add_custom_command(OUTPUT ${tessera_public_stamp}
  COMMAND ${tessera_write_public_headers}
  COMMAND ${CMAKE_COMMAND} -E touch ${tessera_public_stamp}
  DEPENDS ${tessera_headers} ${PROJECT_SOURCE_DIR}/cmake/write_public_headers.cmake
  COMMENT "Writing the public headers" VERBATIM)
add_custom_target(tessera_public_headers DEPENDS ${tessera_public_stamp})
