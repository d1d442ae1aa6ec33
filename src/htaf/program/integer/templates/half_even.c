/* x / 2^n, rounded half to even */
static ${T} ${name}(${T} x, int n)
{
    const ${T} whole = x >= 0 ? x >> n : ~(~x >> n), unit = (${T})1 << n, rest = x - whole * unit;
    return whole + (n > 0 && (rest > unit / 2 || (rest == unit / 2 && whole % 2 != 0)));
}
