/* --- ax_brev_: the bits in reverse order */
inline uint ax_brev_u32(uint x) {
  x = ((x >> 1) & 0x55555555u) | ((x & 0x55555555u) << 1);
  x = ((x >> 2) & 0x33333333u) | ((x & 0x33333333u) << 2);
  x = ((x >> 4) & 0x0f0f0f0fu) | ((x & 0x0f0f0f0fu) << 4);
  x = ((x >> 8) & 0x00ff00ffu) | ((x & 0x00ff00ffu) << 8);
  return (x >> 16) | (x << 16);
}

/* --- ax_erfinv_: the inverse of erf. A start from Winitzki's closed form (2008), good to 2e-3, then Newton's method with
 * Halley's correction on erfc, where 1 - |x| keeps its digits; each step about triples the correct digits. */
inline double ax_erfinv_f64(double x) {
  double a = fabs(x);
  if (!(a < 1.0)) return a == 1.0 ? copysign((double)INFINITY, x) : NAN;
  double l = log1p(-a * a), b = 4.3307467508 + 0.5 * l; /* 2/(pi*0.147) */
  double y = sqrt(sqrt(b * b - l / 0.147) - b);
  for (int i = 0; i < 3; ++i) {
    double error = (a < 0.5 ? erf(y) - a : (1.0 - a) - erfc(y));
    double step = error * 0.886226925452758014 * exp(y * y); /* sqrt(pi)/2 */
    y -= step / (1.0 + y * step);
  }
  return copysign(y, x);
}
inline float ax_erfinv_f32(float x) { return (float)ax_erfinv_f64((double)x); }
