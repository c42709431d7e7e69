# `cmake --install`: the program, the library, its headers, and what find_package(openmok) reads.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(MOK_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/openmok)
install(TARGETS mok RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS openmok EXPORT openmok ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(MOK_HAS_CUDA)
    install(TARGETS mok_cuda EXPORT openmok ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/openmok DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/bench/peers DESTINATION ${CMAKE_INSTALL_DATADIR}/openmok
    FILES_MATCHING PATTERN "*.py" PATTERN "__pycache__" EXCLUDE)
install(EXPORT openmok NAMESPACE openmok:: FILE openmok-targets.cmake
    DESTINATION ${MOK_PACKAGE_DIR})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/openmok-config.cmake.in
    ${PROJECT_BINARY_DIR}/openmok-config.cmake INSTALL_DESTINATION ${MOK_PACKAGE_DIR}
    NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/openmok-config-version.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/openmok-config.cmake
    ${PROJECT_BINARY_DIR}/openmok-config-version.cmake DESTINATION ${MOK_PACKAGE_DIR})
