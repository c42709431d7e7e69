# Writes OUTPUT, the source of build_commit(), where the commit of SOURCE_DIR has changed.
execute_process(
    COMMAND git describe --always --dirty --abbrev=40 --exclude=*
    WORKING_DIRECTORY ${SOURCE_DIR}
    OUTPUT_VARIABLE MOK_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT MOK_COMMIT)
    set(MOK_COMMIT "unknown")
endif()
configure_file(${SOURCE_DIR}/src/cli/bench/commit.cpp.in ${OUTPUT} @ONLY)
