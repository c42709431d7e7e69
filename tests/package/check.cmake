# Installs BUILD_DIR into WORK_DIR/prefix, then configures, builds and runs the project OUTSIDE_DIR
# against it, with README's C++ program as main.cpp where README names the file. The outside project
# is kept from Eigen: users of the package do not need it.
function(run)
    execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
if(README)
    file(READ ${README} text)
    string(REGEX MATCH "\n```cpp\n(.*)" rest "${text}")
    set(rest "${CMAKE_MATCH_1}")
    string(FIND "${rest}" "\n```\n" end)
    if(end LESS 0)
        message(FATAL_ERROR "${README}: expected a block of C++, found none")
    endif()
    string(SUBSTRING "${rest}" 0 ${end} program)
    file(WRITE ${WORK_DIR}/source/main.cpp "${program}\n")
    file(COPY ${OUTSIDE_DIR}/CMakeLists.txt DESTINATION ${WORK_DIR}/source)
    set(OUTSIDE_DIR ${WORK_DIR}/source)
endif()
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --config ${CONFIG} --prefix ${WORK_DIR}/prefix)
run(${CMAKE_COMMAND} -S ${OUTSIDE_DIR} -B ${WORK_DIR}/build -G Ninja
    -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix -DCMAKE_CXX_COMPILER=${CXX_COMPILER}
    -DCMAKE_BUILD_TYPE=${CONFIG} -DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON -DOPENMOK_VERSION=${VERSION}
    -DCMAKE_FIND_PACKAGE_NO_PACKAGE_REGISTRY=ON)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
run(${WORK_DIR}/build/outside)
run(${WORK_DIR}/prefix/bin/mok --help)
