# A test program says in a line of its own file which sanitizer jobs run it:
#     // Sanitizers: asan tsan
#   asan  (ASan and UBSan) where it indexes, parses or copies memory by numbers that come from
#         outside or from plan, and takes at most a minute without sanitizers;
#   tsan  (ThreadSanitizer) where it runs several threads: executor, signals, barriers, faults.
# The jobs (`make sanitize`) build these programs only, and take 20 minutes together at most.
add_custom_target(asan_tests)
add_custom_target(tsan_tests)

# Sets `out` to the labels of the program `name`, "", "asan", "tsan" or "asan+tsan", and makes it
# part of their targets. One string, for a list does not survive the discovery of tests; `ctest -L
# asan` finds it in "asan+tsan".
function(mok_label name source out)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(STRINGS ${source} line REGEX "^// Sanitizers:" LIMIT_COUNT 1)
    string(REGEX MATCHALL "[^ ]+" labels "${line}")
    list(REMOVE_ITEM labels // Sanitizers:)
    foreach(label ${labels})
        if(NOT label MATCHES "^(asan|tsan)$")
            message(FATAL_ERROR "${source}: Sanitizers: expected asan or tsan, found '${label}'")
        endif()
        add_dependencies(${label}_tests ${name})
    endforeach()
    list(JOIN labels "+" joined)
    set(${out} "${joined}" PARENT_SCOPE)
endfunction()
