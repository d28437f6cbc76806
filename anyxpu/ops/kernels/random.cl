/* Random numbers by Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
 * SC'11). types.cl stands in front of this text.
 *
 * Built once for a type of elements with -DDST=f32 -DDST_FLOAT=1 -DDST_DIGITS=24 (bits of a float's significand), or
 * without the latter two for an integer or bool.
 *
 * The generator's seed is the key. The counter is the generator's offset in its low half, counted in steps of four
 * outputs, and the work-item in its high half; a work-item makes ELEMENTS_PER_ITEM elements, from one step, or from two
 * where an element takes 64 bits.
 */

typedef GLUE2(mem, DST) dst_t;

#define WORK_GROUP __attribute__((reqd_work_group_size(LOCAL_SIZE, 1, 1)))

inline uint4 philox(ulong seed, ulong step, ulong item) {
  uint4 c = (uint4)((uint)step, (uint)(step >> 32), (uint)item, (uint)(item >> 32));
  uint k0 = (uint)seed, k1 = (uint)(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint high0 = mul_hi(0xd2511f53u, c.x), low0 = 0xd2511f53u * c.x;
    const uint high1 = mul_hi(0xcd9e8d57u, c.z), low1 = 0xcd9e8d57u * c.z;
    c = (uint4)(high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0);
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return c;
}

inline void four32(ulong seed, ulong offset, uint out[4]) {
  const uint4 r = philox(seed, offset / 4, get_global_id(0));
  out[0] = r.x, out[1] = r.y, out[2] = r.z, out[3] = r.w;
}

inline void four64(ulong seed, ulong offset, ulong out[4]) {
  const uint4 r = philox(seed, offset / 4, get_global_id(0));
  const uint4 s = philox(seed, offset / 4 + 1, get_global_id(0));
  out[0] = (ulong)r.y << 32 | r.x, out[1] = (ulong)r.w << 32 | r.z;
  out[2] = (ulong)s.y << 32 | s.x, out[3] = (ulong)s.w << 32 | s.z;
}

/* A work-group takes local size * ELEMENTS_PER_ITEM elements in a row, its work-items side by side. */
#define FOR_EACH_ELEMENT(i, step)                                                                              \
  for (uint step = 0; step < ELEMENTS_PER_ITEM; ++step) {                                                      \
    const ulong i = (get_group_id(0) * ELEMENTS_PER_ITEM + step) * get_local_size(0) + get_local_id(0);        \
    if (i < count)
#define END_FOR_EACH_ELEMENT }

#define WRITE_bool(v) ((uchar)((v) != 0))
#define WRITE_u8(v) ((uchar)(v))
#define WRITE_i8(v) ((char)(v))
#define WRITE_u16(v) ((ushort)(v))
#define WRITE_i16(v) ((short)(v))
#define WRITE_u32(v) ((uint)(v))
#define WRITE_i32(v) ((int)(v))
#define WRITE_u64(v) ((ulong)(v))
#define WRITE_i64(v) ((long)(v))
#define WRITE_f16(v) write_f16((float)(v))
#define WRITE_bf16(v) write_bf16((float)(v))
#define WRITE_f32(v) ((float)(v))
#define WRITE_f64(v) ((double)(v))
#define WRITE GLUE2(WRITE, DST)

/* Integers from `base` up, `range` of them; 0 stands for 2^64. A product's high half spreads 64 random bits over the
 * range (Lemire, "Fast random integer generation in an interval", 2019): no value is likelier than another by more than
 * one part in 2^64/range. */
WORK_GROUP __kernel void random_integers(__global dst_t* dst, ulong count, ulong seed, ulong offset, ulong range, long base) {
  ulong words[4];
  four64(seed, offset, words);
  FOR_EACH_ELEMENT(i, step) {
    const ulong drawn = range ? mul_hi(words[step], range) : words[step];
    dst[i] = WRITE((long)((ulong)base + drawn));
  }
  END_FOR_EACH_ELEMENT
}

/* 1 where 32 random bits are less than `threshold`, 0 elsewhere. */
WORK_GROUP __kernel void random_bernoulli(__global dst_t* dst, ulong count, ulong seed, ulong offset, ulong threshold) {
  uint words[4];
  four32(seed, offset, words);
  FOR_EACH_ELEMENT(i, step) dst[i] = WRITE((int)(words[step] < threshold));
  END_FOR_EACH_ELEMENT
}

/* 1 with a probability of its own for each element, to 24 bits. What is no probability is told to the host. */
WORK_GROUP __kernel void random_bernoulli_each(__global dst_t* dst, ulong count, ulong seed, ulong offset,
                                    __global const float* probability, __global int* record, int number) {
  uint words[4];
  four32(seed, offset, words);
  FOR_EACH_ELEMENT(i, step) {
    const float p = probability[i];
    if (!(p >= 0.0f && p <= 1.0f)) ax_fail(record, number, 0);
    dst[i] = WRITE((int)((words[step] >> 8) * 0x1p-24f < p));
  }
  END_FOR_EACH_ELEMENT
}

#ifdef DST_FLOAT
#if DST_DIGITS == 53
typedef double real_t;
typedef ulong drawn_t;
#define FOUR four64
#define UNIT 0x1p-53
#define HALF 0.5
#else
typedef float real_t;
typedef uint drawn_t;
#define FOUR four32
#define UNIT (1.0f / (1u << DST_DIGITS))
#define HALF 0.5f
#endif
#define READ_f16(x) read_f16(x)
#define READ_bf16(x) read_bf16(x)
#define READ_f32(x) (x)
#define READ_f64(x) (x)
#define READ GLUE2(READ, DST)

/* From `from` up to, not including, `to`: DST_DIGITS random bits scaled, so that [0, 1) is met without rounding. Where
 * another interval's sum rounds up to its end, it begins anew, as ATen's CUDA kernel does. */
WORK_GROUP __kernel void random_uniform(__global dst_t* dst, ulong count, ulong seed, ulong offset, real_t from, real_t to) {
  drawn_t words[4];
  FOUR(seed, offset, words);
  FOR_EACH_ELEMENT(i, step) {
    const real_t unit = (real_t)(words[step] >> (8 * sizeof(drawn_t) - DST_DIGITS)) * UNIT;
    const dst_t made = WRITE(unit * (to - from) + from);
    dst[i] = READ(made) < to ? made : WRITE(from);
  }
  END_FOR_EACH_ELEMENT
}

/* Two normal numbers from two uniform ones (Box and Muller, "A note on the generation of random normal deviates",
 * 1958); the logarithm is of a number in (0, 1]. */
WORK_GROUP __kernel void random_normal(__global dst_t* dst, ulong count, ulong seed, ulong offset, real_t mean, real_t deviation) {
  drawn_t words[4];
  real_t normal[4];
  FOUR(seed, offset, words);
  for (uint pair = 0; pair < 4; pair += 2) {
#if DST_DIGITS == 53
    const real_t u = ((real_t)(words[pair] >> 11) + HALF) * UNIT;
    const real_t angle = (real_t)(words[pair + 1] >> 11) * (2 * UNIT);
#else
    const real_t u = (real_t)words[pair] * 0x1p-32f + 0x1p-33f;
    const real_t angle = (real_t)words[pair + 1] * 0x1p-31f;
#endif
    const real_t radius = sqrt(-2 * log(u));
    normal[pair] = radius * cospi(angle);
    normal[pair + 1] = radius * sinpi(angle);
  }
  FOR_EACH_ELEMENT(i, step) dst[i] = WRITE(normal[step] * deviation + mean);
  END_FOR_EACH_ELEMENT
}
#endif
