// What the processor can do, and which sources this was built of.
#ifndef GBPLEARN_STAMP
#define GBPLEARN_STAMP ""
#endif
extern "C" const char* gbplearn_stamp() { return GBPLEARN_STAMP; }

// How many numbers the widest vectors have that kernels are built for, and that this processor is quick with; 0 for any.
// Of those with AVX-512 the first lowered their clock for it: those since 2019 have VBMI2, too.
extern "C" int gbplearn_lanes() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2")) return 0;
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi2")
             ? 16
             : 8;
#else
  return 0;
#endif
}
