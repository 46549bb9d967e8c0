# Decides whether the CUDA device is built (sets TESSERA_CUDA to ON or OFF), and finds CUDA's headers, which the
# emulator of the tests needs (TESSERA_CUDA_HEADERS; empty if there are none).
find_program(TESSERA_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(TESSERA_CUDA STREQUAL "AUTO")
  # The sanitizers check host code: the emulator runs the kernels there.
  if(TESSERA_NVCC AND NOT TESSERA_SANITIZE)
    set(TESSERA_CUDA ON)
  else()
    set(TESSERA_CUDA OFF)
  endif()
endif()
if(TESSERA_CUDA)
  if(NOT TESSERA_NVCC)
    message(FATAL_ERROR "TESSERA_CUDA is ON and nvcc is not found: install the CUDA Toolkit, set CUDA_HOME, or configure "
                        "with -DTESSERA_CUDA=OFF")
  endif()
  # Variables of this folder, not of the cache: a parent project has its own.
  set(CMAKE_CUDA_COMPILER ${TESSERA_NVCC})
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90)  # the preset release-gpu has all architectures that the kernels support
  endif()
  if(TESSERA_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${TESSERA_CCACHE})
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
endif()

cmake_path(GET TESSERA_NVCC PARENT_PATH tessera_nvcc_folder)
find_path(TESSERA_CUDA_HEADERS cuda_runtime_api.h
          HINTS ENV CUDA_HOME ${tessera_nvcc_folder}/.. PATHS /usr/local/cuda PATH_SUFFIXES include)
if(NOT TESSERA_CUDA_HEADERS)
  set(TESSERA_CUDA_HEADERS "")
endif()
message(STATUS "CUDA device: ${TESSERA_CUDA}; CUDA's headers: ${TESSERA_CUDA_HEADERS}")
