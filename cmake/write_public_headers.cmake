# Writes the headers HEADERS, and all headers that they include, from the repository SOURCE to DESTINATION/tessera, with
# `#include "engine/tensor.h"` changed to `#include <tessera/engine/tensor.h>`. Writes only files that differ, and
# removes headers that are no longer public.
#   cmake -D SOURCE=FOLDER -D DESTINATION=FOLDER [-D HEADERS=a.h,b.h] -P write_public_headers.cmake
# Without HEADERS it writes those of public_header_roots.cmake.
cmake_minimum_required(VERSION 3.25)

# A public header must not include these: the internals of the kernels and of the devices.
set(internal "-inl\\.h$|^emulator/|^kernels/(cpu|cuda)/|^engine/(cpu|cuda)/|^comm/(connect|control|mpi|nccl|nodes|shared|watch)/|^(launch|training|planner|logs|bench|cli)/")

# Every public header includes this first; `#if TESSERA_VERSION` needs no C++20.
set(first base/cpp20.h)
set(without_first ${first} version.h base/version.h)

if(NOT DEFINED HEADERS)
  include(${CMAKE_CURRENT_LIST_DIR}/public_header_roots.cmake)
  set(HEADERS ${tessera_public_roots})
endif()
string(REPLACE "," ";" waiting "${HEADERS}")
list(APPEND waiting ${first})
set(written)
while(waiting)
  list(POP_FRONT waiting header)
  string(REGEX REPLACE "^tessera/" "" place "${header}")
  if(place IN_LIST written)
    continue()
  endif()
  list(APPEND written ${place})
  if(header MATCHES "${internal}")
    message(FATAL_ERROR "${header} is internal, and a public header includes it")
  elseif(NOT EXISTS ${SOURCE}/${header})
    message(FATAL_ERROR "${header} is not a file of the repository, and a public header includes it")
  endif()

  file(READ ${SOURCE}/${header} text)
  string(REGEX MATCHALL "#include \"[^\"]+\"" included "${text}")
  list(TRANSFORM included REPLACE "#include \"([^\"]+)\"" "\\1")
  list(APPEND waiting ${included})
  string(REGEX REPLACE "#include \"(tessera/)?([^\"]+)\"" "#include <tessera/\\2>" text "${text}")
  if(NOT place IN_LIST without_first)
    string(REPLACE "#pragma once\n" "#pragma once\n\n#include <tessera/${first}>\n" text "${text}")
  endif()
  set(public ${DESTINATION}/tessera/${place})
  set(before)
  if(EXISTS ${public})
    file(READ ${public} before)
  endif()
  if(NOT text STREQUAL before)
    file(WRITE ${public} "${text}")
  endif()
endwhile()

file(GLOB_RECURSE present RELATIVE ${DESTINATION}/tessera ${DESTINATION}/tessera/*)
foreach(header IN LISTS present)
  if(NOT header IN_LIST written)
    file(REMOVE ${DESTINATION}/tessera/${header})
  endif()
endforeach()
