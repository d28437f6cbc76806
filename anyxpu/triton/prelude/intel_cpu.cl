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

/* --- ax_power_of_2: of at most 0 or next to it. 1.5 * 2^23 rounds x to an integer, which its last bits then are; 2^f on
 * [-1/2, 1/2] is a polynomial (Lawson's algorithm, 9.1e-8), and the exponent is written as bits. A NaN stays one */
inline float ax_power_of_2(float x) {
  float moved = x + 0x1.8p+23f, f = x - (moved - 0x1.8p+23f);
  float p = fma(f, 0.001326472731307149f, 0.009671512991189957f);
  p = fma(f, p, 0.05550733581185341f);
  p = fma(f, p, 0.24022242426872253f);
  p = fma(f, p, 0.6931470036506653f);
  p = fma(f, p, 1.0f);
  return x < -126.0f ? 0.0f : p * as_float((as_int(moved) << 23) + 0x3f800000);
}

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

/* --- ax_turn ax_tiles_: what is in assembly because neither the compiler's front end nor what makes vectors of its code
 * knows the registers. One lane acts for all. Each function is one piece of assembly, with loops of its own, as the
 * compiler would make sixteen of each; vector registers are left as they were, by way of `kept`, 512 bytes. */
#define AX_KEEP(at, register) "vmovups %%zmm" register ", " at "(%[kept])\n\t"
#define AX_BACK(at, register) "vmovups " at "(%[kept]), %%zmm" register "\n\t"

/* --- ax_turn ax_tiles_turn: transposes of 16 by 16 words. Four columns at a time become rows: a register takes 128 bits
 * from each of four rows, so that what is left to be turned lies inside of such parts. */
#define AX_TURN_ROWS(register)                                                                                        \
  "vmovups (%[p]), %%xmm" register "\n\tvinserti32x4 $1, (%[p],%[s],4), %%ymm" register ", %%ymm" register            \
  "\n\tvinserti32x4 $2, (%[p],%[s],8), %%zmm" register ", %%zmm" register                                             \
  "\n\tvinserti32x4 $3, (%[q],%[s],4), %%zmm" register ", %%zmm" register "\n\taddq %[s], %[p]\n\taddq %[s], %[q]\n\t"
#define AX_TURN_LINE(register) "vmovups %%zmm" register ", (%[o])\n\taddq %[t], %[o]\n\t"
#define AX_TURN_KEEP                                                                                                  \
  AX_KEEP("0", "16") AX_KEEP("64", "17") AX_KEEP("128", "18") AX_KEEP("192", "19")                                    \
  AX_KEEP("256", "20") AX_KEEP("320", "21") AX_KEEP("384", "22") AX_KEEP("448", "23")
#define AX_TURN_BACK                                                                                                  \
  AX_BACK("0", "16") AX_BACK("64", "17") AX_BACK("128", "18") AX_BACK("192", "19")                                    \
  AX_BACK("256", "20") AX_BACK("320", "21") AX_BACK("384", "22") AX_BACK("448", "23")
#define AX_TURN_FOUR                                                                                                  \
  "movq %[from], %[p]\n\tleaq (%[from],%[s],8), %[q]\n\t"                                                             \
  AX_TURN_ROWS("16") AX_TURN_ROWS("17") AX_TURN_ROWS("18") AX_TURN_ROWS("19")                                         \
  "vunpcklps %%zmm17, %%zmm16, %%zmm20\n\tvunpckhps %%zmm17, %%zmm16, %%zmm21\n\t"                                    \
  "vunpcklps %%zmm19, %%zmm18, %%zmm22\n\tvunpckhps %%zmm19, %%zmm18, %%zmm23\n\t"                                    \
  "vunpcklpd %%zmm22, %%zmm20, %%zmm16\n\tvunpckhpd %%zmm22, %%zmm20, %%zmm17\n\t"                                    \
  "vunpcklpd %%zmm23, %%zmm21, %%zmm18\n\tvunpckhpd %%zmm23, %%zmm21, %%zmm19\n\t"                                    \
  AX_TURN_LINE("16") AX_TURN_LINE("17") AX_TURN_LINE("18") AX_TURN_LINE("19") "addq $16, %[from]\n\t"
#define AX_TURN_OUT [p] "=&r"(p), [q] "=&r"(q), [o] "=&r"(o), [column] "=&r"(column)

/* Each of `high` groups of 16 rows of `low` vectors: the 16 vectors at one place of its rows are transposed. */
__attribute__((noinline)) void ax_turn(__local const char* from, __local char* to, __local char* kept, int low,
                                       int high) {
  long p, q, o, column, vector, row = high;
  const long line = 64L * low;
  __asm__ volatile(AX_TURN_KEEP
                   "1:\n\tmovq %[s], %[vector]\n\tshrq $6, %[vector]\n"
                   "2:\n\tmovq %[to], %[o]\n\tmovl $4, %k[column]\n"
                   "3:\n\t" AX_TURN_FOUR "decq %[column]\n\tjnz 3b\n\t"
                   "addq $64, %[to]\n\tdecq %[vector]\n\tjnz 2b\n\t"
                   "movq %[s], %[p]\n\tshlq $4, %[p]\n\tsubq %[s], %[p]\n\taddq %[p], %[from]\n\taddq %[p], %[to]\n\t"
                   "decq %[row]\n\tjnz 1b\n\t" AX_TURN_BACK
                   : [from] "+r"(from), [to] "+r"(to), [row] "+r"(row), AX_TURN_OUT, [vector] "=&r"(vector)
                   : [s] "r"(line), [t] "r"(line), [kept] "r"(kept)
                   : "memory", "cc");
}

/* The transpose of a row-major matrix of words. */
__attribute__((noinline)) void ax_tiles_turn(__local const char* from, __local char* to, __local char* kept, int height,
                                             int width) {
  long p, q, o, column, row = height / 16;
  __asm__ volatile(AX_TURN_KEEP
                   "1:\n\tmovq %[to], %[o]\n\tmovq %[s], %[column]\n\tshrq $4, %[column]\n"
                   "2:\n\t" AX_TURN_FOUR "decq %[column]\n\tjnz 2b\n\t"
                   "movq %[s], %[p]\n\tshlq $4, %[p]\n\tsubq %[s], %[p]\n\taddq %[p], %[from]\n\t" /* the next 16 rows */
                   "addq $64, %[to]\n\tdecq %[row]\n\tjnz 1b\n\t" AX_TURN_BACK
                   : [from] "+r"(from), [to] "+r"(to), [row] "+r"(row), AX_TURN_OUT
                   : [s] "r"(4L * width), [t] "r"(4L * height), [kept] "r"(kept)
                   : "memory", "cc");
}

/* --- ax_tiles_: AMX's tile registers, which keep what they hold from one piece of assembly to the next. All tiles have
 * 16 rows of 64 bytes. */
__constant uchar ax_tiles_shape[64] __attribute__((aligned(64))) = {
    1,  0,  0,  0,  0,  0,  0,  0,  0,  0, 0,  0, 0,  0, 0,  0, /* the palette */
    64, 0,  64, 0,  64, 0,  64, 0,  64, 0, 64, 0, 64, 0, 64, 0, /* bytes of a row, in 16 bits */
    0,  0,  0,  0,  0,  0,  0,  0,  0,  0, 0,  0, 0,  0, 0,  0, /* */
    16, 16, 16, 16, 16, 16, 16, 16, 0,  0, 0,  0, 0,  0, 0,  0}; /* rows */
inline void ax_tiles_enter(__local char* before) {
  __asm__ volatile("sttilecfg (%0)\n\tldtilecfg (%1)" ::"r"(before), "r"(ax_tiles_shape) : "memory");
}
inline void ax_tiles_leave(__local char* before) { __asm__ volatile("ldtilecfg (%0)" ::"r"(before) : "memory"); }

/* --- ax_tiles_round_: f32 in tiles that follow each other, row by row of tiles, as bfloat16: row-major, or in row-major
 * words of two that lie below each other. */
__constant ushort ax_tiles_pairs[32] __attribute__((aligned(64))) = {
    0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
#define AX_TILES_ROUND(name, steps, size, first, each, bytes)                                                         \
  __attribute__((noinline)) void name(__local const char* from, __local char* to, __local char* kept, int height,     \
                                      int width) {                                                                    \
    long o, column, step, row = height / 16;                                                                          \
    __asm__ volatile(                                                                                                 \
        AX_KEEP("0", "16") AX_KEEP("64", "17") first                                                                  \
        "1:\n\tmovq %[columns], %[column]\n"                                                                          \
        "2:\n\tmovq %[to], %[o]\n\tmovl $" steps ", %k[step]\n"                                                       \
        "3:\n\t" each "addq %[t], %[o]\n\tdecq %[step]\n\tjnz 3b\n\t"                                                 \
        "addq $" bytes ", %[to]\n\tdecq %[column]\n\tjnz 2b\n\t"                                                      \
        "movq %[o], %[to]\n\tsubq %[t], %[to]\n\taddq $" bytes ", %[to]\n\tdecq %[row]\n\tjnz 1b\n\t"                 \
        AX_BACK("0", "16") AX_BACK("64", "17")                                                                        \
        : [from] "+r"(from), [to] "+r"(to), [row] "+r"(row), [o] "=&r"(o), [column] "=&r"(column),                    \
          [step] "=&r"(step)                                                                                          \
        : [columns] "r"(width / 16L), [t] "r"((long)size * width), [pairs] "r"(ax_tiles_pairs), [kept] "r"(kept)      \
        : "memory", "cc");                                                                                            \
  }
AX_TILES_ROUND(ax_tiles_round_words, "8", 4, "vmovdqu64 (%[pairs]), %%zmm16\n\t",
               "vmovups 64(%[from]), %%zmm17\n\tvcvtne2ps2bf16 (%[from]), %%zmm17, %%zmm17\n\t"
               "vpermw %%zmm17, %%zmm16, %%zmm17\n\tvmovups %%zmm17, (%[o])\n\tsubq $-128, %[from]\n\t",
               "64")
AX_TILES_ROUND(ax_tiles_round_rows, "16", 2, "",
               "vcvtneps2bf16 (%[from]), %%ymm16\n\tvmovups %%ymm16, (%[o])\n\taddq $64, %[from]\n\t", "32")

/* --- ax_tiles_bf16 ax_tiles_i8: sums of 32 bits of a times b. a: m rows of depth bytes, row-major. b: of n columns, each
 * row a word of four bytes of depth. The sums are tiles that follow each other, row by row of tiles, and are added to what is
 * there unless zero is said to be there. Tiles 0 and 1 are sums, 2 and 3 those below them, 4 and 5 rows of a, 6 and 7
 * columns of b; two rows and columns of tiles are taken at once where there are two. */
#define AX_TILES_YES(text) text
#define AX_TILES_NO(text)
#define AX_TILES_ZERO(at, tile) "tilezero %%tmm" tile "\n\t"
#define AX_TILES_LOAD(at, tile) "tileloadd " at ", %%tmm" tile "\n\t"
#define AX_TILES_STORE(at, tile) "tilestored %%tmm" tile ", " at "\n\t"
#define AX_TILES_SUMS(DO, BELOW, BESIDE)                                                                              \
  DO("(%[sums],%[line],1)", "0") BESIDE(DO("1024(%[sums],%[line],1)", "1"))                                           \
  BELOW("leaq (%[sums],%[zs],8), %[x]\n\tleaq (%[x],%[zs],8), %[x]\n\t" DO("(%[x],%[line],1)", "2"))                  \
  BELOW(BESIDE(DO("1024(%[x],%[line],1)", "3")))
#define AX_TILES_PRODUCT(instruction, START, BELOW, BESIDE, rows, shift, bytes, ahead)                                \
  {                                                                                                                   \
    long x, y, z, left, column, row = m / rows;                                                                       \
    __asm__ volatile(                                                                                                 \
        "1:\n\tmovq %[zs], %[column]\n\tshrq $" shift ", %[column]\n"                                                 \
        "2:\n\t" AX_TILES_SUMS(START, BELOW, BESIDE)                                                                  \
        "movq %[a], %[x]\n\tleaq (%[a],%[xs],8), %[y]\n\tleaq (%[y],%[xs],8), %[y]\n\tmovq %[b], %[z]\n\t"            \
        "movq %[xs], %[left]\n\tshrq $6, %[left]\n"                                                                   \
        "3:\n\t" AX_TILES_LOAD("(%[z],%[zs],1)", "6") AX_TILES_LOAD("(%[x],%[xs],1)", "4")                            \
        instruction " %%tmm6, %%tmm4, %%tmm0\n\t"                                                                     \
        BESIDE(AX_TILES_LOAD("64(%[z],%[zs],1)", "7") instruction " %%tmm7, %%tmm4, %%tmm1\n\t")                      \
        BELOW(AX_TILES_LOAD("(%[y],%[xs],1)", "5") instruction " %%tmm6, %%tmm5, %%tmm2\n\t")                         \
        BELOW(BESIDE(instruction " %%tmm7, %%tmm5, %%tmm3\n\t"))                                                      \
        "addq $64, %[x]\n\taddq $64, %[y]\n\tleaq (%[z],%[zs],8), %[z]\n\tleaq (%[z],%[zs],8), %[z]\n\t"              \
        "decq %[left]\n\tjnz 3b\n\t"                                                                                  \
        AX_TILES_SUMS(AX_TILES_STORE, BELOW, BESIDE)                                                                  \
        "addq $" bytes ", %[b]\n\taddq $" ahead ", %[sums]\n\tdecq %[column]\n\tjnz 2b\n\t"                           \
        "subq %[zs], %[b]\n\tmovq %[y], %[a]\n\tsubq %[xs], %[a]\n\t" /* y is behind 16 rows and a row */             \
        BELOW("leaq (%[a],%[xs],8), %[a]\n\tleaq (%[a],%[xs],8), %[a]\n\t"                                            \
              "leaq (%[sums],%[zs],8), %[sums]\n\tleaq (%[sums],%[zs],8), %[sums]\n\t")                               \
        "decq %[row]\n\tjnz 1b"                                                                                       \
        : [a] "+r"(a), [b] "+r"(b), [sums] "+r"(sums), [row] "+r"(row), [column] "=&r"(column), [x] "=&r"(x),         \
          [y] "=&r"(y), [z] "=&r"(z), [left] "=&r"(left)                                                              \
        : [xs] "r"((long)depth), [zs] "r"(4L * n), [line] "r"(64L)                                                    \
        : "memory", "cc");                                                                                            \
  }
#define AX_TILES_OF(instruction, START)                                                                               \
  if (m >= 32 && n >= 32)                                                                                             \
    AX_TILES_PRODUCT(instruction, START, AX_TILES_YES, AX_TILES_YES, 32, "7", "128", "2048")                          \
  else if (m >= 32)                                                                                                   \
    AX_TILES_PRODUCT(instruction, START, AX_TILES_YES, AX_TILES_NO, 32, "6", "64", "1024")                            \
  else if (n >= 32)                                                                                                   \
    AX_TILES_PRODUCT(instruction, START, AX_TILES_NO, AX_TILES_YES, 16, "7", "128", "2048")                           \
  else                                                                                                                \
    AX_TILES_PRODUCT(instruction, START, AX_TILES_NO, AX_TILES_NO, 16, "6", "64", "1024")
#define AX_TILES(name, instruction)                                                                                   \
  __attribute__((noinline)) void name(__local const char* a, __local const char* b, __local char* sums, int m, int n, \
                                      int depth, int zero) {                                                          \
    if (zero) {                                                                                                       \
      AX_TILES_OF(instruction, AX_TILES_ZERO)                                                                         \
    } else {                                                                                                          \
      AX_TILES_OF(instruction, AX_TILES_LOAD)                                                                         \
    }                                                                                                                 \
  }
AX_TILES(ax_tiles_bf16, "tdpbf16ps")
AX_TILES(ax_tiles_i8, "tdpbssd")
