/* Sorting: what elements are compared by. The sources sort_rows.cl and sort_blocks.cl follow this text.
 *
 * Built once for a type of elements with
 *   -DELEMENT_BITS=32 -DELEMENT_FLOAT=1 (or _SIGNED, or _UNSIGNED) and, for a float, -DINFINITY_BITS=0x7f800000
 *
 * An element's key is an unsigned integer that orders as torch orders elements: both zeros are one key, every NaN is
 * the largest. `flip` is xored onto it, all ones to sort downwards. A word is a key with the element's index in its
 * row, so that no two words are equal and every order of words is a stable order of elements.
 */

#if ELEMENT_BITS == 8
typedef uchar element_t;
#elif ELEMENT_BITS == 16
typedef ushort element_t;
#elif ELEMENT_BITS == 32
typedef uint element_t;
#else
typedef ulong element_t;
#endif

#if ELEMENT_BITS == 64
typedef ulong key_t;
typedef ulong2 word_t; /* key, index */
#define WORD(key, index) ((ulong2)((key), (ulong)(index)))
#define WORD_KEY(word) ((word).x)
#define WORD_INDEX(word) ((word).y)
#define LESS(a, b) ((a).x < (b).x || ((a).x == (b).x && (a).y < (b).y))
#else
typedef uint key_t;
typedef ulong word_t; /* key above index */
#define WORD(key, index) ((ulong)(key) << 32 | (uint)(index))
#define WORD_KEY(word) ((uint)((word) >> 32))
#define WORD_INDEX(word) ((uint)(word))
#define LESS(a, b) ((a) < (b))
#endif

#define SIGN ((key_t)1 << (ELEMENT_BITS - 1))
#define LARGEST ((key_t)(SIGN | (SIGN - 1)))

inline key_t key_of(element_t element, key_t flip) {
#if defined(ELEMENT_FLOAT)
  const key_t magnitude = element & (SIGN - 1);
  const key_t ordered = (element & SIGN) ? SIGN - magnitude : SIGN + magnitude;
  return (magnitude > INFINITY_BITS ? LARGEST : ordered) ^ flip;
#elif defined(ELEMENT_SIGNED)
  return ((key_t)element ^ SIGN) ^ flip;
#else
  return (key_t)element ^ flip;
#endif
}

/* The element of a word. Which zero or which NaN it was, only the row itself still knows. */
inline element_t element_of(word_t word, key_t flip, __global const element_t* row) {
  const key_t key = WORD_KEY(word) ^ flip;
#if defined(ELEMENT_FLOAT)
  if (key == SIGN || key == LARGEST) return row[WORD_INDEX(word)];
  return (element_t)(key > SIGN ? key - SIGN : SIGN | (SIGN - key));
#elif defined(ELEMENT_SIGNED)
  return (element_t)(key ^ SIGN);
#else
  return (element_t)key;
#endif
}

#define RADIX (1u << DIGIT_BITS)
#define DIGIT(word, shift) ((uint)(WORD_KEY(word) >> (shift)) & (RADIX - 1))

/* LANES work-items share what is sorted. A group of one needs neither barriers nor collectives: on a CPU a group is a
 * thread's, and so runs as a plain loop. */
#if LANES == 1
#define SYNC()
#define EXCLUSIVE_SUM(value) 0u
#else
#define SYNC() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define EXCLUSIVE_SUM(value) work_group_scan_exclusive_add(value)
#endif

/* counts[digit * LANES + lane] becomes how many come before the lane's first element of that digit. */
inline void scan_counts(__local uint* counts, uint lane) {
  __local uint* mine = counts + lane * RADIX;
  uint sum = 0;
  for (uint i = 0; i < RADIX; ++i) sum += mine[i];
  uint before = EXCLUSIVE_SUM(sum);
  for (uint i = 0; i < RADIX; ++i) {
    const uint count = mine[i];
    mine[i] = before;
    before += count;
  }
}
