# The CUDA parts: a library mok_cuda of every .cu below src/, compiled for each architecture of
# MOK_CUDA_ARCHITECTURES that the toolkit knows. MOK_HAS_CUDA says whether it was made.
set(MOK_CUDA AUTO CACHE STRING
    "CUDA parts: AUTO (where a toolkit and sources are found), ON (both are demanded), OFF")
set_property(CACHE MOK_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT MOK_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "MOK_CUDA: expected AUTO, ON or OFF, found '${MOK_CUDA}'")
endif()

file(GLOB MOK_CUDA_SOURCES CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/src/kernels/*.cu ${PROJECT_SOURCE_DIR}/src/arch/*.cu
    ${PROJECT_SOURCE_DIR}/src/comm/*.cu)
find_program(MOK_NVCC nvcc HINTS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
set(MOK_HAS_CUDA OFF)
if(MOK_CUDA STREQUAL "OFF")
    message(STATUS "CUDA parts: off")
elseif(MOK_CUDA_SOURCES AND MOK_NVCC)
    set(MOK_HAS_CUDA ON)
elseif(MOK_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MOK_CUDA=ON needs nvcc (found: ${MOK_NVCC}) and .cu files in src/kernels "
        "(found: ${MOK_CUDA_SOURCES})")
elseif(MOK_CUDA_SOURCES)
    message(STATUS "CUDA parts: not built, no nvcc on PATH or in /usr/local/cuda/bin")
else()
    message(STATUS "CUDA parts: none in this tree")
endif()

if(MOK_HAS_CUDA)
    set(CMAKE_CUDA_COMPILER ${MOK_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
    enable_language(CUDA)
    # nvcc knows C++20 since 12.0, but CMake 3.25 does not know that it does.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    endif()
    find_package(CUDAToolkit REQUIRED)

    # First toolkit of each: sm_90a 12.0, sm_100a 12.8, sm_103a 12.9 (CUDA release notes).
    set(architectures 90a-real)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
        list(APPEND architectures 100a-real)
    endif()
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.9)
        list(APPEND architectures 103a-real)
    endif()
    set(MOK_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "Architectures of the CUDA parts")
    message(STATUS "CUDA parts: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, ${MOK_CUDA_ARCHITECTURES}")

    add_library(mok_cuda STATIC ${MOK_CUDA_SOURCES})
    set_target_properties(mok_cuda PROPERTIES CUDA_ARCHITECTURES "${MOK_CUDA_ARCHITECTURES}"
        CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
    target_include_directories(mok_cuda PUBLIC ${PROJECT_SOURCE_DIR}/include
        ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(mok_cuda PUBLIC CUDA::cudart_static)
endif()
