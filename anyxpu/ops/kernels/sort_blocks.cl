/* Sorting rows that no work-group can hold: radix sort in global memory; sort_keys.cl stands in front of this text.
 *
 * A row is cut in blocks of `block` elements, a work-group each: grid (blocks, rows). Once, differ_blocks finds out
 * which bits differ in a row at all. Then for each digit from the lowest up: count_blocks counts a block's digits,
 * scan_blocks turns a row's counts into first places, and scatter_blocks moves elements there. A digit that is the
 * same in the whole row is passed over by all three. The first digit that moves anything reads the row itself, the
 * last one writes values and indices, and words go to and fro between the two halves of `words` in between.
 */

/* What the device, not the host, knows of a row's passes. */
typedef struct {
  bool active, first, last;
  uint side; /* the half of `words` that this pass reads */
} pass_t;

inline pass_t pass_of(key_t differ, uint shift) {
  pass_t pass;
  uint before = 0;
  for (uint s = 0; s < shift; s += DIGIT_BITS) before += ((differ >> s) & (RADIX - 1)) != 0;
  const bool alike = differ == 0;
  pass.first = before == 0;
  pass.side = (before + 1) & 1;
  pass.active = alike ? shift == 0 : ((differ >> shift) & (RADIX - 1)) != 0;
  pass.last = alike || shift + DIGIT_BITS >= ELEMENT_BITS || (differ >> (shift + DIGIT_BITS)) == 0;
  return pass;
}

inline key_t differ_of(__global const uint* differing, ulong r) {
  return (key_t)((ulong)differing[2 * r + 1] << 32 | differing[2 * r]);
}

#define BLOCK_BOUNDS()                                      \
  const uint lane = get_local_id(0);                        \
  const ulong r = get_group_id(1);                          \
  const ulong first = (ulong)get_group_id(0) * block;       \
  const uint size = (uint)min((ulong)block, length - first); \
  const uint run = (size + LANES - 1) / LANES;              \
  const uint begin = min(lane * run, size);                 \
  const uint end = min(begin + run, size);                  \
  __global const element_t* row = src + r * length;

#define BLOCK_KERNEL __attribute__((reqd_work_group_size(LANES, 1, 1))) __kernel void

/* differing: two halves of 32 bits for each row, zero before. */
BLOCK_KERNEL differ_blocks(__global const element_t* src, __global uint* differing, ulong length, uint block) {
  BLOCK_BOUNDS()
  (void)begin, (void)end;
  const key_t sample = key_of(row[0], 0);
  key_t differ = 0;
  for (uint i = lane; i < size; i += LANES) differ |= key_of(row[first + i], 0) ^ sample;
  if ((uint)differ) atomic_or(&differing[2 * r], (uint)differ);
  if (sizeof(key_t) > 4 && (ulong)differ >> 32) atomic_or(&differing[2 * r + 1], (uint)((ulong)differ >> 32));
}

inline word_t block_word(__global const element_t* row, __global const word_t* from, bool of_row, ulong i, key_t flip) {
  return of_row ? WORD(key_of(row[i], flip), i) : from[i];
}

/* counts: for each row RADIX times as many as there are blocks, those of one digit side by side. */
BLOCK_KERNEL count_blocks(__global const element_t* src, __global const word_t* words, __global const uint* differing,
                          __global ulong* counts, ulong rows, ulong length, uint block, uint shift, key_t flip,
                          __local uint* local_counts) {
  BLOCK_BOUNDS()
  const pass_t pass = pass_of(differ_of(differing, r), shift);
  if (!pass.active) return;
  __global const word_t* from = words + (pass.side * rows + r) * length;
  for (uint i = lane; i < RADIX; i += LANES) local_counts[i] = 0;
  SYNC();
  for (uint i = begin; i < end; ++i) {
    const word_t word = block_word(row, from, pass.first, first + i, flip);
#if LANES == 1
    ++local_counts[DIGIT(word, shift)];
#else
    atomic_inc(&local_counts[DIGIT(word, shift)]);
#endif
  }
  SYNC();
  __global ulong* mine = counts + r * RADIX * get_num_groups(0) + get_group_id(0);
  for (uint i = lane; i < RADIX; i += LANES) mine[(ulong)i * get_num_groups(0)] = local_counts[i];
}

/* One work-group a row. */
BLOCK_KERNEL scan_blocks(__global const uint* differing, __global ulong* counts, ulong blocks, uint shift) {
  const ulong r = get_group_id(0);
  if (!pass_of(differ_of(differing, r), shift).active) return;
  const ulong run = (RADIX * blocks + LANES - 1) / LANES;
  const ulong begin = min(get_local_id(0) * run, RADIX * blocks);
  const ulong end = min(begin + run, RADIX * blocks);
  __global ulong* mine = counts + r * RADIX * blocks;
  ulong sum = 0;
#if LANES > 1
  for (ulong i = begin; i < end; ++i) sum += mine[i];
  sum = work_group_scan_exclusive_add(sum);
#endif
  for (ulong i = begin; i < end; ++i) {
    const ulong count = mine[i];
    mine[i] = sum;
    sum += count;
  }
}

BLOCK_KERNEL scatter_blocks(__global const element_t* src, __global word_t* words, __global const uint* differing,
                            __global const ulong* counts, __global element_t* values, __global long* indices,
                            ulong rows, ulong length, uint block, uint shift, key_t flip, __local ulong* places) {
  BLOCK_BOUNDS()
  const pass_t pass = pass_of(differ_of(differing, r), shift);
  if (!pass.active) return;
  __global const word_t* from = words + (pass.side * rows + r) * length;
  __global word_t* to = words + ((1 - pass.side) * rows + r) * length;
  __global const ulong* firsts = counts + r * RADIX * get_num_groups(0) + get_group_id(0);
#if LANES > 1
  for (uint i = lane; i < LANES * RADIX; i += LANES) places[i] = 0;
  SYNC();
  for (uint i = begin; i < end; ++i)
    ++places[DIGIT(block_word(row, from, pass.first, first + i, flip), shift) * LANES + lane];
  SYNC();
#endif
  /* A lane's first place is the block's, and behind the lanes before it. */
  for (uint digit = lane; digit < RADIX; digit += LANES) {
    ulong place = firsts[(ulong)digit * get_num_groups(0)];
    for (uint l = 0; l < LANES; ++l) {
      const ulong count = LANES > 1 ? places[digit * LANES + l] : 0;
      places[digit * LANES + l] = place;
      place += count;
    }
  }
  SYNC();
  for (uint i = begin; i < end; ++i) {
    const word_t word = block_word(row, from, pass.first, first + i, flip);
    const ulong place = places[DIGIT(word, shift) * LANES + lane]++;
    if (pass.last) {
      values[r * length + place] = element_of(word, flip, row);
      indices[r * length + place] = (long)WORD_INDEX(word);
    } else {
      to[place] = word;
    }
  }
}
