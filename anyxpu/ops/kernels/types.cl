/* Elements as they lie in memory, by the names that build options use, and 16-bit floats. Other texts follow this one.
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
inline float read_f16(ushort bits) { return vload_half(0, (const half*)&bits); }
inline ushort write_f16(float value) {
  ushort bits;
  vstore_half_rte(value, 0, (half*)&bits);
  return bits;
}
inline float read_bf16(ushort bits) { return as_float((uint)bits << 16); }
inline ushort write_bf16(float value) {
  const uint bits = as_uint(value);
  const uint rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (ushort)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}
