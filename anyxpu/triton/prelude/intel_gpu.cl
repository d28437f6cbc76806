/* --- ax_from_bits_f16 ax_bits_f16 ax_round_f16 ax_round_rtz_f16:
 * 16-bit floats on Intel GPUs, which have the conversions in hardware */
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

inline float ax_from_bits_f16(ushort b) { return (float)as_half(b); }
inline ushort ax_bits_f16(float x) { return as_ushort((half)x); }
inline float ax_round_f16(float x) { return (float)(half)x; }
inline float ax_round_rtz_f16(float x) { return (float)convert_half_rtz(x); }

