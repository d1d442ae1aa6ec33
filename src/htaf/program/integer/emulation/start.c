/* What runs before main on an emulated Cortex-M: a table of vectors and a reset handler, which opens the semihosting
   files of newlib (rdimon) and ends the emulator with what main returns. The start-up code that comes with newlib is
   for processors that are not Cortex-M. Linked by cortex-m.ld; TOP_OF_STACK is given by the command. */
#include <stdint.h>
#include <stdlib.h>

void initialise_monitor_handles(void);
int main(void);
void _start(void);
void _init(void);
void _fini(void);

void _init(void) {}
void _fini(void) {}

void _start(void)
{
    initialise_monitor_handles();
    exit(main());
}

__attribute__((section(".vectors"), used)) const struct {
    uintptr_t stack;
    void (*reset)(void);
} vectors = {TOP_OF_STACK, _start};
