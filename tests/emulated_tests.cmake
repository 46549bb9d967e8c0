# The tests of the emulated GPU (tests/cuda, tests/emulator). A test of kernels/cuda/*/<name> becomes several, one for each
# schedule of the GPU's threads; a test of the device, one for each order of its queues that shows something.
file(GLOB_RECURSE tessera_cuda_support CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*_testing.cpp)
add_library(tessera_cuda_test_support STATIC ${tessera_cuda_support} cuda/emulated_device.cpp ${tessera_support_sources})
target_include_directories(tessera_cuda_test_support PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(tessera_cuda_test_support PUBLIC tessera_emulated GTest::gtest)

# One schedule is enough under a sanitizer, whose verdict hardly depends on it.
set(tessera_schedules forward reverse random:1)
set(tessera_test_build plain)
if(TESSERA_SANITIZE MATCHES "address")
  set(tessera_schedules random:2)
  set(tessera_test_build address)
elseif(TESSERA_SANITIZE MATCHES "thread")
  set(tessera_schedules random:3)
  set(tessera_test_build thread)
endif()
set(tessera_emulated_environment
    "TESSERA_TEST_BUILD=${tessera_test_build}" "TESSERA_EMULATOR_MEMORY=268435456"
    "TESSERA_KERNEL_REPORT=${CMAKE_BINARY_DIR}/kernel-report.jsonl")

# tessera_add_emulated_test(TEST ENVIRONMENT COMMAND...)
function(tessera_add_emulated_test test environment)
  tessera_add_test(${test} ${ARGN})
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT ${tessera_emulated_environment} ${environment})
endfunction()

# A kernel's test, in every schedule. Under the thread sanitizer it looks for races of a block's threads.
function(tessera_kernel_tests name)
  foreach(schedule IN LISTS tessera_schedules)
    set(environment "TESSERA_EMULATOR_SCHEDULE=${schedule}")
    if(TESSERA_SANITIZE MATCHES "thread")
      list(APPEND environment "TESSERA_EMULATOR_THREADS=2")
    endif()
    string(REPLACE ":" "_" suffix ${schedule})
    tessera_add_emulated_test(cuda/${name}.${suffix} "${environment}" cuda_tests ${name})
  endforeach()
endfunction()

# Each removed wait is found by the access checker, in queues that have done nothing which was not waited for. Under the
# thread sanitizer each is a run of its own, which must end with the sanitizer's report; the run without one must not.
function(tessera_removed_wait_tests)
  if(NOT TESSERA_SANITIZE MATCHES "thread")
    tessera_add_emulated_test(cuda/removed_wait_test "TESSERA_EMULATOR_STREAMS=lazy" cuda_tests removed_wait_test)
    return()
  endif()
  foreach(wait IN ITEMS none compute_for_gather gather_for_compute reduce_for_compute compute_for_reduce
               all_reduce_for_reduce compute_for_all_reduce reduce_for_all_reduce)
    set(test cuda/removed_wait.${wait})
    if(wait STREQUAL "none")
      set(filter RemovedWait.NoneIsMissing)
    else()
      set(filter *IsFound/${wait})
    endif()
    tessera_add_emulated_test(${test} "TESSERA_EMULATOR_RACES=streams" cuda_tests --gtest_filter=${filter})
    if(NOT wait STREQUAL "none")
      set_tests_properties(${test} PROPERTIES PASS_REGULAR_EXPRESSION "ThreadSanitizer: data race")
    endif()
  endforeach()
endfunction()

# A test of the device, its queues or the emulator. Tests of the device run with the access checker on; under the thread
# sanitizer they look for races of streams instead.
function(tessera_device_tests floor name)
  set(environment)
  if(TESSERA_SANITIZE MATCHES "thread")
    if(floor STREQUAL "cuda")
      list(APPEND environment "TESSERA_EMULATOR_RACES=streams")
    else()
      list(APPEND environment "TESSERA_EMULATOR_THREADS=2")
    endif()
  elseif(floor STREQUAL "cuda")
    list(APPEND environment "TESSERA_EMULATOR_CHECK=halt")
  endif()
  if(name STREQUAL "engine_device_test")
    list(APPEND environment "TESSERA_EMULATOR_DEVICES=2")  # it looks at all of them
  endif()
  if(name STREQUAL "comm_device_test")
    list(APPEND environment "TESSERA_EMULATOR_MEMORY=1073741824")  # it fills most of its arena
  endif()
  # Queues of a GPU may run in any order that their waits allow: those that show the most.
  set(orders threads)
  if(name MATCHES "^(strategies|comm_device|runtime_streams)_test$" AND NOT TESSERA_SANITIZE)
    set(orders threads lazy seeded:7)
  elseif(name MATCHES "^(offload_device|activation_offload)_test$" AND NOT TESSERA_SANITIZE)
    set(orders threads lazy)  # whose waits are those of the strategies, and copies that are late
  elseif(name MATCHES "^(access_checker|cublas_lt)_test$" AND TESSERA_SANITIZE MATCHES "thread")
    set(orders inline)  # what they leave unordered for the checker to find must not be a race
  endif()
  foreach(order IN LISTS orders)
    set(test ${floor}/${name})
    if(NOT order STREQUAL "threads")
      string(REPLACE ":" "_" suffix ${order})
      string(APPEND test ".${suffix}")
    endif()
    tessera_add_emulated_test(${test} "${environment};TESSERA_EMULATOR_STREAMS=${order}" ${floor}_tests ${name})
  endforeach()
endfunction()

foreach(floor IN ITEMS cuda emulator)
  tessera_find_tests(${floor})
  if(NOT tessera_test_sources)
    continue()
  endif()
  # Not compiled together with others: it asks the emulator to drop waits, and is not a test of a real GPU.
  set(alone ${tessera_test_sources})
  list(FILTER alone INCLUDE REGEX "/removed_wait_test\\.cpp$")
  set(all ${tessera_test_sources})
  list(FILTER tessera_test_sources EXCLUDE REGEX "/removed_wait_test\\.cpp$")
  tessera_test_program(${floor}_tests tessera_cuda_test_support)
  target_sources(${floor}_tests PRIVATE ${alone})
  set(tessera_test_sources ${all})
  if(floor STREQUAL "emulator")
    target_compile_definitions(emulator_tests PRIVATE TESSERA_EMULATED)  # kernels of its own
  endif()
  foreach(source IN LISTS tessera_test_sources)
    cmake_path(GET source STEM name)
    string(REGEX REPLACE "_test$" "" subject ${name})
    file(GLOB kernel ${PROJECT_SOURCE_DIR}/kernels/cuda/*/${subject}.cu ${PROJECT_SOURCE_DIR}/kernels/cuda/*/${subject}.cpp)
    if(name STREQUAL "removed_wait_test")
      tessera_removed_wait_tests()
    elseif(floor STREQUAL "cuda" AND kernel)
      tessera_kernel_tests(${name})
    else()
      tessera_device_tests(${floor} ${name})
    endif()
  endforeach()
endforeach()

# Programs with planted bugs, and the tests that count which of them are found in this build. The address sanitizer has
# nothing to say of streams.
foreach(kind IN ITEMS kernel stream)
  set(test emulator/planted_${kind}_bugs)
  if(TESSERA_TEST_FILTER AND NOT test MATCHES "${TESSERA_TEST_FILTER}")
    continue()
  endif()
  if(kind STREQUAL "stream" AND tessera_test_build STREQUAL "address")
    continue()
  endif()
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/emulator/planted_${kind}_bugs.cu)
  set_source_files_properties(${source} PROPERTIES LANGUAGE CXX)
  add_executable(planted_${kind}_bugs ${source})
  target_include_directories(planted_${kind}_bugs PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(planted_${kind}_bugs PRIVATE tessera_emulated tessera_settings)
  target_compile_definitions(planted_${kind}_bugs PRIVATE TESSERA_EMULATED)
  set_target_properties(planted_${kind}_bugs PROPERTIES TESSERA_OPTIMISATION -O1)
  set(script planted_bugs_test.py)
  if(kind STREQUAL "stream")
    set(script planted_stream_bugs_test.py)
  endif()
  add_test(NAME ${test} COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/emulator/${script}
                                --${tessera_test_build} $<TARGET_FILE:planted_${kind}_bugs>)
  set_tests_properties(${test} PROPERTIES LABELS "emulator;quick" TIMEOUT ${tessera_slow_timeout})
endforeach()

# What scripts/gpu-check runs on a GPU, over the emulator, in <build>/emulated: the same object files again.
if(TARGET tessera_program AND TARGET cuda_tests AND TESSERA_BENCHMARKS AND NOT TESSERA_SANITIZE)
  function(tessera_emulated_program name)
    add_executable(emulated_${name} ${ARGN})
    target_link_libraries(emulated_${name} PRIVATE tessera_emulated tessera_settings)
    set_target_properties(emulated_${name} PROPERTIES OUTPUT_NAME ${name}
                          RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/emulated)
  endfunction()
  tessera_emulated_program(tessera $<TARGET_OBJECTS:tessera_program>)
  foreach(floor IN LISTS tessera_program_floors)
    target_sources(emulated_tessera PRIVATE $<TARGET_OBJECTS:tessera_${floor}>)
  endforeach()
  target_sources(emulated_tessera PRIVATE $<TARGET_OBJECTS:tessera_bare_products>)
  target_link_libraries(emulated_tessera PRIVATE yaml-cpp)
  tessera_emulated_program(cuda_training_bench $<TARGET_OBJECTS:cuda_training_bench>)
endif()

# The scripts for GPU machines: their own machinery, and the pack in an empty root.
if(NOT TESSERA_SANITIZE AND CMAKE_BINARY_DIR STREQUAL "${PROJECT_SOURCE_DIR}/build")
  add_test(NAME cuda/gpu_check
           COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu_check_test.py)
  set_tests_properties(cuda/gpu_check PROPERTIES LABELS "cuda;longer" TIMEOUT 120)
  # Skipped without cuobjdump and nvdisasm; scripts/gpu-compile runs it with them.
  add_test(NAME cuda/kernel_code
           COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernel_code_test.py)
  set_tests_properties(cuda/kernel_code PROPERTIES LABELS "cuda;longer" TIMEOUT 300 SKIP_RETURN_CODE 77)
  if(TARGET emulated_tessera)
    add_test(NAME cuda/gpu_pack
             COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu_pack_test.py)
    set_tests_properties(cuda/gpu_pack PROPERTIES LABELS "cuda;slow" TIMEOUT 600)
  endif()
endif()
