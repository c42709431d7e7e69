# The CUDA parts: a library mok_cuda of src/kernels, src/arch and src/comm/cuda's kernels, compiled for MOK_ARCHS.
# MOK_HAS_CUDA says whether it was made.
set(MOK_CUDA AUTO CACHE STRING
    "CUDA parts: AUTO (where a toolkit and sources are found), ON (both are demanded), OFF")
set_property(CACHE MOK_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT MOK_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "MOK_CUDA: expected AUTO, ON or OFF, found '${MOK_CUDA}'")
endif()

# GPU architectures: 90a is Hopper (H100, H200), 100a and 103a are Blackwell (B200 and GB200, B300 and GB300). The
# passes' kernels use instructions that no other has. One binary holds all of them.
set(MOK_ARCHS "90a;100a;103a" CACHE STRING "GPU architectures of the CUDA parts: some of 90a, 100a, 103a")
foreach(arch ${MOK_ARCHS})
    if(NOT arch MATCHES "^(90a|100a|103a)$")
        message(FATAL_ERROR "MOK_ARCHS: expected some of 90a, 100a, 103a, found '${MOK_ARCHS}'")
    endif()
endforeach()
if(NOT MOK_ARCHS)
    message(FATAL_ERROR "MOK_ARCHS: expected some of 90a, 100a, 103a, found none")
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
    list(TRANSFORM MOK_ARCHS APPEND -real OUTPUT_VARIABLE MOK_REAL_ARCHS)
    set(CMAKE_CUDA_ARCHITECTURES ${MOK_REAL_ARCHS})
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

    message(STATUS "CUDA parts: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, ${MOK_ARCHS}")

    add_library(mok_cuda_flags INTERFACE)
    target_include_directories(mok_cuda_flags INTERFACE ${PROJECT_SOURCE_DIR}/include
        ${PROJECT_SOURCE_DIR}/src)
    # The device may call what the standard library has as constexpr, std::bit_cast above all.
    target_compile_options(mok_cuda_flags INTERFACE
        $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
    foreach(arch ${MOK_ARCHS})
        string(TOUPPER MOK_HAS_SM_${arch} name)
        target_compile_definitions(mok_cuda_flags INTERFACE ${name})
    endforeach()

    # The kernels of the passes are written for one family of architectures and compiled for it alone, everything else
    # for all of MOK_ARCHS.
    set(MOK_HOPPER_SOURCES ${MOK_CUDA_SOURCES})
    set(MOK_BLACKWELL_SOURCES ${MOK_CUDA_SOURCES})
    list(FILTER MOK_HOPPER_SOURCES INCLUDE
        REGEX "/kernels/(forward|backward|fp8_forward|fp8_backward|mxfp8_forward|mxfp8_backward)[.]cu$")
    list(FILTER MOK_BLACKWELL_SOURCES INCLUDE REGEX "/kernels/[a-z0-9_]*_blackwell(_pair)?[.]cu$")
    list(REMOVE_ITEM MOK_CUDA_SOURCES ${MOK_HOPPER_SOURCES} ${MOK_BLACKWELL_SOURCES})
    set(MOK_HOPPER_ARCHS ${MOK_REAL_ARCHS})
    set(MOK_BLACKWELL_ARCHS ${MOK_REAL_ARCHS})
    list(FILTER MOK_HOPPER_ARCHS INCLUDE REGEX "^90a")
    list(FILTER MOK_BLACKWELL_ARCHS INCLUDE REGEX "^10")
    add_library(mok_cuda STATIC ${MOK_CUDA_SOURCES})
    set(MOK_CUDA_TARGETS mok_cuda)
    foreach(family HOPPER BLACKWELL)
        if(NOT MOK_${family}_ARCHS)
            continue()
        endif()
        string(TOLOWER mok_cuda_${family} target)
        add_library(${target} OBJECT ${MOK_${family}_SOURCES})
        set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${MOK_${family}_ARCHS}")
        target_link_libraries(${target} PRIVATE mok_cuda_flags)
        target_sources(mok_cuda PRIVATE $<TARGET_OBJECTS:${target}>)
        list(APPEND MOK_CUDA_TARGETS ${target})
    endforeach()
    set_target_properties(${MOK_CUDA_TARGETS} PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
        CUDA_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(mok_cuda PUBLIC $<BUILD_INTERFACE:mok_cuda_flags> CUDA::cudart_static)

    # Every header of these folders compiles alone, as headers_alone has it for the rest. One architecture will do: of
    # a header alone no code is made.
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
    list(GET MOK_REAL_ARCHS 0 arch)
    set_target_properties(cuda_headers_alone PROPERTIES CUDA_ARCHITECTURES ${arch}
        CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF)
    target_link_libraries(cuda_headers_alone PRIVATE mok_cuda)
endif()
