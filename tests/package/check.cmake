# Installs BUILD_DIR into WORK_DIR/prefix, then configures, builds and runs the outside program
# against it. The outside project is kept from Eigen: users of the package do not need it.
function(run)
    execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --config ${CONFIG} --prefix ${WORK_DIR}/prefix)
run(${CMAKE_COMMAND} -S ${OUTSIDE_DIR} -B ${WORK_DIR}/build -G Ninja
    -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix -DCMAKE_CXX_COMPILER=${CXX_COMPILER}
    -DCMAKE_BUILD_TYPE=${CONFIG} -DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON -DOPENMOK_VERSION=${VERSION}
    -DCMAKE_FIND_PACKAGE_NO_PACKAGE_REGISTRY=ON)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
run(${WORK_DIR}/build/outside)
run(${WORK_DIR}/prefix/bin/mok --help)
