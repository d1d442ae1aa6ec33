/* A branch around one instruction: without it GCC makes eight of a choice between two constants. */
#if defined(__GNUC__)
#define KEEP(w) __asm__("" : "+r"(w))
#else
#define KEEP(w) ((void)0)
#endif
