#ifdef HTAF_RUN64
${arrays}
/* A word has a bit of each of 64 rows. The 16 functions of a table's first two inputs are at hand; the entries name one
   for each value of the other four. */
void ${name}_run64(const ${x_type} *x, ${y_type} *y)
{
    static uint64_t p[${planes} + ${tables}];
    static int32_t counts[64][${groups}];
    const uint64_t *counted = p + ${planes} + ${tables} - ${groups} * ${size};
    for (int r = 0; r < 64; r += 8)
        for (int32_t k = 0, n; k < ${planes}; k += 64) {
            uint8_t m[64] = {0};
            const ${x_type} *v = x + r * ${inputs} + ${name}_first[k / 64];
            n = ${inputs} - ${name}_first[k / 64] < 64 ? ${inputs} - ${name}_first[k / 64] : 64;
            for (int i = 0; i < 8; i++, v += ${inputs})
                for (int32_t j = 0; j < n; j++) m[j] |= (uint8_t)((v[j] >= ${name}_least[k + j]) << i);
            for (int32_t j = 0; j < n; j++) p[k + j] = (r ? p[k + j] : 0) | (uint64_t)m[j] << r;
        }
    for (int32_t t = 0; t < ${tables}; t++) {
        const uint64_t a = p[${name}_read[6 * t]], b = p[${name}_read[6 * t + 1]], e = ${name}_entries[t];
        const uint64_t of[16] = {0, ~(a | b), a & ~b, ~b, b & ~a, ~a, a ^ b, ~(a & b), a & b, ~(a ^ b), a, a | ~b,
                                 b, b | ~a, a | b, ~(uint64_t)0};
        uint64_t left[16];
        for (int i = 0; i < 16; i++) left[i] = of[e >> 4 * i & 15];
        for (int k = 2, n = 8; k < 6; k++, n /= 2) {
            const uint64_t by = p[${name}_read[6 * t + k]];
            for (int i = 0; i < n; i++) left[i] = left[2 * i] ^ (by & (left[2 * i] ^ left[2 * i + 1]));
        }
        p[${planes} + ${name}_place[t]] = left[0];
    }
    for (int32_t g = 0; g < ${groups}; g++) {
        uint64_t c[${bits}] = {0};
        for (int32_t i = 0; i < ${size}; i++) {
            uint64_t carry = *counted++;
            for (int k = 0; carry; k++) {
                const uint64_t both = c[k] & carry;
                c[k] ^= carry;
                carry = both;
            }
        }
        for (int r = 0; r < 64; r++) {
            int32_t n = 0;
            for (int k = 0; k < ${bits}; k++) n |= (int32_t)(c[k] >> r & 1) << k;
            counts[r][g] = n;
        }
    }
    for (int r = 0; r < 64; r++, y += ${outputs}) {
        for (int32_t g = 0; g < ${groups}; g++) ${to}[g] = (${kind})counts[r][g];
${calls}
    }
}
#endif
