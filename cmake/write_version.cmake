# Writes OUTPUT from INPUT with the version, the commit and the processor that the build is for. Run
# at every build: the commit changes without a new configuration. The file is touched only where its
# text changes.
find_program(GIT git)
set(MOK_COMMIT "unknown")
if(GIT AND EXISTS ${SOURCE_DIR}/.git)
    execute_process(COMMAND ${GIT} describe --always --dirty --abbrev=12 --exclude=*
        WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE described RESULT_VARIABLE failed
        ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT failed)
        set(MOK_COMMIT ${described})
    endif()
endif()
configure_file(${INPUT} ${OUTPUT} @ONLY)
