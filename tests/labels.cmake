# Which test programs (tests/NAME.cpp) the sanitizer jobs build and run; `make sanitize` and .ci/run
# do both lists within 20 minutes. Every name must exist. A test belongs in
#   MOK_ASAN_TESTS when it indexes, parses or copies memory by numbers that come from outside or from
#                  plan (ASan and UBSan; a program of at most a minute without them);
#   MOK_TSAN_TESTS when it runs several threads: the executor, signals, barriers, faults.
set(MOK_ASAN_TESTS test_layering)
set(MOK_TSAN_TESTS test_layering)
