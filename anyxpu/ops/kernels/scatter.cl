/* Reducing elements into the places that an index names along one dimension. types.cl and assertions.cl stand in front
 * of this text.
 *
 * Built once for a type of elements, of indices and a reduction, with
 *   -DELEMENT=f32 -DELEMENT_FLOAT=1   types.cl's name; 0 for an integer or bool
 *   -DINDEX=i64 -DREDUCE=sum          or prod, amax, amin
 *   -DINCLUDE_SELF=1                  0: what is in a place before the first element comes there does not count
 *   -DSIDE_BY_SIDE=1                  lines of the last dimension are one element apart in self, src and the index
 *   -DCONTIGUOUS=1                    a line's elements are one element apart in all three tensors
 *   -DINDEX_SHARED=1                  the same, but for the index, which is one for all of them (expanded)
 *   -DELEMENT_WORD=1                  elements have 32 bits
 *   -DLANES=16                        work-items of a work-group
 *
 * A line is what lies along the dimension at one position of the other ones. Only elements of one line meet in a place,
 * so a line belongs to one work-item: no atomics, and the order is that of the index. Positions of lines have three
 * dimensions, the last of them with the smallest steps.
 *
 * An element whose index is out of range goes nowhere, and the host is told.
 */

typedef GLUE2(mem, ELEMENT) element_t;
typedef GLUE2(mem, INDEX) index_t;

/* --- reductions: integers wrap around, 16-bit floats are rounded after each step, NaN stays ----------------------- */
#define READ_bool(x) ((int)(x))
#define READ_u8(x) ((uint)(x))
#define READ_i8(x) ((int)(x))
#define READ_i16(x) ((int)(x))
#define READ_i32(x) (x)
#define READ_i64(x) (x)
#define READ_f16(x) read_f16(x)
#define READ_bf16(x) read_bf16(x)
#define READ_f32(x) (x)
#define READ_f64(x) (x)
#define READ GLUE2(READ, ELEMENT)

#define WRITE_bool(v) ((uchar)((v) != 0))
#define WRITE_u8(v) ((uchar)(v))
#define WRITE_i8(v) ((char)(v))
#define WRITE_i16(v) ((short)(v))
#define WRITE_i32(v) ((int)(v))
#define WRITE_i64(v) ((long)(v))
#define WRITE_f16(v) write_f16(v)
#define WRITE_bf16(v) write_bf16(v)
#define WRITE_f32(v) (v)
#define WRITE_f64(v) (v)
#define WRITE GLUE2(WRITE, ELEMENT)

#define LEAST_bool 0
#define LEAST_u8 0
#define LEAST_i8 CHAR_MIN
#define LEAST_i16 SHRT_MIN
#define LEAST_i32 INT_MIN
#define LEAST_i64 LONG_MIN
#define MOST_bool 1
#define MOST_u8 UCHAR_MAX
#define MOST_i8 CHAR_MAX
#define MOST_i16 SHRT_MAX
#define MOST_i32 INT_MAX
#define MOST_i64 LONG_MAX

#if ELEMENT_FLOAT
#define IS_NAN(v) isnan(v)
#define START_amax WRITE(-INFINITY)
#define START_amin WRITE(INFINITY)
#else
#define IS_NAN(v) false
#define START_amax GLUE2(LEAST, ELEMENT)
#define START_amin GLUE2(MOST, ELEMENT)
#endif
/* Another GLUE2, whose results may contain that one. */
#define GLUE_(a, b) a##_##b
#define GLUE(a, b) GLUE_(a, b)
#define START_sum WRITE(0)
#define START_prod WRITE(1)
#define START ((element_t)GLUE(START, REDUCE))

/* Overflow is defined for unsigned integers only. */
#if ELEMENT_FLOAT
#define NUMBER(x) READ(x)
#else
#define NUMBER(x) ((ulong)READ(x))
#endif
#define APPLY_sum(a, b) WRITE(NUMBER(a) + NUMBER(b))
#define APPLY_prod(a, b) WRITE(NUMBER(a) * NUMBER(b))
#define APPLY_amax(a, b) (READ(a) >= READ(b) || IS_NAN(READ(a)) ? (a) : (b))
#define APPLY_amin(a, b) (READ(a) <= READ(b) || IS_NAN(READ(a)) ? (a) : (b))

inline element_t reduce(element_t there, element_t given) { return GLUE(APPLY, REDUCE)(there, given); }

/* --- where things are, in elements: `size` is self's along the dimension, `length` the index's --------------------- */
#define STEPS(of) long of##_step, long of##_inner, long of##_middle, long of##_outer
#define ARGUMENTS                                                                                      \
  __global element_t *self, __global const index_t *index, __global const element_t *src, ulong size,  \
      ulong length, ulong inner, ulong middle, ulong outer, STEPS(self), STEPS(index), STEPS(src),     \
      uint block, __global int *record, int number
#define AT_LINE(of, i, m, o) (of + (long)(i)*of##_inner + (long)(m)*of##_middle + (long)(o)*of##_outer)
#if SIDE_BY_SIDE
#define BESIDE(of, lane) (lane)
#else
#define BESIDE(of, lane) ((long)(lane)*of##_inner)
#endif

#if CONTIGUOUS
#define ALONG(of, k) (k)
#else
#define ALONG(of, k) ((long)(k)*of##_step)
#endif

/* An index below zero is, as an unsigned one, too large. */
#define PUT(lane, k, value)                                                              \
  {                                                                                      \
    const ulong at = (ulong)(long)(index_line + ALONG(index, k))[BESIDE(index, lane)]; \
    if (at < size) {                                                                     \
      __global element_t* there = self_line + ALONG(self, at) + BESIDE(self, lane); \
      *there = value;                                                                    \
    } else {                                                                             \
      lost = true;                                                                       \
    }                                                                                    \
  }
#define REDUCED(lane, k) reduce(*there, (src_line + ALONG(src, k))[BESIDE(src, lane)])

/* Places of lines with the same index lie side by side, apart from src: vector code without a check. */
#define PUT_ROW(k, width)                                                                    \
  {                                                                                          \
    const ulong at = (ulong)(long)index_line[(long)(k)*index_step];                          \
    if (at < size) {                                                                         \
      __global element_t* row = self_line + (long)at * self_step;                            \
      __global const element_t* given = src_line + (long)(k)*src_step;                       \
      _Pragma("clang loop vectorize(assume_safety)") for (uint lane = 0; lane < width; ++lane) \
          row[lane] = reduce(row[lane], given[lane]);                                        \
    } else {                                                                                 \
      lost = true;                                                                           \
    }                                                                                        \
  }

/* Each work-item takes a line at a time, work-items side by side. */
__attribute__((reqd_work_group_size(LANES, 1, 1))) __kernel void scatter_lines(ARGUMENTS) {
  const ulong lines = inner * middle * outer;
  bool lost = false;
  for (ulong n = get_global_id(0); n < lines; n += get_global_size(0)) {
    const ulong i = n % inner, m = n / inner % middle, o = n / inner / middle;
    __global element_t* self_line = AT_LINE(self, i, m, o);
    __global const index_t* index_line = AT_LINE(index, i, m, o);
    __global const element_t* src_line = AT_LINE(src, i, m, o);
#if !INCLUDE_SELF
    for (ulong k = 0; k < length; ++k) PUT(0, k, START)
#endif
    _Pragma("unroll 4") for (ulong k = 0; k < length; ++k) PUT(0, k, REDUCED(0, k))
  }
  if (lost) ax_fail(record, number, 0);
}

/* A CPU's work-item takes `block` lines that are neighbours, as it would read their index and src by rows. Rows of self
 * are often a power of two apart, and short pieces of them would share few sets of the caches. */
__attribute__((reqd_work_group_size(1, 1, 1))) __kernel void scatter_blocks(ARGUMENTS) {
  const ulong blocks = (inner + block - 1) / block;
  bool lost = false;
  for (ulong n = get_group_id(0); n < blocks * middle * outer; n += get_num_groups(0)) {
    const ulong i = n % blocks * block, m = n / blocks % middle, o = n / blocks / middle;
    const uint width = (uint)min((ulong)block, inner - i);
    __global element_t* self_line = AT_LINE(self, i, m, o);
    __global const index_t* index_line = AT_LINE(index, i, m, o);
    __global const element_t* src_line = AT_LINE(src, i, m, o);
#if !INCLUDE_SELF
    for (ulong k = 0; k < length; ++k)
      for (uint lane = 0; lane < width; ++lane) PUT(lane, k, START)
#endif
#if INDEX_SHARED
    for (ulong k = 0; k < length; ++k) PUT_ROW(k, width)
#else
    for (ulong k = 0; k < length; ++k) {
      _Pragma("unroll 4") for (uint lane = 0; lane < width; ++lane) PUT(lane, k, REDUCED(lane, k))
    }
#endif
  }
  if (lost) ax_fail(record, number, 0);
}

#if ELEMENT_WORD
#define WORD(element) (*(const uint*)&(element))
/* Few long lines on a GPU: work-items share one, by atomics on words of 32 bits. Reductions into self only, and in any
 * order. */
__attribute__((reqd_work_group_size(LANES, 1, 1))) __kernel void scatter_shared(ARGUMENTS) {
  const ulong lines = inner * middle * outer;
  bool lost = false;
  for (ulong n = get_global_id(0); n < lines * length; n += get_global_size(0)) {
    const ulong k = n % length, line = n / length;
    const ulong i = line % inner, m = line / inner % middle, o = line / inner / middle;
    const ulong at = (ulong)(long)AT_LINE(index, i, m, o)[(long)k * index_step];
    if (at >= size) {
      lost = true;
      continue;
    }
    const element_t given = AT_LINE(src, i, m, o)[(long)k * src_step];
    volatile __global uint* there = (volatile __global uint*)(AT_LINE(self, i, m, o) + (long)at * self_step);
    for (uint seen = *there, before = ~seen; seen != before;) {
      before = seen;
      const element_t reduced = reduce(*(const element_t*)&before, given);
      seen = atomic_cmpxchg(there, before, WORD(reduced));
    }
  }
  if (lost) ax_fail(record, number, 0);
}
#endif
