/* Sorting rows that a work-group holds in local memory; sort_keys.cl stands in front of this text.
 *
 * Ways with the same arguments. A row of `length` elements is taken in pieces of `piece` elements, each by one
 * work-group at a time, which puts the `keep` smallest keys of the piece in order:
 *   - with -DTO_WORDS=0, where there is one piece a row, as elements and indices to values and indices;
 *   - with -DTO_WORDS=1 as words to `words_out`, `keep` for each piece, which are taken as `words_in` by
 *   - the next launch, built with -DOF_WORDS=1 (0 takes elements).
 * Not by branches: a CPU's vector code would read and write through masks, and through null pointers slowly.
 * Rows of `src` are `row` elements apart. Sizes of local memory are the caller's; see ops/sort_kernels.py.
 */

#define ARGUMENTS                                                                                         \
  __global const element_t *src, __global const word_t *words_in, __global element_t *values,             \
      __global long *indices, __global word_t *words_out, ulong rows, ulong row, ulong length, uint piece, \
      uint keep, key_t flip, __local word_t *memory

#if OF_WORDS
typedef word_t item_t;
#define ITEM_KEY(item, flip) WORD_KEY(item)
#define ITEM_WORD(item, index, flip) (item)
#define ITEMS (words_in + r * length)
#else
typedef element_t item_t;
#define ITEM_KEY(item, flip) key_of(item, flip)
#define ITEM_WORD(item, index, flip) WORD(key_of(item, flip), index)
#define ITEMS (src + r * row)
#endif

typedef struct {
  __global const element_t* row;
  __global const item_t* items; /* of the piece */
  ulong first;                  /* index of the piece's first one */
  uint size;
  uint keep;
  key_t flip;
#if TO_WORDS
  __global word_t* words_out;
#else
  __global element_t* values;
  __global long* indices;
#endif
} piece_t;

#define FOR_EACH_PIECE(p)                                                           \
  const ulong pieces = (length + piece - 1) / piece;                                \
  for (ulong task = get_group_id(0); task < rows * pieces; task += get_num_groups(0)) { \
    const ulong r = pieces == 1 ? task : task / pieces;                             \
    piece_t p;                                                                      \
    p.first = (task - r * pieces) * piece;                                          \
    p.size = (uint)min((ulong)piece, length - p.first);                             \
    p.keep = keep;                                                                  \
    p.flip = flip;                                                                  \
    p.row = src + r * row;                                                          \
    p.items = ITEMS + p.first;                                                      \
    PUT_OUT(p)
#define END_FOR_EACH_PIECE }

inline word_t word_at(const piece_t* p, uint i) { return ITEM_WORD(p->items[i], p->first + i, p->flip); }

#if TO_WORDS
#define PUT_OUT(p) p.words_out = words_out + task * keep;
inline void emit(const piece_t* p, uint rank, word_t word) {
  if (rank < p->keep) p->words_out[rank] = word;
}
/* A last piece may hold fewer than `keep` elements: words larger than any fill the rest. */
inline void emit_rest(const piece_t* p, uint lane, uint lanes) {
  for (uint i = p->size + lane; i < p->keep; i += lanes) p->words_out[i] = WORD(LARGEST, ~0ul);
}
#else
#define PUT_OUT(p) p.values = values + r * keep, p.indices = indices + r * keep;
inline void emit(const piece_t* p, uint rank, word_t word) {
  if (rank >= p->keep) return;
  p->values[rank] = element_of(word, p->flip, p->row);
  p->indices[rank] = (long)WORD_INDEX(word);
}
#define emit_rest(p, lane, lanes)
#endif

#define SUB_GROUP_KERNEL                                 \
  __attribute__((reqd_work_group_size(SUB_GROUP, 1, 1))) \
  __attribute__((intel_reqd_sub_group_size(SUB_GROUP))) __kernel void

inline uint rank_of(word_t mine, __local const word_t* words, uint count) {
  uint rank = 0;
  for (uint j = 0; j < count; ++j) rank += LESS(words[j], mine);
  return rank;
}

/* A uniform pointer and the lane, here and below: so the compiler sees that lanes lie side by side, and does not
 * gather. Local memory is there for whole sub-groups.
 *
 * Short pieces: an element's place is the number of smaller ones (Knuth, The Art of Computer Programming, volume 3,
 * section 5.2, comparison counting). */
SUB_GROUP_KERNEL rank_rows(ARGUMENTS) {
  const uint lane = get_sub_group_local_id();
  FOR_EACH_PIECE(p)
  for (uint base = 0; base < p.size; base += SUB_GROUP)
    if (base + lane < p.size) (memory + base)[lane] = ITEM_WORD((p.items + base)[lane], p.first + base + lane, flip);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint base = 0; base < p.size; base += SUB_GROUP) {
    const word_t mine = (memory + base)[lane];
    const uint rank = rank_of(mine, memory, p.size);
    if (base + lane < p.size) emit(&p, rank, mine);
  }
  emit_rest(&p, lane, SUB_GROUP);
  barrier(CLK_LOCAL_MEM_FENCE);
  END_FOR_EACH_PIECE
}

#if !TO_WORDS
/* Many short rows: each lane inserts a row of its own into a list of `keep` words. Rows are not cut. */
SUB_GROUP_KERNEL insert_rows(ARGUMENTS) {
  const uint lane = get_sub_group_local_id();
  for (ulong base = get_group_id(0) * SUB_GROUP; base < rows; base += get_num_groups(0) * SUB_GROUP) {
    const ulong r = min(base + lane, rows - 1);
    __global const item_t* items = ITEMS;
    for (uint i = 0; i < length; ++i) {
      word_t word = ITEM_WORD(items[i], i, flip);
      const uint count = min(i, keep);
      if (i >= keep && !sub_group_any(LESS(word, (memory + (keep - 1) * SUB_GROUP)[lane]))) continue;
      for (uint at = 0; at < count; ++at) {
        __local word_t* there = memory + at * SUB_GROUP;
        const word_t other = there[lane];
        const bool smaller = LESS(word, other);
        there[lane] = smaller ? word : other;
        word = smaller ? other : word;
      }
      if (i < keep) (memory + i * SUB_GROUP)[lane] = word;
    }
    if (base + lane >= rows) continue;
    for (uint at = 0; at < keep; ++at) {
      const word_t word = (memory + at * SUB_GROUP)[lane];
      values[r * keep + at] = element_of(word, flip, src + r * row);
      indices[r * keep + at] = (long)WORD_INDEX(word);
    }
  }
}
#endif

/* The few smallest of a piece. A bound is found first: of the least keys of STEPS * SUB_GROUP interleaved parts, the
 * keep-th; so many elements at least are no larger. What is no larger is then collected, and ranked when CANDIDATES are
 * there, which lowers the bound (as the queues of Johnson, Douze and Jegou, "Billion-scale similarity search with
 * GPUs", 2017). Needs keep <= BATCH <= the piece's size. */
#define STEPS 4
#define BATCH (STEPS * SUB_GROUP)
#define CANDIDATES(keep) ((keep) + 2 * BATCH)

inline void keys_at(const piece_t* p, uint next, uint lane, key_t keys[STEPS]) {
  __global const item_t* items = p->items + next;
  if (next + BATCH <= p->size) {
    for (uint s = 0; s < STEPS; ++s) keys[s] = ITEM_KEY((items + s * SUB_GROUP)[lane], p->flip);
  } else {
    for (uint s = 0; s < STEPS; ++s)
      keys[s] = next + s * SUB_GROUP + lane < p->size ? ITEM_KEY((items + s * SUB_GROUP)[lane], p->flip) : LARGEST;
  }
}

inline key_t first_bound(const piece_t* p, uint lane, __local key_t* least) {
  key_t keys[STEPS], mine[STEPS];
  uint smaller[STEPS];
  for (uint s = 0; s < STEPS; ++s) mine[s] = LARGEST, smaller[s] = 0;
  for (uint next = 0; next < p->size; next += BATCH) {
    keys_at(p, next, lane, keys);
    for (uint s = 0; s < STEPS; ++s) mine[s] = min(mine[s], keys[s]);
  }
  for (uint s = 0; s < STEPS; ++s) (least + s * SUB_GROUP)[lane] = mine[s];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint j = 0; j < BATCH; ++j)
    for (uint s = 0; s < STEPS; ++s) smaller[s] += least[j] < mine[s];
  key_t bound = 0;
  for (uint s = 0; s < STEPS; ++s)
    if (smaller[s] < p->keep) bound = max(bound, mine[s]);
  barrier(CLK_LOCAL_MEM_FENCE);
  return sub_group_reduce_max(bound);
}

SUB_GROUP_KERNEL select_rows(ARGUMENTS) {
  const uint lane = get_sub_group_local_id();
  const uint most = CANDIDATES(keep);
  FOR_EACH_PIECE(p)
  __local word_t* words = memory;
  __local word_t* other = memory + most;
  key_t bound = first_bound(&p, lane, (__local key_t*)memory);
  uint count = 0, next = 0;
  while (true) {
    for (; next < p.size && count + BATCH <= most; next += BATCH) {
      key_t keys[STEPS];
      int any = 0;
      keys_at(&p, next, lane, keys);
      for (uint s = 0; s < STEPS; ++s) any |= keys[s] <= bound;
      if (!sub_group_any(any)) continue;
      for (uint s = 0; s < STEPS; ++s) {
        const uint i = next + s * SUB_GROUP + lane;
        const uint mine = keys[s] <= bound && i < p.size;
        const uint at = count + sub_group_scan_exclusive_add(mine);
        if (mine) words[at] = word_at(&p, i);
        count += sub_group_reduce_add(mine);
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const bool finished = next >= p.size;
    for (uint base = 0; base < count; base += SUB_GROUP) {
      const word_t mine = (words + base)[lane];
      const uint rank = rank_of(mine, words, count);
      if (base + lane >= count) continue;
      if (finished)
        emit(&p, rank, mine);
      else if (rank < keep)
        other[rank] = mine;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (finished) break;
    __local word_t* swapped = words;
    words = other;
    other = swapped;
    count = keep;
    /* Later elements are behind equal ones that are there already. */
    bound = WORD_KEY(words[keep - 1]);
    if (bound == 0) next = p.size;
    bound -= 1;
  }
  emit_rest(&p, lane, SUB_GROUP);
  END_FOR_EACH_PIECE
}

/* Longer pieces: radix sort from the lowest digit up, each lane counting and moving a run of its own (Zagha and
 * Blelloch, "Radix sort for vector multiprocessors", 1991). Digits that are the same everywhere are passed over. */
__attribute__((reqd_work_group_size(LANES, 1, 1))) __kernel void radix_rows(ARGUMENTS) {
  const uint lane = get_local_id(0);
  __local uint* counts = (__local uint*)(memory + 2 * piece);
  __local uint* differing = counts + LANES * RADIX;
  FOR_EACH_PIECE(p)
  __local word_t* from = memory;
  __local word_t* to = memory + piece;
  const key_t sample = WORD_KEY(word_at(&p, 0));
  key_t differ = 0;
  for (uint i = lane; i < p.size; i += LANES) {
    const word_t word = word_at(&p, i);
    from[i] = word;
    differ |= WORD_KEY(word) ^ sample;
  }
#if LANES > 1
  if (lane < 2) differing[lane] = 0;
  SYNC();
  atomic_or(&differing[0], (uint)differ);
  if (sizeof(key_t) > 4) atomic_or(&differing[1], (uint)((ulong)differ >> 32));
  SYNC();
  differ = (key_t)((ulong)differing[1] << 32 | differing[0]);
#endif
  const uint run = (p.size + LANES - 1) / LANES;
  const uint begin = min(lane * run, p.size);
  const uint end = min(begin + run, p.size);
  if (differ == 0)
    for (uint i = begin; i < end; ++i) emit(&p, i, from[i]);
  for (uint shift = 0; shift < ELEMENT_BITS && differ != 0; shift += DIGIT_BITS) {
    if (((differ >> shift) & (RADIX - 1)) == 0) continue;
    const bool last = shift + DIGIT_BITS >= ELEMENT_BITS || (differ >> (shift + DIGIT_BITS)) == 0;
    for (uint i = lane; i < LANES * RADIX; i += LANES) counts[i] = 0;
    SYNC();
    for (uint i = begin; i < end; ++i) ++counts[DIGIT(from[i], shift) * LANES + lane];
    SYNC();
    scan_counts(counts, lane);
    SYNC();
    if (last) {
      for (uint i = begin; i < end; ++i) {
        const word_t word = from[i];
        emit(&p, counts[DIGIT(word, shift) * LANES + lane]++, word);
      }
    } else {
      for (uint i = begin; i < end; ++i) {
        const word_t word = from[i];
        to[counts[DIGIT(word, shift) * LANES + lane]++] = word;
      }
    }
    SYNC();
    if (last) break;
    __local word_t* swapped = from;
    from = to;
    to = swapped;
  }
  emit_rest(&p, lane, LANES);
  SYNC();
  END_FOR_EACH_PIECE
}
