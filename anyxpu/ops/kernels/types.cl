/* Elements as they lie in memory, by the names that build options use, and floats of 16 and 8 bits. Other texts follow this one.
 */

#define GLUE2_(a, b) a##_##b
#define GLUE2(a, b) GLUE2_(a, b)

/* --- types in memory -------------------------------------------------------------------------------------------- */
typedef uchar mem_bool;
typedef uchar mem_u8;
typedef char mem_i8;
typedef ushort mem_u16;
typedef short mem_i16;
typedef uint mem_u32;
typedef int mem_i32;
typedef ulong mem_u64;
typedef long mem_i64;
typedef ushort mem_f16;
typedef ushort mem_bf16;
typedef uchar mem_f8e4m3;
typedef uchar mem_f8e5m2;
typedef float mem_f32;
typedef ushort2 mem_c32;
typedef float2 mem_c64;
typedef uchar mem_b8;
typedef ushort mem_b16;
typedef uint mem_b32;
typedef ulong mem_b64;
typedef ulong2 mem_b128;
#ifdef HAS_FP64
typedef double mem_f64;
typedef double2 mem_c128;
#endif

/* --- 16-bit floats ---------------------------------------------------------------------------------------------- */
#ifdef ON_CPU
/* By integers, of which loops make vectors; Intel's compiler for CPUs converts one by one what goes through memory. No
 * step makes or takes a subnormal f32, which the device may flush. */
inline float read_f16(ushort bits) {
  const uint magnitude = bits & 0x7fffu, sign = (uint)(bits & 0x8000u) << 16;
  const uint normal = (magnitude << 13) + ((127u - 15u) << 23);
  const uint subnormal = as_uint((float)(int)magnitude * 0x1p-24f);
  const uint special = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? 0x400000u : 0u);
  const uint value = magnitude < 0x400u ? subnormal : magnitude < 0x7c00u ? normal : special;
  return as_float(value | sign);
}
inline ushort write_f16(float value) {
  const uint bits = as_uint(value), magnitude = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
  const uint normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - ((127u - 15u) << 23)) >> 13;
  const uint subnormal = as_uint(as_float(magnitude) + 0.5f) - as_uint(0.5f); /* rounded where 2^-24 is the last bit */
  const uint special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  /* 65520 and above round to infinity, by the carry of `normal` up to 65536. */
  return (ushort)(sign | (magnitude < 0x38800000u ? subnormal : magnitude < 0x47800000u ? normal : special));
}
#else
inline float read_f16(ushort bits) { return vload_half(0, (const half*)&bits); }
inline ushort write_f16(float value) {
  ushort bits;
  vstore_half_rte(value, 0, (half*)&bits);
  return bits;
}
#endif
inline float read_bf16(ushort bits) { return as_float((uint)bits << 16); }
inline ushort write_bf16(float value) {
  const uint bits = as_uint(value);
  const uint rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (ushort)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

/* --- 8-bit floats, as in "FP8 formats for deep learning" (Micikevicius et al., 2022) ------------------------------ */
/* No function is called in a choice, of which a CPU's compiler would make a branch for each lane.
 * e4m3 has no infinity, and a NaN of either sign; -DE4M3_BEYOND is what a number becomes that is too large: the largest
 * (0x7e) or NaN (0x7f). e5m2 is the upper half of an f16. */
#ifndef E4M3_BEYOND
#define E4M3_BEYOND 0x7eu
#endif
inline float read_f8e4m3(uchar bits) {
  const uint magnitude = bits & 0x7fu, sign = (uint)(bits & 0x80u) << 24;
  const uint normal = (magnitude << 20) + ((127u - 7u) << 23);
  const uint subnormal = as_uint((float)(int)magnitude * 0x1p-9f);
  return as_float(sign | (magnitude < 8u ? subnormal : magnitude < 0x7fu ? normal : 0x7ff00000u));
}
inline uchar write_f8e4m3(float value) {
  const uint bits = as_uint(value), magnitude = bits & 0x7fffffffu, sign = (bits >> 24) & 0x80u;
  const uint normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - ((127u - 7u) << 23)) >> 20;
  const uint subnormal = as_uint(as_float(magnitude) + 0x1p14f) - as_uint(0x1p14f); /* its last bit is 2^-9 */
  const uint special = magnitude > 0x7f800000u ? 0x7fu : E4M3_BEYOND;
  const uint large = normal < E4M3_BEYOND ? normal : E4M3_BEYOND; /* above 464 the carry makes it 0x7f */
  return (uchar)(sign | (magnitude < 0x3c800000u ? subnormal : magnitude < 0x43f00000u ? large : special));
}
inline float read_f8e5m2(uchar bits) { return read_f16((ushort)(bits << 8)); }
inline uchar write_f8e5m2(float value) {
  const uint bits = as_uint(value), magnitude = bits & 0x7fffffffu, sign = (bits >> 24) & 0x80u;
  const uint normal = (magnitude + 0xfffffu + ((magnitude >> 21) & 1u) - ((127u - 15u) << 23)) >> 21;
  const uint subnormal = as_uint(as_float(magnitude) + 0x1p7f) - as_uint(0x1p7f); /* its last bit is 2^-16 */
  const uint special = magnitude > 0x7f800000u ? 0x7fu : 0x7cu;
  return (uchar)(sign | (magnitude < 0x38800000u ? subnormal : magnitude < 0x47800000u ? normal : special));
}
