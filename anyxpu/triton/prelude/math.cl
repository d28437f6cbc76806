/* --- ax_div_rn ax_sqrt_rn: rounded to the nearest, as CPUs have them. On a GPU the kernel is built with an option for it,
 * without which OpenCL allows 2.5 and 3 units in the last place: 6 / 3 may be below 2 */
#define ax_div_rn(x, y) ((x) / (y))
#define ax_sqrt_rn(x) sqrt(x)

/* --- ax_to_tf32: PTX's cvt.rna.tf32.f32, ten bits behind the point, from the middle away from zero */
inline float ax_to_tf32(float x) {
  return isfinite(x) ? as_float((as_uint(x) + 0x1000u) & 0xffffe000u) : x;
}

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
/* erfinv(x) / x is smooth in w = -log(1 - x * x), and beyond w = 5 in its root: polynomials of degree 9, fitted at
 * Chebyshev's points to values of 40 digits, within 2e-8 */
inline float ax_erfinv_f32(float x) {
  float w = -log(fma(-x, x, 1.0f));
  bool near = w < 5.0f;
  float v = near ? w - 2.5f : sqrt(w) - 3.21803399f;
  float p = near ? -8.94141406e-09f : 9.91220267e-05f;
  p = fma(p, v, near ? 2.32648001e-08f : -9.80968526e-05f);
  p = fma(p, v, near ? 4.68266973e-07f : -0.000373401523f);
  p = fma(p, v, near ? -3.46309307e-06f : 0.00111031344f);
  p = fma(p, v, near ? -4.97306967e-06f : -0.00187024111f);
  p = fma(p, v, near ? 0.000218345887f : 0.00275115942f);
  p = fma(p, v, near ? -0.00125272523f : -0.00408979559f);
  p = fma(p, v, near ? -0.00417738847f : 0.00574940492f);
  p = fma(p, v, near ? 0.246640278f : 1.00490391f);
  p = fma(p, v, near ? 1.50140936f : 3.05175705f);
  return fabs(x) == 1.0f ? copysign(INFINITY, x) : p * x;
}

/* --- ax_lgamma_f32: the logarithm of |gamma(x)|. lgamma(1 + t) / t on [-0.25, 0.5] and lgamma(2 + t) / t on [-0.5, 1] are
 * polynomials of degree 9, fitted at Chebyshev's points to values of 40 digits, within 1e-8, so that it is right to the
 * last digits about its zeros; beyond 3 it is Stirling's series (DLMF 5.11.1), below 0.75 that of x + 1 less log(x), and
 * below 0 the reflected one (DLMF 5.5.3). */
inline float ax_lgamma_f32(float x) {
  float a = fabs(x), l = log(a);
  bool one = a < 0.5f || (a >= 0.75f && a < 1.5f);
  float t = a < 0.5f ? a : a < 1.5f ? a - 1.0f : a - 2.0f;
  float p = one ? 0.0408296313f : 4.8392776e-05f;
  p = fma(p, t, one ? -0.100169602f : -0.000218408275f);
  p = fma(p, t, one ? 0.131287612f : 0.000540575518f);
  p = fma(p, t, one ? -0.146533619f : -0.00120573828f);
  p = fma(p, t, one ? 0.16951727f : 0.00288483164f);
  p = fma(p, t, one ? -0.207270761f : -0.0073825551f);
  p = fma(p, t, one ? 0.270575259f : 0.0205812252f);
  p = fma(p, t, one ? -0.400687275f : -0.0673524993f);
  p = fma(p, t, one ? 0.822467104f : 0.322467022f);
  p = fma(p, t, one ? -0.577215661f : 0.422784337f);
  p = t * p - (a < 0.75f ? l : 0.0f);
  float r = 1.0f / a, s = r * r;
  float far = r * fma(s, fma(s, fma(s, -5.95238095e-4f, 7.93650794e-4f), -2.77777778e-3f), 0.0833333333f);
  far = fma(a - 0.5f, l - 1.0f, 0.418938533f + far);
  float y = a < 3.0f ? p : far;
  y = x < 0.0f ? 1.14472989f - log(fabs(sinpi(a))) - l - y : y;
  return isinf(x) || a == 0.0f ? INFINITY : y;
}

/* --- ax_byte_perm: four bytes of the eight in y:x, each chosen by three bits of s */
inline int ax_byte_perm(int x, int y, int s) {
  ulong both = (ulong)(uint)y << 32 | (uint)x;
  uint out = 0;
  for (int i = 0; i < 4; ++i) out |= (uint)(both >> (8 * ((uint)s >> 4 * i & 7u)) & 0xffu) << 8 * i;
  return (int)out;
}

/* --- ax_erfcinv_: the inverse of erfc, as ax_erfinv_ finds that of erf */
inline double ax_erfcinv_f64(double x) {
  double a = x > 1.0 ? 2.0 - x : x;
  if (!(a > 0.0)) return a == 0.0 ? (x > 1.0 ? -INFINITY : INFINITY) : NAN;
  double l = log(a) + log(2.0 - a), b = 4.3307467508 + 0.5 * l;
  double y = sqrt(max(sqrt(b * b - l / 0.147) - b, 0.0));
  for (int i = 0; i < 4; ++i) {
    double step = (a - erfc(y)) * 0.886226925452758014 * exp(y * y);
    y -= step / (1.0 + y * step);
  }
  return x > 1.0 ? -y : y;
}
inline float ax_erfcinv_f32(float x) { return (float)ax_erfcinv_f64((double)x); }

/* --- ax_erfcx_: exp(x * x) * erfc(x); far out by the first terms of DLMF 7.12.1 */
inline double ax_erfcx_f64(double x) {
  if (x > 25.0) {
    double r = 0.5 / (x * x);
    return 0.564189583547756287 / x * (1.0 - r * (1.0 - 3.0 * r * (1.0 - 5.0 * r * (1.0 - 7.0 * r * (1.0 - 9.0 * r)))));
  }
  double square = x * x, rest = fma(x, x, -square);
  return exp(square) * (1.0 + rest) * erfc(x);
}
inline float ax_erfcx_f32(float x) { return (float)ax_erfcx_f64((double)x); }

/* --- ax_bessel_i_: the modified functions I of order 0 or 1: the power series (DLMF 10.25.2), whose terms are all of one
 * sign, and far out Hankel's expansion (DLMF 10.40.1) */
inline double ax_bessel_i_f64(int order, double x) {
  double a = fabs(x), sum = 1.0, term = 1.0;
  if (a <= 30.0) {
    double t = 0.25 * a * a;
    for (int k = 1; k < 80; ++k) {
      term *= t / (double)(k * (k + order));
      sum += term;
    }
    return order ? 0.5 * x * sum : sum;
  }
  for (int k = 1; k < 20; ++k) {
    term *= -(4.0 * order - (2.0 * k - 1.0) * (2.0 * k - 1.0)) / (8.0 * k * a);
    sum += term;
  }
  double half_way = exp(0.5 * a), y = half_way * (half_way * (sum * rsqrt(6.28318530717958648 * a)));
  return order && x < 0.0 ? -y : y;
}
inline float ax_bessel_i_f32(int order, float x) { return (float)ax_bessel_i_f64(order, (double)x); }

/* --- ax_bessel_jy_: J or Y of order 0 or 1. Near zero all J_n by their recurrence from n = 64 down (Miller's algorithm,
 * DLMF 3.6) with J_0 + 2 J_2 + 2 J_4 + ... = 1, and Y from them by Neumann's series (DLMF 10.23.17) and its derivative;
 * far out Hankel's expansion (DLMF 10.17) */
inline double ax_bessel_jy_f64(int order, int second, double x) {
  if (second && x < 0.0) return NAN;
  double a = fabs(x), sign = order && x < 0.0 ? -1.0 : 1.0;
  if (a >= 25.0) {
    if (isinf(a)) return 0.0;
    double p = 1.0, q = 0.0, term = 1.0;
    for (int k = 1; k < 24; ++k) {
      term *= (4.0 * order - (2.0 * k - 1.0) * (2.0 * k - 1.0)) / (8.0 * k * a);
      double signed_term = k & 2 ? -term : term;
      if (k & 1) q += signed_term; else p += signed_term;
    }
    /* The cosine and sine of a - (2 order + 1) pi / 4, without rounding that difference. */
    double s = sin(a), c = cos(a);
    double cosine = order ? s - c : s + c, sine = order ? -(s + c) : s - c;
    double y = second ? p * sine + q * cosine : p * cosine - q * sine;
    return sign * y * sqrt(0.318309886183790672 / a);
  }
  const double two_over_pi = 0.636619772367581343;
  double l = log(0.5 * a) + 0.577215664901532861;
  if (a < 1e-8) { /* first terms; also keeps 1 / a finite below */
    if (second) return order ? -two_over_pi / a : two_over_pi * l;
    return order ? 0.5 * x : isnan(x) ? x : 1.0;
  }
  double above = 0.0, here = 1e-250, norm = 0.0, y0 = 0.0, y1 = 0.0;
  for (int n = 64; n > 0; --n) {
    double below = 2.0 * n / a * here - above;
    if (!(n & 1)) {
      double k = n & 2 ? -0.5 * n : 0.5 * n; /* (-1)^k k, for n = 2 k */
      norm += 2.0 * here;
      y0 += here / k;
      y1 += (below - above) / k;
    }
    above = here;
    here = below;
    if (fabs(here) > 1e200) {
      const double less = 1e-200;
      above *= less; here *= less; norm *= less; y0 *= less; y1 *= less;
    }
  }
  norm += here;
  double j0 = here / norm, j1 = above / norm;
  if (!second) return order ? sign * j1 : j0;
  return order ? two_over_pi * (l * j1 - j0 / a + y1 / norm) : two_over_pi * (l * j0 - 2.0 * (y0 / norm));
}
inline float ax_bessel_jy_f32(int order, int second, float x) { return (float)ax_bessel_jy_f64(order, second, (double)x); }

/* --- ax_bessel_n_: J or Y of any order that is not negative: by their recurrence upwards where that is stable (all Y; J up
 * to the argument), else J by Miller's algorithm as above, or by the first term of its series */
inline double ax_bessel_n_f64(int order, int second, double x) {
  if (order < 0) return NAN;
  if (order < 2) return ax_bessel_jy_f64(order, second, x);
  double a = fabs(x);
  if (isnan(x) || (second && x < 0.0)) return NAN;
  if (isinf(a)) return 0.0;
  double sign = (order & 1) && x < 0.0 ? -1.0 : 1.0;
  if (second || a > (double)order) {
    double below = ax_bessel_jy_f64(0, second, a), here = ax_bessel_jy_f64(1, second, a);
    for (int n = 1; n < order && !isinf(here); ++n) {
      double above = 2.0 * n / a * here - below;
      below = here;
      here = above;
    }
    return sign * here;
  }
  double wanted = 1.0;
  if (a < 1e-8) {
    for (int n = 1; n <= order; ++n) wanted *= 0.5 * a / n;
    return sign * wanted;
  }
  double above = 0.0, here = 1e-250, norm = 0.0;
  for (int n = order + 16 + (int)sqrt(160.0 * order); n > 0; --n) {
    double below = 2.0 * n / a * here - above;
    above = here;
    here = below;
    if (n == order + 1) wanted = here;
    if (n & 1) norm += n == 1 ? here : 2.0 * here;
    if (fabs(here) > 1e200) {
      const double less = 1e-200;
      above *= less; here *= less; norm *= less;
      if (n <= order + 1) wanted *= less;
    }
  }
  return sign * (wanted / norm);
}
inline float ax_bessel_n_f32(int order, int second, float x) { return (float)ax_bessel_n_f64(order, second, (double)x); }
