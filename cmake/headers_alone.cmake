# Every header compiles alone: one source per header that includes nothing else, and includes it
# twice. Headers that need nvcc or the CUDA runtime are left to the CUDA build.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
    ${PROJECT_SOURCE_DIR}/include/*.h ${PROJECT_SOURCE_DIR}/src/*.h
    ${PROJECT_SOURCE_DIR}/tests/*.h ${PROJECT_SOURCE_DIR}/bench/*.h)
list(FILTER headers EXCLUDE REGEX "^(src/kernels|src/arch|src/comm/cuda|tests/gpu)/")
if(NOT MOK_HAS_CUDA)
    list(FILTER headers EXCLUDE REGEX "^(src/layer|src/cli/bench)/cuda_")
endif()
set(sources)
foreach(header ${headers})
    string(MAKE_C_IDENTIFIER ${header} name)
    set(source ${PROJECT_BINARY_DIR}/headers_alone/${name}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${PROJECT_SOURCE_DIR}/${header}\"
#include \"${PROJECT_SOURCE_DIR}/${header}\"\n")
    list(APPEND sources ${source})
endforeach()
add_library(headers_alone OBJECT ${sources})
target_include_directories(headers_alone PRIVATE ${PROJECT_SOURCE_DIR}/src
    ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/bench)
target_link_libraries(headers_alone PRIVATE mok_io openmok mok_flags Eigen3::Eigen
    OpenSSL::Crypto CLI11::CLI11 GTest::gtest)
if(MOK_HAS_CUDA)
    target_link_libraries(headers_alone PRIVATE mok_cuda)
endif()
# What tests/CMakeLists.txt tells every test program.
target_compile_definitions(headers_alone PRIVATE
    MOK_SOURCE_DIR="${PROJECT_SOURCE_DIR}" MOK_PROGRAM="mok")
