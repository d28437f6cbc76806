/* Copies and fills that a plain transfer cannot do: any strides, any conversion, negation and conjugation. types.cl
 * stands in front of this text.
 *
 * Built once for a (source, destination) pair of types with
 *   -DSRC=f32 -DDST=bf16   element types by types.cl's names; b8 ... b128 move bits as they are
 *   -DOP_NEGATE=0 -DOP_CONJUGATE=0
 * and once for each fill width with -DFILL=b32; with -DON_CPU for a device whose vectors are made of a work-item's own
 * loops.
 *
 * Conversions are ATen's on the CPU: to bool by != 0 of any part, complex to real drops the imaginary part, float to
 * an unsigned integer of 8..32 bits goes through a signed 64-bit one, and everything that becomes a float of 16 or 8
 * bits goes through one of 32, rounded to nearest even each time.
 */

/* --- from memory to a value: kind I (an integer or bool), F (a float), C (a complex number), B (bits) ----------- */
#define READ_bool(x) ((uchar)((x) != 0))
#define READ_u8(x) (x)
#define READ_i8(x) (x)
#define READ_u16(x) (x)
#define READ_i16(x) (x)
#define READ_u32(x) (x)
#define READ_i32(x) (x)
#define READ_u64(x) (x)
#define READ_i64(x) (x)
#define READ_f16(x) read_f16(x)
#define READ_bf16(x) read_bf16(x)
#define READ_f8e4m3(x) read_f8e4m3(x)
#define READ_f8e5m2(x) read_f8e5m2(x)
#define READ_f32(x) (x)
#define READ_f64(x) (x)
#define READ_c32(r) ((float2)(read_f16((r).x), read_f16((r).y)))
#define READ_c64(x) (x)
#define READ_c128(x) (x)
#define READ_b8(x) (x)
#define READ_b16(x) (x)
#define READ_b32(x) (x)
#define READ_b64(x) (x)
#define READ_b128(x) (x)

#define KIND_bool I
#define KIND_u8 I
#define KIND_i8 I
#define KIND_u16 I
#define KIND_i16 I
#define KIND_u32 I
#define KIND_i32 I
#define KIND_u64 I
#define KIND_i64 I
#define KIND_f16 F
#define KIND_bf16 F
#define KIND_f8e4m3 F
#define KIND_f8e5m2 F
#define KIND_f32 F
#define KIND_f64 F
#define KIND_c32 C
#define KIND_c64 C
#define KIND_c128 C
#define KIND_b8 B
#define KIND_b16 B
#define KIND_b32 B
#define KIND_b64 B
#define KIND_b128 B

/* --- from a value to memory: WRITE_<type>_<kind of the value> --------------------------------------------------- */
#define WRITE_bool_I(v) ((uchar)((v) != 0))
#define WRITE_bool_F(v) ((uchar)((v) != 0))
#define WRITE_bool_C(v) ((uchar)((v).x != 0 || (v).y != 0))

#define WRITE_u8_I(v) ((uchar)(v))
#define WRITE_i8_I(v) ((char)(v))
#define WRITE_u16_I(v) ((ushort)(v))
#define WRITE_i16_I(v) ((short)(v))
#define WRITE_u32_I(v) ((uint)(v))
#define WRITE_i32_I(v) ((int)(v))
#define WRITE_u64_I(v) ((ulong)(v))
#define WRITE_i64_I(v) ((long)(v))
#define WRITE_u8_F(v) ((uchar)(long)(v))
#define WRITE_i8_F(v) ((char)(int)(v))
#define WRITE_u16_F(v) ((ushort)(long)(v))
#define WRITE_i16_F(v) ((short)(int)(v))
#define WRITE_u32_F(v) ((uint)(long)(v))
#define WRITE_i32_F(v) ((int)(v))
#define WRITE_u64_F(v) ((v) < 0 ? (ulong)(long)(v) : (ulong)(v))
#define WRITE_i64_F(v) ((long)(v))
#define WRITE_u8_C(v) WRITE_u8_F((v).x)
#define WRITE_i8_C(v) WRITE_i8_F((v).x)
#define WRITE_u16_C(v) WRITE_u16_F((v).x)
#define WRITE_i16_C(v) WRITE_i16_F((v).x)
#define WRITE_u32_C(v) WRITE_u32_F((v).x)
#define WRITE_i32_C(v) WRITE_i32_F((v).x)
#define WRITE_u64_C(v) WRITE_u64_F((v).x)
#define WRITE_i64_C(v) WRITE_i64_F((v).x)

#define WRITE_f16_I(v) write_f16((float)(v))
#define WRITE_f16_F(v) write_f16((float)(v))
#define WRITE_f16_C(v) write_f16((float)(v).x)
#define WRITE_bf16_I(v) write_bf16((float)(v))
#define WRITE_bf16_F(v) write_bf16((float)(v))
#define WRITE_bf16_C(v) write_bf16((float)(v).x)
#define WRITE_f8e4m3_I(v) write_f8e4m3((float)(v))
#define WRITE_f8e4m3_F(v) write_f8e4m3((float)(v))
#define WRITE_f8e4m3_C(v) write_f8e4m3((float)(v).x)
#define WRITE_f8e5m2_I(v) write_f8e5m2((float)(v))
#define WRITE_f8e5m2_F(v) write_f8e5m2((float)(v))
#define WRITE_f8e5m2_C(v) write_f8e5m2((float)(v).x)
#define WRITE_f32_I(v) ((float)(v))
#define WRITE_f32_F(v) ((float)(v))
#define WRITE_f32_C(v) ((float)(v).x)
#define WRITE_f64_I(v) ((double)(v))
#define WRITE_f64_F(v) ((double)(v))
#define WRITE_f64_C(v) ((double)(v).x)

#define WRITE_c32_I(v) ((ushort2)(write_f16((float)(v)), (ushort)0))
#define WRITE_c32_F(v) ((ushort2)(write_f16((float)(v)), (ushort)0))
#define WRITE_c32_C(v) ((ushort2)(write_f16((float)(v).x), write_f16((float)(v).y)))
#define WRITE_c64_I(v) ((float2)((float)(v), 0.0f))
#define WRITE_c64_F(v) ((float2)((float)(v), 0.0f))
#define WRITE_c64_C(v) ((float2)((float)(v).x, (float)(v).y))
#define WRITE_c128_I(v) ((double2)((double)(v), 0.0))
#define WRITE_c128_F(v) ((double2)((double)(v), 0.0))
#define WRITE_c128_C(v) ((double2)((double)(v).x, (double)(v).y))

#define WRITE_b8_B(v) (v)
#define WRITE_b16_B(v) (v)
#define WRITE_b32_B(v) (v)
#define WRITE_b64_B(v) (v)
#define WRITE_b128_B(v) (v)

/* --- on the way ------------------------------------------------------------------------------------------------- */
#if OP_NEGATE
#define NEGATE(v) (-(v))
#else
#define NEGATE(v) (v)
#endif
#if OP_CONJUGATE
#define CONJUGATED(v) (v).y = -(v).y
#else
#define CONJUGATED(v)
#endif

/* --- walks ------------------------------------------------------------------------------------------------------ */
/* MAX_DIMS, ELEMENTS_PER_ITEM and the layouts of these structures are device_kernels.h's. Strides are in bytes; the
 * first dimension varies fastest. */
typedef struct {
  uint size, magic, shift; /* i / size == (mul_hi(i, magic) + i) >> shift for every i < 2^31 */
  int dst_stride, src_stride;
} dim32;
typedef struct {
  uint dims;
  dim32 dim[MAX_DIMS];
} walk32;
typedef struct {
  ulong size;
  long dst_stride, src_stride;
} dim64;
typedef struct {
  ulong dims;
  dim64 dim[MAX_DIMS];
} walk64;

/* A work-group takes local size * ELEMENTS_PER_ITEM elements in a row, its work-items side by side. */
#define ELEMENT(type, step)                                                     \
  ((type)get_group_id(0) * (type)(get_local_size(0) * ELEMENTS_PER_ITEM) +      \
   (type)((step) * get_local_size(0) + get_local_id(0)))

inline uint divided(const dim32* by, uint i) { return (mul_hi(i, by->magic) + i) >> by->shift; }

/* Of the i-th element over the dimensions from `first` on. */
inline int offsets32(const walk32* walk, uint first, uint i, int* src_offset) {
  int dst = 0, src = 0;
  const uint last = walk->dims - 1;
  for (uint d = first; d < last; ++d) {
    const uint next = divided(&walk->dim[d], i);
    const int at = (int)(i - next * walk->dim[d].size);
    dst += at * walk->dim[d].dst_stride;
    src += at * walk->dim[d].src_stride;
    i = next;
  }
  *src_offset = src + (int)i * walk->dim[last].src_stride;
  return dst + (int)i * walk->dim[last].dst_stride;
}

inline long offsets64(const walk64* walk, ulong i, long* src_offset) {
  long dst = 0, src = 0;
  const ulong last = walk->dims - 1;
  for (ulong d = 0; d < last; ++d) {
    const ulong next = i / walk->dim[d].size;
    const long at = (long)(i - next * walk->dim[d].size);
    dst += at * walk->dim[d].dst_stride;
    src += at * walk->dim[d].src_stride;
    i = next;
  }
  *src_offset = src + (long)i * walk->dim[last].src_stride;
  return dst + (long)i * walk->dim[last].dst_stride;
}

/* Work-items in a work-group, each of which takes ELEMENTS_PER_ITEM. */
#define WORK_GROUP __attribute__((reqd_work_group_size(LOCAL_SIZE, 1, 1)))

#ifdef ON_CPU
#define ONE_ITEM __attribute__((reqd_work_group_size(1, 1, 1)))

/* Where a run of the first dimension begins, and how many elements of that dimension are before it. */
inline int run32(const walk32* walk, uint piece, uint* first, int* src_offset) {
  const uint rest = divided(&walk->dim[1], piece);
  *first = (piece - rest * walk->dim[1].size) * RUN;
  int src = 0, dst = 0;
  if (walk->dims > 2) dst = offsets32(walk, 2, rest, &src);
  *src_offset = src + (int)*first * walk->dim[0].src_stride;
  return dst + (int)*first * walk->dim[0].dst_stride;
}
#endif

/* --- kernels ---------------------------------------------------------------------------------------------------- */
#ifdef SRC
typedef GLUE2(mem, SRC) src_t;
typedef GLUE2(mem, DST) dst_t;
#define WRITE_(type, kind, v) WRITE_##type##_##kind(v)
#define WRITE(type, kind, v) WRITE_(type, kind, v)

inline dst_t converted(src_t raw) {
  __auto_type value = GLUE2(READ, SRC)(raw);
  CONJUGATED(value);
  value = NEGATE(value);
  return WRITE(DST, GLUE2(KIND, SRC), value);
}

WORK_GROUP __kernel void copy_dense(__global dst_t* dst, __global const src_t* src, ulong count) {
  for (uint step = 0; step < ELEMENTS_PER_ITEM; ++step) {
    const ulong i = ELEMENT(ulong, step);
    if (i < count) dst[i] = converted(src[i]);
  }
}

WORK_GROUP __kernel void copy_strided32(__global char* dst, __global const char* src, ulong count, walk32 walk) {
  for (uint step = 0; step < ELEMENTS_PER_ITEM; ++step) {
    const uint i = ELEMENT(uint, step);
    if (i >= (uint)count) continue;
    int from;
    const int to = offsets32(&walk, 0, i, &from);
    *(__global dst_t*)(dst + to) = converted(*(__global const src_t*)(src + from));
  }
}

WORK_GROUP __kernel void copy_strided64(__global char* dst, __global const char* src, ulong count, walk64 walk) {
  for (uint step = 0; step < ELEMENTS_PER_ITEM; ++step) {
    const ulong i = ELEMENT(ulong, step);
    if (i >= count) continue;
    long from;
    const long to = offsets64(&walk, i, &from);
    *(__global dst_t*)(dst + to) = converted(*(__global const src_t*)(src + from));
  }
}

#ifdef ON_CPU
/* Along the first dimension, RUN elements at a time. The walk's second dimension counts the runs (it has no strides);
 * the others follow. */
ONE_ITEM __kernel void copy_rows32(__global char* restrict dst, __global const char* restrict src, ulong count, walk32 walk,
                                   uint per_group) {
  const int to_step = walk.dim[0].dst_stride, from_step = walk.dim[0].src_stride;
  const uint start = get_group_id(0) * per_group, end = min((uint)count, start + per_group);
  for (uint piece = start; piece < end; ++piece) {
    int from;
    uint first;
    const int to = run32(&walk, piece, &first, &from);
    const uint size = min((uint)RUN, walk.dim[0].size - first);
    __global char* restrict writes = dst + to;
    __global const char* restrict reads = src + from;
    if (to_step == sizeof(dst_t) && from_step == sizeof(src_t)) {
      for (uint i = 0; i < size; ++i) ((__global dst_t*)writes)[i] = converted(((__global const src_t*)reads)[i]);
    } else if (to_step == sizeof(dst_t) && from_step == 0) {
      const dst_t value = converted(*(__global const src_t*)reads);
      for (uint i = 0; i < size; ++i) ((__global dst_t*)writes)[i] = value;
    } else {
      for (uint i = 0; i < size; ++i)
        *(__global dst_t*)(writes + (int)i * to_step) = converted(*(__global const src_t*)(reads + (int)i * from_step));
    }
  }
}

/* Where the destination is dense along the first dimension and the source along the second: squares of TILE elements
 * that are read along the one and written along the other, so that both sides use whole cache lines. The walk's third
 * dimension and fourth count the squares along the first two (they have no strides); the others follow. */
ONE_ITEM __kernel void copy_tiled32(__global char* restrict dst, __global const char* restrict src, ulong count, walk32 walk,
                                    uint per_group) {
  const dim32 along_dst = walk.dim[0], along_src = walk.dim[1];
  const uint start = get_group_id(0) * per_group, end = min((uint)count, start + per_group);
  for (uint tile = start; tile < end; ++tile) {
    const uint upper = divided(&walk.dim[2], tile), rest = divided(&walk.dim[3], upper);
    const uint a = (tile - upper * walk.dim[2].size) * TILE, b = (upper - rest * walk.dim[3].size) * TILE;
    int from = 0, to = 0;
    if (walk.dims > 4) to = offsets32(&walk, 4, rest, &from);
    __global const char* reads = src + from + (int)a * along_dst.src_stride + (int)(b * sizeof(src_t));
    __global char* writes = dst + to + (int)(a * sizeof(dst_t)) + (int)b * along_src.dst_stride;
    const uint wide = min((uint)TILE, along_dst.size - a), high = min((uint)TILE, along_src.size - b);
    /* The next square, whose rows are too far apart for a processor to see them come, is asked for meanwhile. */
    const bool turns = a + TILE >= along_dst.size;
    __global const char* next = turns ? reads - (int)a * along_dst.src_stride + TILE * sizeof(src_t)
                                      : reads + TILE * along_dst.src_stride;
    dst_t held[TILE][TILE];
    for (uint i = 0; i < wide; ++i) {
      __global const src_t* row = (__global const src_t*)(reads + (int)i * along_dst.src_stride);
      __global const char* coming = next + (int)i * along_dst.src_stride;
      for (uint at = 0; at < TILE * sizeof(src_t); at += 64) __builtin_prefetch((const void*)(coming + at), 0, 3);
      __builtin_prefetch((const void*)(coming + TILE * sizeof(src_t) - 1), 0, 3);
      if (high == TILE) { /* a count that is known makes vectors */
        for (uint j = 0; j < TILE; ++j) held[j][i] = converted(row[j]);
      } else {
        for (uint j = 0; j < high; ++j) held[j][i] = converted(row[j]);
      }
    }
    for (uint j = 0; j < high; ++j) {
      __global dst_t* row = (__global dst_t*)(writes + (int)j * along_src.dst_stride);
      __builtin_prefetch((const void*)(row + 2 * TILE - 1), 1, 3);
      if (wide == TILE) {
        for (uint i = 0; i < TILE; ++i) row[i] = held[j][i];
      } else {
        for (uint i = 0; i < wide; ++i) row[i] = held[j][i];
      }
    }
  }
}
#endif
#endif

#ifdef FILL
typedef GLUE2(mem, FILL) fill_t;

WORK_GROUP __kernel void fill_strided32(__global char* dst, fill_t value, ulong count, walk32 walk) {
  for (uint step = 0; step < ELEMENTS_PER_ITEM; ++step) {
    const uint i = ELEMENT(uint, step);
    int unused;
    if (i < (uint)count) *(__global fill_t*)(dst + offsets32(&walk, 0, i, &unused)) = value;
  }
}

WORK_GROUP __kernel void fill_strided64(__global char* dst, fill_t value, ulong count, walk64 walk) {
  for (uint step = 0; step < ELEMENTS_PER_ITEM; ++step) {
    const ulong i = ELEMENT(ulong, step);
    long unused;
    if (i < count) *(__global fill_t*)(dst + offsets64(&walk, i, &unused)) = value;
  }
}

#ifdef ON_CPU
ONE_ITEM __kernel void fill_rows32(__global char* dst, fill_t value, ulong count, walk32 walk, uint per_group) {
  const int step = walk.dim[0].dst_stride;
  const uint start = get_group_id(0) * per_group, end = min((uint)count, start + per_group);
  for (uint piece = start; piece < end; ++piece) {
    int unused;
    uint first;
    __global char* writes = dst + run32(&walk, piece, &first, &unused);
    const uint size = min((uint)RUN, walk.dim[0].size - first);
    if (step == sizeof(fill_t)) {
      for (uint i = 0; i < size; ++i) ((__global fill_t*)writes)[i] = value;
    } else {
      for (uint i = 0; i < size; ++i) *(__global fill_t*)(writes + (int)i * step) = value;
    }
  }
}
#endif
#endif
