/* --- ax_from_bits_f16 ax_bits_f16 ax_round_f16 ax_round_rtz_f16:
 * 16-bit floats on Intel's driver for x86 CPUs, whose cl_khr_fp16 conversions are the CPU's own */
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

inline float ax_from_bits_f16(ushort b) { return (float)as_half(b); }
inline ushort ax_bits_f16(float x) { return as_ushort((half)x); }
inline float ax_round_f16(float x) { return (float)(half)x; }
inline float ax_round_rtz_f16(float x) { return (float)convert_half_rtz(x); }

/* --- ax_exp2: powers of two. Of f32 what x is above or below an integer, which is the exponent, and a polynomial for 2^f
 * on [-1/2, 1/2] of the least relative error (Remez' algorithm, 2.6e-9): 1.01 units in the last place at the most, with
 * subnormal results, in a third of the time of the driver's own on 8 lanes */
inline float __attribute__((overloadable)) ax_exp2(float x) {
  float y = x < -160.0f ? -160.0f : x > 160.0f ? 160.0f : x; /* a NaN stays one */
  float n = rint(y), f = y - n;
  float p = fma(0x1.470b4ap-13f, f, 0x1.5f7276p-10f);
  p = fma(p, f, 0x1.3b270ep-7f);
  p = fma(p, f, 0x1.c6ae72p-5f);
  p = fma(p, f, 0x1.ebfbe2p-3f);
  p = fma(p, f, 0x1.62e432p-1f);
  p = fma(p, f, 1.0f);
  int exponent = (int)n, one = exponent >> 1; /* in two factors, of which each is a normal number, */
  int other = exponent < -150 ? 0 : (exponent - one + 127) << 23; /* or 0: CPUs are slow where products underflow */
  return p * as_float((one + 127) << 23) * as_float(other);
}
inline double __attribute__((overloadable)) ax_exp2(double x) { return exp2(x); }

/* --- ax_erf: the error function. Of f32 below 1 a polynomial of its square, above 1 less 2 to the power of another, whose
 * coefficients have the least error of the result (Lawson's algorithm, 1.2e-9 and 1.0e-9; 2^f 7.5e-8 of less than 0.16):
 * 1.2 units in the last place at the most */
inline float __attribute__((overloadable)) ax_erf(float x) {
  float a = fabs(x);
  a = a > 3.95f ? 3.95f : a; /* from where on it is 1; a NaN stays one */
  float t = a * a;
  float below = fma(0x1.4ae4d0p-14f, t, -0x1.a485ecp-11f);
  below = fma(below, t, 0x1.5419f6p-8f);
  below = fma(below, t, -0x1.b7fbb4p-6f);
  below = fma(below, t, 0x1.ce2d20p-4f);
  below = fma(below, t, -0x1.81273ep-2f);
  below = fma(below, t, 0x1.06eba8p-3f);
  float y = fma(0x1.18bb5cp-12f, a, -0x1.15ef76p-8f);
  y = fma(y, a, 0x1.01b51ap-5f);
  y = fma(y, a, -0x1.307034p-3f);
  y = fma(y, a, -0x1.d76e82p-1f);
  y = fma(y, a, -0x1.a03fe8p+0f);
  y = fma(y, a, -0x1.0b8c6ep-11f);
  float n = rint(y), f = y - n;
  float p = fma(0x1.5c08e4p-10f, f, 0x1.3d0c52p-7f);
  p = fma(p, f, 0x1.c6b6e4p-5f);
  p = fma(p, f, 0x1.ebf918p-3f);
  p = fma(p, f, 0x1.62e428p-1f);
  p = fma(p, f, 0x1.000002p+0f);
  float above = 1.0f - as_float(as_int(p) + ((int)n << 23));
  return copysign(a < 1.0f ? fma(a, below, a) : above, x);
}
inline double __attribute__((overloadable)) ax_erf(double x) { return erf(x); }

/* --- ax_cpu_dpas_ intel_sub_group_: matrix products that GPUs have as instructions, by broadcasts among 16 or 8 lanes:
 * of a row of `a` each lane has a short, or an int */

/* Called, and in loops that stay loops: written out where they are used, a kernel takes up to a minute to compile. */
#define AX_CPU_CALLED __attribute__((noinline))
#define AX_CPU_ROLLED __attribute__((opencl_unroll_hint(1)))

#define AX_CPU_DPAS_ROW(j, words, from_bits)                                                          \
  AX_CPU_ROLLED for (int k = 0; k < 16; ++k) {                                                        \
    const uint p = (uint)sub_group_broadcast((int)a.s##j, k / words) >> (16 * (k % words));           \
    const ushort q = (ushort)(k & 1 ? (uint)b[k >> 1] >> 16 : (uint)b[k >> 1] & 0xffffu);             \
    c.s##j = fma(from_bits((ushort)p), from_bits(q), c.s##j);                                         \
  }
#define AX_CPU_DPAS(name, vector, words, from_bits)                                                   \
  AX_CPU_CALLED float8 __attribute__((overloadable)) name(vector a, int8 rows, float8 c) {            \
    int b[8];                                                                                         \
    vstore8(rows, 0, b);                                                                              \
    AX_CPU_DPAS_ROW(0, words, from_bits) AX_CPU_DPAS_ROW(1, words, from_bits)                         \
    AX_CPU_DPAS_ROW(2, words, from_bits) AX_CPU_DPAS_ROW(3, words, from_bits)                         \
    AX_CPU_DPAS_ROW(4, words, from_bits) AX_CPU_DPAS_ROW(5, words, from_bits)                         \
    AX_CPU_DPAS_ROW(6, words, from_bits) AX_CPU_DPAS_ROW(7, words, from_bits)                         \
    return c;                                                                                         \
  }
inline float ax_cpu_dpas_bf16(ushort b) { return as_float((uint)b << 16); }
AX_CPU_DPAS(intel_sub_group_f16_f16_matrix_mad_k16, short8, 1, ax_from_bits_f16)
AX_CPU_DPAS(intel_sub_group_bf16_bf16_matrix_mad_k16, short8, 1, ax_cpu_dpas_bf16)
AX_CPU_DPAS(intel_sub_group_f16_f16_matrix_mad_k16, int8, 2, ax_from_bits_f16)
AX_CPU_DPAS(intel_sub_group_bf16_bf16_matrix_mad_k16, int8, 2, ax_cpu_dpas_bf16)
#define AX_CPU_DPAS_I8(vector, scalar, bytes)                                                         \
  AX_CPU_CALLED int8 __attribute__((overloadable))                                                    \
  intel_sub_group_i8_i8_matrix_mad_k32(vector a, int8 rows, int8 c) {                                 \
    scalar x[8];                                                                                      \
    int b[8], sums[8];                                                                                \
    vstore8(a, 0, x);                                                                                 \
    vstore8(rows, 0, b);                                                                              \
    vstore8(c, 0, sums);                                                                              \
    AX_CPU_ROLLED for (int j = 0; j < 8; ++j)                                                         \
      AX_CPU_ROLLED for (int k = 0; k < 32; ++k) {                                                    \
        const char p = (char)(sub_group_broadcast((int)x[j], k / bytes) >> (8 * (k % bytes)));        \
        const char q = (char)(b[k >> 2] >> (8 * (k & 3)));                                            \
        sums[j] += (int)p * (int)q;                                                                   \
      }                                                                                               \
    return vload8(0, sums);                                                                           \
  }
AX_CPU_DPAS_I8(short8, short, 2)
AX_CPU_DPAS_I8(int8, int, 4)
AX_CPU_CALLED float8 intel_sub_group_tf32_tf32_matrix_mad_k8(float4 a, float8 rows, float8 c) {
  float x[4], b[8], sums[8];
  vstore4(a, 0, x);
  vstore8(rows, 0, b);
  vstore8(c, 0, sums);
  AX_CPU_ROLLED for (int j = 0; j < 8; ++j)
    AX_CPU_ROLLED for (int k = 0; k < 8; ++k)
      sums[j] = fma(sub_group_broadcast(x[j / 2], 8 * (j & 1) + k), b[k], sums[j]);
  return vload8(0, sums);
}

/* --- ax_cpu_at_ intel_sub_group_2d_block_read_: block loads, one element at a time: lane l has column l of a rectangle,
 * or, of one of bytes that is read by rows, the columns 2 l and 2 l + 1. What a GPU's instruction does not take gives
 * nonsense here too. */

#define AX_CPU_AT(type)                                                                                   \
  inline u##type ax_cpu_at_##type(__global void* base, int width, int height, int pitch, int x, int y) { \
    const long at = (long)x * sizeof(type);                                                               \
    if (x < 0 || at >= width || y < 0 || y >= height) return 0;                                           \
    return *(__global const u##type*)((__global const char*)base + (long)y * pitch + at);                 \
  }
AX_CPU_AT(char)
AX_CPU_AT(short)
inline bool ax_cpu_at_fault(__global void* base, int width, int pitch, int x) {
  return ((ulong)base & 63) != 0 || width < 64 || width % 4 != 0 || pitch < width || pitch % 16 != 0 || x % 4 != 0;
}
#define AX_CPU_BLOCK(name, size, type, expression)                                                                        \
  AX_CPU_CALLED void intel_sub_group_2d_block_read_##name(__global void* p, int w, int h, int pitch, int2 at,       \
                                                          __private type* to) {                                     \
    const int lane = (int)get_sub_group_local_id();                                                                 \
    const bool fault = ax_cpu_at_fault(p, w, pitch, at.x * size);                                                   \
    AX_CPU_ROLLED for (int r = 0; r < 8; ++r) to[r] = fault ? (type)12345 : (type)(expression);                     \
  }
#define AX_CPU_16(dx, dy) (uint)ax_cpu_at_short(p, w, h, pitch, at.x + dx, at.y + dy)
#define AX_CPU_8(dx, dy) (uint)ax_cpu_at_char(p, w, h, pitch, at.x + dx, at.y + dy)
AX_CPU_BLOCK(16b_8r16x1c, 2, ushort, AX_CPU_16(lane, r))
AX_CPU_BLOCK(transform_16b_16r16x1c, 2, uint, AX_CPU_16(lane, 2 * r) | AX_CPU_16(lane, 2 * r + 1) << 16)
AX_CPU_BLOCK(8b_8r32x1c, 1, ushort, AX_CPU_8(2 * lane, r) | AX_CPU_8(2 * lane + 1, r) << 8)
AX_CPU_BLOCK(transform_8b_32r16x1c, 1, uint,
             AX_CPU_8(lane, 4 * r) | AX_CPU_8(lane, 4 * r + 1) << 8 | AX_CPU_8(lane, 4 * r + 2) << 16 |
                 AX_CPU_8(lane, 4 * r + 3) << 24)

/* --- ax_fetch_line: the cache line around an address, on its way while the kernel goes on; of any address. OpenCL's own
 * prefetch makes no instruction here. */
inline int ax_fetch_line(long at) {
  __builtin_prefetch((const void*)at, 0, 3);
  return 0;
}

/* --- ax_prefetch: on a GPU it brings a cache line; here it reads the byte, so that a test sees what it touches */

inline void ax_prefetch(__global const char* p) { (void)*(volatile __global const char*)p; }

