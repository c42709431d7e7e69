#pragma once

// Marks a function that the host compiler and the device compiler both build.
#if defined(__CUDACC__)
#define MOK_HD __host__ __device__
#else
#define MOK_HD
#endif
