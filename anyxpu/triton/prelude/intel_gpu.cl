/* --- ax_from_bits_f16 ax_bits_f16 ax_round_f16 ax_round_rtz_f16:
 * 16-bit floats on Intel GPUs, which have the conversions in hardware */
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

inline float ax_from_bits_f16(ushort b) { return (float)as_half(b); }
inline ushort ax_bits_f16(float x) { return as_ushort((half)x); }
inline float ax_round_f16(float x) { return (float)(half)x; }
inline float ax_round_rtz_f16(float x) { return (float)convert_half_rtz(x); }

/* --- ax_exp2: powers of two, which the hardware has */
#define ax_exp2 exp2

/* --- ax_power_of_2: the same */
inline float ax_power_of_2(float x) { return exp2(x); }

/* --- ax_erf: the error function, of the driver's library */
#define ax_erf erf

/* --- ax_fetch_line: nothing, as an address beyond what is allocated may not be touched here */
inline int ax_fetch_line(long at) { return 0; }

/* --- ax_prefetch: the cache line around an address, on its way while the kernel goes on. The compiler makes OpenCL's
 * own function a load without a destination, into the cache that all cores share. */

inline void ax_prefetch(__global const char* p) { prefetch(p, 1); }

