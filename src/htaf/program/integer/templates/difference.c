/* how many bits are set in a, less those in b */
static ${T} ${name}(uint32_t a, uint32_t b)
{
    a -= a >> 1 & 0x55555555u;
    b -= b >> 1 & 0x55555555u;
    a = (a & 0x33333333u) + (a >> 2 & 0x33333333u);
    b = (b & 0x33333333u) + (b >> 2 & 0x33333333u);
    a += 0x44444444u - b; /* four bits each: 0 to 8 */
    a = (a & 0x0f0f0f0fu) + (a >> 4 & 0x0f0f0f0fu);
    return (${T})(a * 0x01010101u >> 24 & 0xffu) - 32;
}
