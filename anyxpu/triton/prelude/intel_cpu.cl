/* --- ax_from_bits_f16 ax_bits_f16 ax_round_f16 ax_round_rtz_f16:
 * 16-bit floats on Intel's driver for x86 CPUs, whose cl_khr_fp16 conversions are the CPU's own */
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

inline float ax_from_bits_f16(ushort b) { return (float)as_half(b); }
inline ushort ax_bits_f16(float x) { return as_ushort((half)x); }
inline float ax_round_f16(float x) { return (float)(half)x; }
inline float ax_round_rtz_f16(float x) { return (float)convert_half_rtz(x); }

/* --- ax_cpu_dpas_ intel_sub_group_: matrix products that GPUs have as instructions, by broadcasts among 16 lanes */

#define AX_CPU_DPAS_ROW(j, from_bits)                                                             \
  for (int k = 0; k < 16; ++k) {                                                                  \
    const ushort p = (ushort)sub_group_broadcast((int)a.s##j, k);                                 \
    const ushort q = (ushort)(k & 1 ? (uint)b[k >> 1] >> 16 : (uint)b[k >> 1] & 0xffffu);         \
    c.s##j = fma(from_bits(p), from_bits(q), c.s##j);                                             \
  }
#define AX_CPU_DPAS(name, from_bits)                                                              \
  inline float8 name(short8 a, int8 rows, float8 c) {                                             \
    int b[8];                                                                                     \
    vstore8(rows, 0, b);                                                                          \
    AX_CPU_DPAS_ROW(0, from_bits) AX_CPU_DPAS_ROW(1, from_bits) AX_CPU_DPAS_ROW(2, from_bits)     \
    AX_CPU_DPAS_ROW(3, from_bits) AX_CPU_DPAS_ROW(4, from_bits) AX_CPU_DPAS_ROW(5, from_bits)     \
    AX_CPU_DPAS_ROW(6, from_bits) AX_CPU_DPAS_ROW(7, from_bits)                                   \
    return c;                                                                                     \
  }
inline float ax_cpu_dpas_bf16(ushort b) { return as_float((uint)b << 16); }
AX_CPU_DPAS(intel_sub_group_f16_f16_matrix_mad_k16, ax_from_bits_f16)
AX_CPU_DPAS(intel_sub_group_bf16_bf16_matrix_mad_k16, ax_cpu_dpas_bf16)
inline int8 intel_sub_group_i8_i8_matrix_mad_k32(short8 a, int8 rows, int8 c) {
  short x[8];
  int b[8], sums[8];
  vstore8(a, 0, x);
  vstore8(rows, 0, b);
  vstore8(c, 0, sums);
  for (int j = 0; j < 8; ++j)
    for (int k = 0; k < 32; ++k) {
      const short pair = (short)sub_group_broadcast((int)x[j], k >> 1);
      const char p = (char)(k & 1 ? pair >> 8 : pair), q = (char)(b[k >> 2] >> (8 * (k & 3)));
      sums[j] += (int)p * (int)q;
    }
  return vload8(0, sums);
}
