# The tests of tests/cuda for a real GPU: the object files of cuda_tests, linked with the library that has the real device.
# Built only on request (scripts/gpu-compile, scripts/gpu-pack); scripts/gpu-check runs it.
add_executable(gpu_tests EXCLUDE_FROM_ALL $<FILTER:$<TARGET_OBJECTS:cuda_tests>,EXCLUDE,removed_wait_test>
                         cuda/real_device.cpp ${tessera_cuda_support} ${tessera_support_sources})
target_include_directories(gpu_tests PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(gpu_tests SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(gpu_tests PRIVATE tessera tessera_settings GTest::gtest)
