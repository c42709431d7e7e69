# The CUDA parts: a library mok_cuda of src/kernels, src/arch and src/comm/cuda's kernels, compiled for MOK_CUDA_ARCHITECTURES.
# MOK_HAS_CUDA says whether it was made.
set(MOK_CUDA AUTO CACHE STRING
    "CUDA parts: AUTO (where a toolkit and sources are found), ON (both are demanded), OFF")
set_property(CACHE MOK_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT MOK_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "MOK_CUDA: expected AUTO, ON or OFF, found '${MOK_CUDA}'")
endif()

file(GLOB MOK_CUDA_SOURCES CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/src/kernels/*.cu ${PROJECT_SOURCE_DIR}/src/kernels/*.cpp
    ${PROJECT_SOURCE_DIR}/src/arch/*.cu ${PROJECT_SOURCE_DIR}/src/arch/*.cpp
    ${PROJECT_SOURCE_DIR}/src/comm/cuda/*.cu)
find_program(MOK_NVCC nvcc HINTS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
if(MOK_NVCC)
    execute_process(COMMAND ${MOK_NVCC} --version OUTPUT_VARIABLE version)
    string(REGEX MATCH "release ([0-9.]+)" version "${version}")
    set(version ${CMAKE_MATCH_1})
endif()
# The oldest that the CUDA parts have been compiled with.
set(MOK_CUDA_OLDEST 13.0)
set(MOK_HAS_CUDA OFF)
if(MOK_CUDA STREQUAL "OFF")
    message(STATUS "CUDA parts: off")
elseif(MOK_CUDA_SOURCES AND MOK_NVCC AND version VERSION_GREATER_EQUAL MOK_CUDA_OLDEST)
    set(MOK_HAS_CUDA ON)
elseif(MOK_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MOK_CUDA=ON needs nvcc ${MOK_CUDA_OLDEST} or later (found: ${MOK_NVCC} "
        "${version}) and files in src/kernels (found: ${MOK_CUDA_SOURCES})")
elseif(MOK_CUDA_SOURCES)
    message(STATUS "CUDA parts: not built, they need nvcc ${MOK_CUDA_OLDEST} or later on PATH or in "
        "/usr/local/cuda/bin (found: ${MOK_NVCC} ${version})")
else()
    message(STATUS "CUDA parts: none in this tree")
endif()

if(MOK_HAS_CUDA)
    set(CMAKE_CUDA_COMPILER ${MOK_NVCC})
    # Hopper; the kernels use instructions that no other architecture has.
    set(MOK_CUDA_ARCHITECTURES 90a-real CACHE STRING "Architectures of the CUDA parts")
    set(CMAKE_CUDA_ARCHITECTURES ${MOK_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    # nvcc knows C++20 since 12.0, but CMake 3.25 does not know that it does.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    endif()
    find_package(CUDAToolkit REQUIRED)

    # Windows between processes need NCCL's headers; the library itself is opened at run time.
    find_path(MOK_NCCL_INCLUDE nccl_device.h PATHS ${CUDAToolkit_INCLUDE_DIRS})
    if(MOK_NCCL_INCLUDE)
        set(MOK_NCCL_EXCLUDED "/no_nccl[.]cpp$")
        file(STRINGS ${MOK_NCCL_INCLUDE}/nccl.h numbers
            REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
        list(TRANSFORM numbers REPLACE "^#define NCCL_[A-Z]+ +([0-9]+).*" "\\1")
        list(JOIN numbers . MOK_NCCL_VERSION)
    else()
        set(MOK_NCCL_EXCLUDED "/(nccl_(api|communicator|memory)[.]cpp|nccl_(api|communicator)[.]h|window_pointers[.](cu|h))$")
        message(STATUS "CUDA parts: without windows between processes, for nccl_device.h (NCCL "
            "2.28 or later) is not found")
    endif()
    list(FILTER MOK_CUDA_SOURCES EXCLUDE REGEX "${MOK_NCCL_EXCLUDED}")

    message(STATUS "CUDA parts: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, ${MOK_CUDA_ARCHITECTURES}")

    add_library(mok_cuda STATIC ${MOK_CUDA_SOURCES})
    set_target_properties(mok_cuda PROPERTIES CUDA_ARCHITECTURES "${MOK_CUDA_ARCHITECTURES}"
        CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
    target_include_directories(mok_cuda PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
    # The device may call what the standard library has as constexpr, std::bit_cast above all.
    target_compile_options(mok_cuda PUBLIC
        $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
    target_link_libraries(mok_cuda PUBLIC CUDA::cudart_static)

    # Every header of these folders compiles alone, as headers_alone has it for the rest.
    file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
        src/kernels/*.h src/kernels/*.cuh src/arch/*.h src/arch/*.cuh src/comm/cuda/*.h)
    list(FILTER headers EXCLUDE REGEX "${MOK_NCCL_EXCLUDED}")
    set(sources)
    foreach(header ${headers})
        string(MAKE_C_IDENTIFIER ${header} name)
        set(source ${PROJECT_BINARY_DIR}/headers_alone/${name}.cu)
        file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${PROJECT_SOURCE_DIR}/${header}\"
#include \"${PROJECT_SOURCE_DIR}/${header}\"\n")
        list(APPEND sources ${source})
    endforeach()
    add_library(cuda_headers_alone OBJECT ${sources})
    set_target_properties(cuda_headers_alone PROPERTIES CUDA_STANDARD 20
        CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF)
    target_link_libraries(cuda_headers_alone PRIVATE mok_cuda)
endif()
