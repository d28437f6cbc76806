/* --- ax_from_bits_bf16 ax_bits_bf16 ax_round_bf16 ax_round_rtz_bf16: bf16 is the upper half of an f32 */

inline float ax_from_bits_bf16(ushort b) { return as_float((uint)b << 16); }
inline ushort ax_bits_bf16(float x) { return (ushort)(as_uint(x) >> 16); }
inline float ax_round_bf16(float x) {
  uint u = as_uint(x);
  /* A NaN stays one: rounding its significand up could carry into the exponent. */
  uint r = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  return as_float(x != x ? (u | 0x00400000u) & 0xffff0000u : r);
}
inline float ax_round_rtz_bf16(float x) {
  uint u = as_uint(x);
  return as_float((x != x ? u | 0x00400000u : u) & 0xffff0000u);
}

/* --- ax_odd_f64: a wider value in f32, rounded to odd, so that rounding it again to a narrower type is exact */

inline float ax_odd_f64(double x) {
  float t = convert_float_rtz(x);
  /* fabs(t) > max only where x is infinite or NaN; rtz never overflows. */
  return (double)t == x || x != x ? (x != x ? NAN : t) : as_float(as_uint(t) | 1u);
}

/* --- ax_odd_u64 ax_odd_i64: likewise an integer; without double, which some GPUs lack */

inline float ax_odd_u64(ulong x) {
  /* The upper 24 significant bits, which a float holds, with what falls off ORed into the last. */
  int shift = max(0, 40 - (int)clz(x));
  ulong low = x & ((1ul << shift) - 1);
  return ldexp((float)((uint)(x >> shift) | (uint)(low != 0)), shift);
}
inline float ax_odd_i64(long x) { return x < 0 ? -ax_odd_u64(0ul - (ulong)x) : ax_odd_u64((ulong)x); }

/* --- ax_to_fp8 ax_bits_f8 ax_from_fp8 ax_from_bits_f8 ax_round_f8 ax_saturated:
 * fp8, as in "FP8 formats for deep learning" (Micikevicius et al., 2022) */

/* Each way both cases are computed and one is chosen, without a call: a CPU's compiler makes no branches then. */
inline uchar ax_to_fp8(float x, int bits, int bias, uint top, uint overflow) {
  /* `bits` of significand; results above code `top` become `overflow`. Round to nearest even. */
  uint u = as_uint(x), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
  int drop = 23 - bits;
  /* A carry out of the significand goes into the exponent. */
  uint normal = ((a + (1u << (drop - 1)) - 1u + ((a >> drop) & 1u)) >> drop) - ((127u - bias) << bits);
  uint magic = (uint)(151 - bias - bits) << 23; /* a number whose unit in the last place is the least subnormal */
  uint subnormal = as_uint(as_float(a) + as_float(magic)) - magic;
  uint code = a < ((128u - bias) << 23) ? subnormal : normal;
  return (uchar)(sign | (code > top ? overflow : code));
}
inline uchar ax_bits_f8e5(float x) {
  return x != x ? (uchar)(0x7f | ((as_uint(x) >> 24) & 0x80)) : ax_to_fp8(x, 2, 15, 0x7bu, 0x7cu);
}
inline uchar ax_bits_f8e4nv(float x) { return ax_to_fp8(x, 3, 7, 0x7eu, 0x7fu); }
inline float ax_from_fp8(uchar b, int bits, int bias, uint special) {
  /* `special`: the bits of f32 for the largest exponent of a format with infinities, or for its NaN; 0 for a number. */
  uint code = b & 0x7fu, m = code & ((1u << bits) - 1u), sign = (b & 0x80u) << 24;
  uint normal = (code << (23 - bits)) + ((127u - bias) << 23);
  uint subnormal = as_uint((float)m * as_float((uint)(128 - bias - bits) << 23));
  return as_float(sign | (special ? special : code >> bits ? normal : subnormal));
}
inline float ax_from_bits_f8e5(uchar b) {
  uint code = b & 0x7fu;
  return ax_from_fp8(b, 2, 15, code > 0x7cu ? 0x7fc00000u : code == 0x7cu ? 0x7f800000u : 0u);
}
inline float ax_from_bits_f8e4nv(uchar b) { return ax_from_fp8(b, 3, 7, (b & 0x7fu) == 0x7fu ? 0x7fc00000u : 0u); }
/* Casts saturate, as Triton's do on the hardware that has them: nothing but NaN becomes NaN or infinite. */
inline float ax_saturated(float x, float most) { return x < -most ? -most : x > most ? most : x; }
inline float ax_round_f8e5(float x) { return ax_from_bits_f8e5(ax_bits_f8e5(ax_saturated(x, 57344.0f))); }
inline float ax_round_f8e4nv(float x) { return ax_from_bits_f8e4nv(ax_bits_f8e4nv(ax_saturated(x, 448.0f))); }

/* --- ax_round_rtz_f8: toward zero, which is at most one step from the nearest */
inline float ax_toward_zero(float x, float near, float below) { return fabs(near) > fabs(x) ? below : near; }
inline float ax_round_rtz_f8e5(float x) {
  float near = ax_round_f8e5(x);
  uchar code = ax_bits_f8e5(near);
  return ax_toward_zero(x, near, code & 0x7f ? ax_from_bits_f8e5((uchar)(code - 1)) : near);
}
inline float ax_round_rtz_f8e4nv(float x) {
  float near = ax_round_f8e4nv(x);
  uchar code = ax_bits_f8e4nv(near);
  return ax_toward_zero(x, near, code & 0x7f ? ax_from_bits_f8e4nv((uchar)(code - 1)) : near);
}

/* --- ax_from_e2m1 ax_from_e8m0: "OCP Microscaling Formats (MX) Specification" 1.0, 5.3.3 and 5.4.1 */

inline float ax_from_e2m1(uchar b) {
  /* Twice the magnitude is 0 1 2 3 4 6 8 12: three bits of significand and an exponent. */
  uint e = (b >> 1) & 3u, m = b & 1u;
  float x = e ? as_float(((e + 126u) << 23) | (m << 22)) : 0.5f * (float)m;
  return b & 8 ? -x : x;
}
inline float ax_from_e8m0(uchar b) { return as_float(b == 255 ? 0x7fc00000u : b ? (uint)b << 23 : 0x00400000u); }

/* --- ax_div_ ax_rem_: integer division; what C leaves undefined, and the CPU traps on, gives some value instead */

#define AX_DIVIDE(name, type, utype)                              \
  inline type ax_div_##name(type a, type b) {                     \
    type d = (b == 0 || b == -1) ? (type)1 : b;                   \
    return b == -1 ? (type)(0 - (utype)a) : (type)(a / d);        \
  }                                                               \
  inline type ax_rem_##name(type a, type b) {                     \
    type d = (b == 0 || b == -1) ? (type)1 : b;                   \
    return (type)(a % d);                                         \
  }                                                               \
  inline utype ax_div_u##name(utype a, utype b) { return a / (b ? b : (utype)1); } \
  inline utype ax_rem_u##name(utype a, utype b) { return a % (b ? b : (utype)1); }
AX_DIVIDE(i8, char, uchar)
AX_DIVIDE(i16, short, ushort)
AX_DIVIDE(i32, int, uint)
AX_DIVIDE(i64, long, ulong)

/* --- ax_atomic_: on integers */

#define AX_ATOMIC_INTEGER(name, type, utype, object, uobject)                                                         \
  inline type ax_atomic_xchg_##name(__global type* p, type v) { return (type)atomic_exchange((volatile __global object*)p, v); } \
  inline type ax_atomic_add_##name(__global type* p, type v) { return (type)atomic_fetch_add((volatile __global object*)p, v); } \
  inline type ax_atomic_and_##name(__global type* p, type v) { return (type)atomic_fetch_and((volatile __global object*)p, v); } \
  inline type ax_atomic_or_##name(__global type* p, type v) { return (type)atomic_fetch_or((volatile __global object*)p, v); } \
  inline type ax_atomic_xor_##name(__global type* p, type v) { return (type)atomic_fetch_xor((volatile __global object*)p, v); } \
  inline type ax_atomic_max_##name(__global type* p, type v) { return (type)atomic_fetch_max((volatile __global object*)p, v); } \
  inline type ax_atomic_min_##name(__global type* p, type v) { return (type)atomic_fetch_min((volatile __global object*)p, v); } \
  inline type ax_atomic_umax_##name(__global type* p, type v) { return (type)atomic_fetch_max((volatile __global uobject*)p, (utype)v); } \
  inline type ax_atomic_umin_##name(__global type* p, type v) { return (type)atomic_fetch_min((volatile __global uobject*)p, (utype)v); } \
  inline type ax_atomic_cas_##name(__global type* p, type expected, type v) {                                         \
    atomic_compare_exchange_strong((volatile __global object*)p, &expected, v);                                       \
    return expected;                                                                                                  \
  }
AX_ATOMIC_INTEGER(i32, int, uint, atomic_int, atomic_uint)
AX_ATOMIC_INTEGER(i64, long, ulong, atomic_long, atomic_ulong)

/* 16-bit ones, by compare-and-swap of the aligned word around them */

inline ushort ax_atomic_cas16(__global ushort* p, ushort expected, ushort v) {
  volatile __global atomic_uint* word = (volatile __global atomic_uint*)((ulong)p & ~3ul);
  uint shift = ((ulong)p & 2ul) ? 16u : 0u, old = atomic_load(word);
  for (;;) {
    ushort seen = (ushort)(old >> shift);
    if (seen != expected) return seen;
    if (atomic_compare_exchange_strong(word, &old, (old & ~(0xffffu << shift)) | ((uint)v << shift))) return seen;
  }
}
inline short ax_atomic_cas_i16(__global short* p, short expected, short v) {
  return (short)ax_atomic_cas16((__global ushort*)p, (ushort)expected, (ushort)v);
}
#define AX_ATOMIC_16(kind, name, type, expression)                   \
  inline type ax_atomic_##kind##_##name(__global type* p, type v) {  \
    type old = *(volatile __global type*)p, seen;                    \
    while ((seen = ax_atomic_cas_i16(p, old, expression)) != old) old = seen; \
    return old;                                                      \
  }
AX_ATOMIC_16(xchg, i16, short, v)
AX_ATOMIC_16(add, i16, short, (short)(old + v))

/* Floats, by compare-and-swap of their bits */

#define AX_ATOMIC_FLOAT(kind, name, type, memory, bits, as_value, as_bits, cas, expression)      \
  inline type ax_atomic_##kind##_##name(__global memory* p, type v) {                            \
    bits seen = *(volatile __global bits*)p, was;                                                \
    type old;                                                                                    \
    do {                                                                                         \
      was = seen;                                                                                \
      old = as_value(was);                                                                       \
      seen = (bits)cas;                                                                          \
    } while (seen != was);                                                                       \
    return old;                                                                                  \
  }
#if defined(cl_khr_fp64) || defined(__opencl_c_fp64) /* some GPUs have no f64, not even its type */
#define AX_ATOMIC_F64(kind, x)                                                                   \
  AX_ATOMIC_FLOAT(kind, f64, double, double, ulong, as_double, as_ulong,                         \
                  ax_atomic_cas_i64((__global long*)p, (long)was, (long)as_ulong(x)), x)
#else
#define AX_ATOMIC_F64(kind, x)
#endif
#define AX_ATOMIC_FLOAT_KIND(kind, x)                                                            \
  AX_ATOMIC_FLOAT(kind, f32, float, float, uint, as_float, as_uint,                              \
                  ax_atomic_cas_i32((__global int*)p, (int)was, (int)as_uint(x)), x)             \
  AX_ATOMIC_F64(kind, x)                                                                         \
  AX_ATOMIC_FLOAT(kind, f16, float, ushort, ushort, ax_from_bits_f16, ax_bits_f16,               \
                  ax_atomic_cas16(p, was, ax_bits_f16(ax_round_f16(x))), x)                      \
  AX_ATOMIC_FLOAT(kind, bf16, float, ushort, ushort, ax_from_bits_bf16, ax_bits_bf16,            \
                  ax_atomic_cas16(p, was, ax_bits_bf16(ax_round_bf16(x))), x)
AX_ATOMIC_FLOAT_KIND(fadd, old + v)
AX_ATOMIC_FLOAT_KIND(max, fmax(old, v))
AX_ATOMIC_FLOAT_KIND(min, fmin(old, v))

/* --- ax_round_tf32: f32 with ten bits of significand behind the point, rounded to nearest even */
inline float ax_round_tf32(float x) {
  uint u = as_uint(x);
  return x != x ? x : as_float((u + 0xfffu + ((u >> 13) & 1u)) & 0xffffe000u);
}

/* --- ax_dpas16_ ax_dpas8_: one matrix instruction: 8 rows of `a` by 16 or 8 columns of `b`, row-major in local memory,
 * `lda` and `ldb` elements a row. Lane l gives column l of b, several rows of k in one int, the lowest first, and of
 * each row of a the l-th short (of 16 lanes) or int (of 8). Rows of a begin at addresses that such a read may have,
 * because k is at least 16 elements of two bytes or 32 of one. */

#define AX_ROWS(vector, a, lda, lane)                                                                               \
  (vector)((a)[lane], (a)[(lda) + lane], (a)[2 * (lda) + lane], (a)[3 * (lda) + lane], (a)[4 * (lda) + lane],       \
           (a)[5 * (lda) + lane], (a)[6 * (lda) + lane], (a)[7 * (lda) + lane])
#define AX_PAIR_16(b, ldb, lane, i) \
  (int)((uint)(ushort)(b)[2 * (i) * (ldb) + lane] | (uint)(ushort)(b)[(2 * (i) + 1) * (ldb) + lane] << 16)
#define AX_PAIRS_16(b, ldb, lane)                                                                                   \
  (int8)(AX_PAIR_16(b, ldb, lane, 0), AX_PAIR_16(b, ldb, lane, 1), AX_PAIR_16(b, ldb, lane, 2),                     \
         AX_PAIR_16(b, ldb, lane, 3), AX_PAIR_16(b, ldb, lane, 4), AX_PAIR_16(b, ldb, lane, 5),                     \
         AX_PAIR_16(b, ldb, lane, 6), AX_PAIR_16(b, ldb, lane, 7))
#define AX_DPAS(type)                                                                                               \
  inline float8 ax_dpas16_##type(__local const short* a, int lda, __local const short* b, int ldb, int lane,        \
                                 float8 c) {                                                                        \
    short8 x = AX_ROWS(short8, a, lda, lane);                                                                       \
    return intel_sub_group_##type##_##type##_matrix_mad_k16(x, AX_PAIRS_16(b, ldb, lane), c);                       \
  }                                                                                                                 \
  inline float8 ax_dpas8_##type(__local const short* a, int lda, __local const short* b, int ldb, int lane,         \
                                float8 c) {                                                                         \
    int8 x = AX_ROWS(int8, (__local const int*)a, lda / 2, lane);                                                   \
    return intel_sub_group_##type##_##type##_matrix_mad_k16(x, AX_PAIRS_16(b, ldb, lane), c);                       \
  }
AX_DPAS(f16)
AX_DPAS(bf16)
inline int ax_four_i8(__local const char* b, int ldb, int lane) {
  return (int)((uint)(uchar)b[lane] | (uint)(uchar)b[ldb + lane] << 8 | (uint)(uchar)b[2 * ldb + lane] << 16 |
               (uint)(uchar)b[3 * ldb + lane] << 24);
}
#define AX_FOURS_8(b, ldb, lane)                                                                                   \
  (int8)(ax_four_i8(b, ldb, lane), ax_four_i8(b + 4 * ldb, ldb, lane), ax_four_i8(b + 8 * ldb, ldb, lane),         \
         ax_four_i8(b + 12 * ldb, ldb, lane), ax_four_i8(b + 16 * ldb, ldb, lane),                                 \
         ax_four_i8(b + 20 * ldb, ldb, lane), ax_four_i8(b + 24 * ldb, ldb, lane),                                 \
         ax_four_i8(b + 28 * ldb, ldb, lane))
inline int8 ax_dpas16_i8(__local const char* a, int lda, __local const char* b, int ldb, int lane, int8 c) {
  short8 x = AX_ROWS(short8, (__local const short*)a, lda / 2, lane);
  return intel_sub_group_i8_i8_matrix_mad_k32(x, AX_FOURS_8(b, ldb, lane), c);
}
inline int8 ax_dpas8_i8(__local const char* a, int lda, __local const char* b, int ldb, int lane, int8 c) {
  int8 x = AX_ROWS(int8, (__local const int*)a, lda / 4, lane);
  return intel_sub_group_i8_i8_matrix_mad_k32(x, AX_FOURS_8(b, ldb, lane), c);
}
/* --- ax_dpas16_tf32: the same of f32 that ax_round_tf32 has rounded, eight columns of a and rows of b */
inline float8 ax_dpas16_tf32(__local const int* a, int lda, __local const int* b, int ldb, int lane, float8 c) {
  /* Of `a` the lower eight lanes have one row, the upper eight the next. */
  __local const int* x = a + (lane >> 3) * lda + (lane & 7);
  float8 y = as_float8((int8)(b[lane], b[ldb + lane], b[2 * ldb + lane], b[3 * ldb + lane], b[4 * ldb + lane],
                              b[5 * ldb + lane], b[6 * ldb + lane], b[7 * ldb + lane]));
  float4 rows = as_float4((int4)(x[0], x[2 * lda], x[4 * lda], x[6 * lda]));
  return intel_sub_group_tf32_tf32_matrix_mad_k8(rows, y, c);
}

/* --- ax_block_fits: can block loads read this matrix? Width, pitch and x in bytes. The limits are those of the extension
 * cl_intel_subgroup_2d_block_io, and that the corner is not left of or above the matrix. */

inline bool ax_block_fits(__global const void* base, long width, long height, long pitch, long x, long y) {
  const long most = 1l << 24;
  return ((ulong)base & 63) == 0 && width >= 64 && width % 4 == 0 && width <= pitch && pitch % 16 == 0 && pitch <= most &&
         height >= 1 && height <= most && x >= 0 && x % 4 == 0 && x < most && y >= 0 && y < most;
}

/* --- ax_block_a ax_block_b ax_local_a ax_local_b: what one matrix instruction of 16 lanes takes of each operand: of `a`
 * a short of each of eight rows, of `b` eight ints of as many rows as make one, from memory (width and pitch in bytes, x
 * and y in elements) or from local memory (the fragment's first element) */

#define AX_BLOCK(side, vector, type, size, kind)                                                                    \
  inline vector ax_block_##side##size(__global void* base, int width, int height, int pitch, int x, int y) {        \
    type to[8];                                                                                                     \
    intel_sub_group_2d_block_read_##kind(base, width, height, pitch, (int2)(x, y), to);                             \
    return (vector)(to[0], to[1], to[2], to[3], to[4], to[5], to[6], to[7]);                                        \
  }
AX_BLOCK(a, short8, ushort, 16, 16b_8r16x1c)
AX_BLOCK(b, int8, uint, 16, transform_16b_16r16x1c)
AX_BLOCK(a, short8, ushort, 8, 8b_8r32x1c)
AX_BLOCK(b, int8, uint, 8, transform_8b_32r16x1c)
inline short8 ax_local_a16(__local const short* a, int lda, int lane) { return AX_ROWS(short8, a, lda, lane); }
inline int8 ax_local_b16(__local const short* b, int ldb, int lane) { return AX_PAIRS_16(b, ldb, lane); }
inline short8 ax_local_a8(__local const char* a, int lda, int lane) {
  return AX_ROWS(short8, (__local const short*)a, lda / 2, lane);
}
inline int8 ax_local_b8(__local const char* b, int ldb, int lane) { return AX_FOURS_8(b, ldb, lane); }
