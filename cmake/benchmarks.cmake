# Every bench/programs/*_bench.cpp is a program of that name.
file(GLOB tessera_benchmarks CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/programs/*_bench.cpp)
if(NOT TESSERA_CUDA)
  list(FILTER tessera_benchmarks EXCLUDE REGEX "/cuda_kernels_bench\\.cpp$")  # it calls CUDA itself
endif()
foreach(source IN LISTS tessera_benchmarks)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE tessera_bare_products tessera tessera_settings DNNL::dnnl OpenMP::OpenMP_CXX)
  if(name STREQUAL "cuda_kernels_bench")
    target_link_libraries(${name} PRIVATE CUDA::cudart_static)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  list(APPEND tessera_benchmark_programs $<TARGET_FILE:${name}>)
endforeach()
if(TESSERA_TESTS AND NOT TESSERA_SANITIZE)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_test(NAME consumer/benchmark_options
           COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tests/consumer/benchmark_options_test.py
                   ${tessera_benchmark_programs})
  set_tests_properties(consumer/benchmark_options PROPERTIES LABELS "consumer;quick" TIMEOUT 60 PROCESSORS 4)
endif()

# bench/kernels is one program and needs Google Benchmark, which nothing else uses.
find_package(benchmark CONFIG QUIET)
if(NOT benchmark_FOUND)
  message(STATUS "Google Benchmark (libbenchmark-dev) is missing: without the program kernels_bench")
  return()
endif()
file(GLOB tessera_kernels_bench CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/kernels/*.cpp)
tessera_together(tessera_kernels_bench kernels_bench 5)
add_executable(kernels_bench ${tessera_kernels_bench})
target_link_libraries(kernels_bench PRIVATE tessera_bare_products tessera tessera_settings benchmark::benchmark)
set_target_properties(kernels_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
if(TESSERA_TESTS AND NOT TESSERA_SANITIZE)
  # Checking the names of all rows takes a second; running each row once takes half a minute.
  foreach(part IN ITEMS "Names;quick" "Runs;longer")
    list(GET part 0 class)
    list(GET part 1 label)
    string(TOLOWER ${class} name)
    add_test(NAME kernels/benchmark_${name}
             COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tests/kernels/benchmark_rows_test.py
                     $<TARGET_FILE:kernels_bench> ${PROJECT_SOURCE_DIR} ${class})
    set_tests_properties(kernels/benchmark_${name} PROPERTIES LABELS "kernels;${label}" TIMEOUT 300 PROCESSORS 6)
  endforeach()
endif()
