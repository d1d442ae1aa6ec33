${head}/* text sha256: ${open} */
#ifndef ${upper}_H
#define ${upper}_H

#include <stdint.h>

#define ${upper}_INPUTS ${inputs}
#define ${upper}_OUTPUTS ${outputs}
#define ${upper}_CONSTANT_BYTES ${flash}
#define ${upper}_BUFFER_BYTES ${ram}

${named}#ifdef __cplusplus
extern "C" {
#endif

extern const char ${name}_program[]; /* SHA-256 of the program */
extern const char ${name}_text[]; /* and of the text of ${name}.c, with zeros in its place */

/* One row. x: ${what} ${shape}.
   y: outputs times 2^${exponent} * ${divisor}${greatest}.${reentrant}
${means}*/
void ${name}_run(const ${x_type} *x, ${y_type} *y);
${class_}
#ifdef __cplusplus
}
#endif

#endif
