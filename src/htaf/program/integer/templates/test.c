/* Rows with the outputs that the program gives for them; what differs is counted.
   text sha256: ${open} */
#include <stdio.h>

#include "${name}.h"

#define ROWS ${rows}

${arrays}
int main(void)
{
    static ${y_type} y[${upper}_OUTPUTS];
    long differ = 0;
    for (long row = 0; row < ROWS; row++) {
        ${name}_run(x[row], y);
        for (long i = 0; i < ${upper}_OUTPUTS; i++) differ += y[i] != wanted[row][i];
    }
    printf("%ld of %ld outputs differ; constants %ld bytes, buffers %ld bytes\n", differ, (long)ROWS * ${upper}_OUTPUTS,
           (long)${upper}_CONSTANT_BYTES, (long)${upper}_BUFFER_BYTES);
    return differ != 0;
}
