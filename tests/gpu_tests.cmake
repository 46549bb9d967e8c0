# The tests of tests/cuda for a real GPU: the object files of cuda_tests, linked with the library that has the real device.
# Built only on request (scripts/gpu-compile, scripts/gpu-pack); scripts/gpu-check runs it.
add_executable(gpu_tests EXCLUDE_FROM_ALL $<FILTER:$<TARGET_OBJECTS:cuda_tests>,EXCLUDE,removed_wait_test>
                         cuda/real_device.cpp ${tessera_cuda_support} ${tessera_support_sources})
target_include_directories(gpu_tests PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(gpu_tests SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(gpu_tests PRIVATE tessera tessera_settings GTest::gtest)

# One file of kernels for the other GPUs: checks that it compiles with gpu.h and that registers suffice there.
add_library(gpu_architectures OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/kernels/cuda/attention/attention_forward_bfloat16.cu)
set_target_properties(gpu_architectures PROPERTIES CUDA_ARCHITECTURES "80;100;120")
target_include_directories(gpu_architectures PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_options(gpu_architectures PRIVATE $<TARGET_PROPERTY:tessera_cuda_kernels,COMPILE_OPTIONS>)
