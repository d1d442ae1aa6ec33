#include <stdio.h>

#include "${name}.h"

static const ${x_type} x[${rows}][${inputs}] = {
${texts}};

int main(void)
{
    static ${y_type} y[${outputs}];
    for (long row = 0; row < ${rows}; row++) {
        ${name}_run(x[row], y);
        for (long i = 0; i < ${outputs}; i++) {
            const uint64_t word = (uint64_t)(int64_t)y[i];
            printf("%08lx%08lx\n", (unsigned long)(word >> 32), (unsigned long)(word & 0xffffffffu));
        }
    }
    return 0;
}
