// What the processor can do, and which sources this was built of.
#ifndef GBPLEARN_STAMP
#define GBPLEARN_STAMP ""
#endif
extern "C" const char* gbplearn_stamp() { return GBPLEARN_STAMP; }

extern "C" int gbplearn_has_wide_vectors() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 0;
#endif
}
