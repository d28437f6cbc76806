/* --- ax_weights_by_tiles: products of up to 16 rows with 32 rows of a weight of 4 or 8 bits, by tile registers. A step
 * takes 64 bytes of each of the 32 rows, of float8 128, looks up the bfloat16 that its numbers are, and lays four
 * planes of 32 by 32 into `work` while the tiles multiply what the step before laid there. In which plane a number lies
 * is in ops/weight_tiles_kernels.py. What follows behind those rows in memory is asked for meanwhile, in order: a CPU
 * reads it faster so than 32 rows at a time. */

/* What the assembly is told, and at which place, 8 bytes each: of x, planes that lie as its steps come; of the weight, the bytes of a row,
 * and where the rows behind it begin; of scales, 4 or 2 bytes, or 0 where one float is all. */
#define AX_WEIGHTS_X 0
#define AX_WEIGHTS_W 1
#define AX_WEIGHTS_PITCH 2
#define AX_WEIGHTS_AHEAD 3
#define AX_WEIGHTS_SCALES 4
#define AX_WEIGHTS_SCALE_BYTES 5
#define AX_WEIGHTS_SCALES_STEP 6
#define AX_WEIGHTS_POINTS 7
#define AX_WEIGHTS_POINTS_STEP 8
#define AX_WEIGHTS_MIDDLE 9
#define AX_WEIGHTS_SUMS 10
#define AX_WEIGHTS_OUT 11
#define AX_WEIGHTS_OUT_STEP 12
#define AX_WEIGHTS_STEPS 13
#define AX_WEIGHTS_STEPS_OF_GROUP 14
#define AX_WEIGHTS_GROUPS 15
#define AX_WEIGHTS_ROWS 16
#define AX_WEIGHTS_LINE 17
#define AX_WEIGHTS_TABLE 18
#define AX_WEIGHTS_PLACES 19
#define AX_WEIGHTS_WORK 20
#define AX_WEIGHTS_TOLD 21
#define AX_WEIGHTS_TEXT(number) #number
#define AX_WEIGHTS_TEXT_OF(number) AX_WEIGHTS_TEXT(number)
#define AX_WEIGHTS_SAID(number) "8*" AX_WEIGHTS_TEXT_OF(number) "(%[a])"

/* Places in `work`: two buffers of four planes, 32 by 16 products and totals, 32 scales and points, shapes of tiles as
 * they were and as they are to be, registers. */
#define AX_WEIGHTS_PLANE "2112"
#define AX_WEIGHTS_OTHER "8448"
#define AX_WEIGHTS_PRODUCTS "16896"
#define AX_WEIGHTS_TOTALS "18944"
#define AX_WEIGHTS_FACTORS "20992"
#define AX_WEIGHTS_LESS "21120"
#define AX_WEIGHTS_BEFORE "21248"
#define AX_WEIGHTS_SHAPE 21312
#define AX_WEIGHTS_KEPT "21376"
#define AX_WEIGHTS_SIZE 22400

#define AX_WEIGHTS_KEEP(at, register) "vmovups %%zmm" register ", " AX_WEIGHTS_KEPT "+" at "(%[k])\n\t"
#define AX_WEIGHTS_BACK(at, register) "vmovups " AX_WEIGHTS_KEPT "+" at "(%[k]), %%zmm" register "\n\t"
#define AX_WEIGHTS_REGISTERS(DO)                                                                                      \
  DO("0", "16")                                                                                                       \
  DO("64", "17") DO("128", "18") DO("192", "19") DO("256", "20") DO("320", "21") DO("384", "22") DO("448", "23")      \
      DO("512", "24") DO("576", "25") DO("640", "26") DO("704", "27") DO("768", "28") DO("832", "29") DO("896", "30") \
          DO("960", "31")

#define AX_WEIGHTS_ASK "prefetcht1 (%[f])\n\taddq $64, %[f]\n\t"
#define AX_WEIGHTS_LAY(a, b, c, d)                                                                  \
  "vmovdqa64 %%zmm" a ", (%[o])\n\tvmovdqa64 %%zmm" b ", " AX_WEIGHTS_PLANE                         \
  "(%[o])\n\t"                                                                                      \
  "vmovdqa64 %%zmm" c ", 2*" AX_WEIGHTS_PLANE "(%[o])\n\tvmovdqa64 %%zmm" d ", 3*" AX_WEIGHTS_PLANE \
  "(%[o])\n\t"                                                                                      \
  "addq %[s], %[p]\n\taddq $64, %[o]\n\t"
/* Of each word two numbers, of 4 bits, at a time. An index's higher bits are not looked at. */
#define AX_WEIGHTS_BITS                                                                            \
  "vmovdqu32 (%[p]), %%zmm16\n\t" AX_WEIGHTS_ASK                                                   \
  "vpsrld $4, %%zmm16, %%zmm17\n\tvpsrld $8, %%zmm16, %%zmm18\n\tvpsrld $12, %%zmm16, %%zmm19\n\t" \
  "vpermw %%zmm31, %%zmm16, %%zmm16\n\tvpermw %%zmm30, %%zmm17, %%zmm17\n\t"                       \
  "vpermw %%zmm31, %%zmm18, %%zmm18\n\tvpermw %%zmm30, %%zmm19, %%zmm19\n\t" AX_WEIGHTS_LAY("16", "17", "18", "19")
#define AX_WEIGHTS_HALF_OF_FLOATS(at, low, high)                                 \
  "vmovdqu64 " at "(%[p]), %%zmm20\n\t" AX_WEIGHTS_ASK                           \
  "vmovdqa64 %%zmm20, %%zmm21\n\tvmovdqa64 %%zmm20, %%zmm22\n\t"                 \
  "vpermi2b %%zmm30, %%zmm31, %%zmm21\n\tvpermi2b %%zmm28, %%zmm29, %%zmm22\n\t" \
  "vpternlogd $0xf8, %%zmm27, %%zmm20, %%zmm21\n\t" /* and the sign */           \
  "vpunpcklbw %%zmm21, %%zmm22, %%zmm" low "\n\tvpunpckhbw %%zmm21, %%zmm22, %%zmm" high "\n\t"
#define AX_WEIGHTS_FLOATS                    \
  AX_WEIGHTS_HALF_OF_FLOATS("0", "16", "17") \
  AX_WEIGHTS_HALF_OF_FLOATS("64", "18", "19") AX_WEIGHTS_LAY("16", "17", "18", "19")

#define AX_WEIGHTS_RIGHT "tileloadd (%[b],%[t],1), %%tmm6\n\tleaq (%[b],%[t],8), %[b]\n\tleaq (%[b],%[t],8), %[b]\n\t"
#define AX_WEIGHTS_MULTIPLY(plane)                                \
  "tileloadd " plane "*" AX_WEIGHTS_PLANE                         \
  "(%[d],%[l],1), %%tmm4\n\ttdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t" \
  "tileloadd 1024+" plane "*" AX_WEIGHTS_PLANE "(%[d],%[l],1), %%tmm5\n\ttdpbf16ps %%tmm6, %%tmm5, %%tmm1\n\t"
#define AX_WEIGHTS_EIGHT(ROW) ROW ROW ROW ROW ROW ROW ROW ROW

/* BETWEEN: what is multiplied with the planes 1 and 3, where that is not the same as with 0 and 2. */
#define AX_WEIGHTS(name, bytes, first, ROW, BETWEEN)                                                           \
  __attribute__((noinline)) void name(__private long* a) {                                                     \
    long w, s, p, o, n, d, b, t, l, c, f, k;                                                                   \
    __asm__ volatile(                                                                                        \
        "movq " AX_WEIGHTS_SAID(AX_WEIGHTS_WORK) ", %[k]\n\t" AX_WEIGHTS_REGISTERS(AX_WEIGHTS_KEEP)                           \
        "sttilecfg " AX_WEIGHTS_BEFORE "(%[k])\n\tldtilecfg " AX_WEIGHTS_TEXT_OF(AX_WEIGHTS_SHAPE) "(%[k])\n\t"                  \
        "movq " AX_WEIGHTS_SAID(AX_WEIGHTS_TABLE) ", %[p]\n\tvmovdqu64 (%[p]), %%zmm31\n\tvmovdqu64 64(%[p]), %%zmm30\n\t" first \
        "movq %[k], %[n]\n\tleaq " AX_WEIGHTS_OTHER "(%[k]), %[d]\n\tmovl $64, %k[l]\n\t"                    \
        "vpxord %%zmm16, %%zmm16, %%zmm16\n\tmovl $64, %k[c]\n\tleaq " AX_WEIGHTS_PRODUCTS "(%[k]), %[o]\n"  \
        "1:\tvmovups %%zmm16, (%[o])\n\taddq $64, %[o]\n\tdecq %[c]\n\tjnz 1b\n\t"                           \
        "movq " AX_WEIGHTS_SAID(AX_WEIGHTS_X) ", %[b]\n\tmovq " AX_WEIGHTS_SAID(AX_WEIGHTS_W) ", %[w]\n\tmovq " AX_WEIGHTS_SAID(AX_WEIGHTS_PITCH) ", %[s]\n\t"  \
        "movq " AX_WEIGHTS_SAID(AX_WEIGHTS_LINE) ", %[t]\n\tmovq " AX_WEIGHTS_SAID(AX_WEIGHTS_AHEAD) ", %[f]\n\t"                              \
        "movq %[w], %[p]\n\tmovq %[n], %[o]\n\tmovl $4, %k[k]\n"                                             \
        "2:\t" AX_WEIGHTS_EIGHT(ROW) "decq %[k]\n\tjnz 2b\n\txchgq %[n], %[d]\n"                             \
        /* a group, and its steps, of which the last lays its own planes once more */                        \
        "3:\ttilezero %%tmm0\n\ttilezero %%tmm1\n\tmovq " AX_WEIGHTS_SAID(AX_WEIGHTS_STEPS_OF_GROUP) ", %[c]\n"               \
        "4:\tdecq " AX_WEIGHTS_SAID(AX_WEIGHTS_STEPS) "\n\tjz 5f\n\taddq $" bytes ", %[w]\n"                                  \
        "5:\tmovq %[w], %[p]\n\tmovq %[n], %[o]\n\t"                                                         \
        AX_WEIGHTS_EIGHT(ROW) AX_WEIGHTS_RIGHT AX_WEIGHTS_MULTIPLY("0")                                      \
        AX_WEIGHTS_EIGHT(ROW) BETWEEN AX_WEIGHTS_MULTIPLY("1")                                               \
        AX_WEIGHTS_EIGHT(ROW) AX_WEIGHTS_RIGHT AX_WEIGHTS_MULTIPLY("2")                                      \
        AX_WEIGHTS_EIGHT(ROW) BETWEEN AX_WEIGHTS_MULTIPLY("3")                                               \
        "xchgq %[n], %[d]\n\tdecq %[c]\n\tjnz 4b\n\t"                                                        \
        "movq " AX_WEIGHTS_SAID(AX_WEIGHTS_WORK) ", %[k]\n\ttilestored %%tmm0, " AX_WEIGHTS_PRODUCTS "(%[k],%[l],1)\n\t"      \
        "tilestored %%tmm1, 1024+" AX_WEIGHTS_PRODUCTS "(%[k],%[l],1)\n\t"                                   \
        "movq " AX_WEIGHTS_SAID(AX_WEIGHTS_SUMS) ", %[o]\n\tvmovups (%[o]), %%zmm25\n\taddq $64, " AX_WEIGHTS_SAID(AX_WEIGHTS_SUMS) "\n\t"     \
        "movq " AX_WEIGHTS_SAID(AX_WEIGHTS_SCALES) ", %[p]\n\tcmpq $2, " AX_WEIGHTS_SAID(AX_WEIGHTS_SCALE_BYTES) "\n\tjb 6f\n\tja 7f\n\t"      \
        "vpmovzxwd (%[p]), %%zmm20\n\tvpslld $16, %%zmm20, %%zmm20\n\t"                                      \
        "vpmovzxwd 32(%[p]), %%zmm21\n\tvpslld $16, %%zmm21, %%zmm21\n\tjmp 8f\n"                            \
        "6:\tvbroadcastss (%[p]), %%zmm20\n\tvmovaps %%zmm20, %%zmm21\n\tjmp 8f\n"                           \
        "7:\tvmovups (%[p]), %%zmm20\n\tvmovups 64(%[p]), %%zmm21\n"                                         \
        "8:\tvmovups %%zmm20, " AX_WEIGHTS_FACTORS "(%[k])\n\tvmovups %%zmm21, 64+" AX_WEIGHTS_FACTORS "(%[k])\n\t" \
        "addq " AX_WEIGHTS_SAID(AX_WEIGHTS_SCALES_STEP) ", %[p]\n\tmovq %[p], " AX_WEIGHTS_SAID(AX_WEIGHTS_SCALES) "\n\t"                      \
        "vbroadcastss " AX_WEIGHTS_SAID(AX_WEIGHTS_MIDDLE) ", %%zmm20\n\tvmovaps %%zmm20, %%zmm21\n\t"                        \
        "movq " AX_WEIGHTS_SAID(AX_WEIGHTS_POINTS) ", %[p]\n\ttestq %[p], %[p]\n\tjz 9f\n\t"                                  \
        "vpmovsxbd (%[p]), %%zmm22\n\tvcvtdq2ps %%zmm22, %%zmm22\n\tvsubps %%zmm22, %%zmm20, %%zmm20\n\t"    \
        "vpmovsxbd 16(%[p]), %%zmm22\n\tvcvtdq2ps %%zmm22, %%zmm22\n\tvsubps %%zmm22, %%zmm21, %%zmm21\n\t"  \
        "addq " AX_WEIGHTS_SAID(AX_WEIGHTS_POINTS_STEP) ", %[p]\n\tmovq %[p], " AX_WEIGHTS_SAID(AX_WEIGHTS_POINTS) "\n"                        \
        "9:\tvmovups %%zmm20, " AX_WEIGHTS_LESS "(%[k])\n\tvmovups %%zmm21, 64+" AX_WEIGHTS_LESS "(%[k])\n\t" \
        /* totals += (products + sums * less) * factors */                                                   \
        "movq %[k], %[o]\n\tmovl $32, %k[c]\n"                                                               \
        "1:\tvmovups " AX_WEIGHTS_PRODUCTS "(%[o]), %%zmm22\n\tvmovups " AX_WEIGHTS_TOTALS "(%[o]), %%zmm23\n\t" \
        "vfmadd231ps " AX_WEIGHTS_LESS "(%[k])%{1to16%}, %%zmm25, %%zmm22\n\t"                               \
        "vfmadd231ps " AX_WEIGHTS_FACTORS "(%[k])%{1to16%}, %%zmm22, %%zmm23\n\t"                            \
        "vmovups %%zmm23, " AX_WEIGHTS_TOTALS "(%[o])\n\taddq $64, %[o]\n\taddq $4, %[k]\n\tdecq %[c]\n\tjnz 1b\n\t" \
        "decq " AX_WEIGHTS_SAID(AX_WEIGHTS_GROUPS) "\n\tjnz 3b\n\t"                                                           \
        "movq " AX_WEIGHTS_SAID(AX_WEIGHTS_WORK) ", %[k]\n\tldtilecfg " AX_WEIGHTS_BEFORE "(%[k])\n\t"                        \
        "movq " AX_WEIGHTS_SAID(AX_WEIGHTS_PLACES) ", %[p]\n\tvmovups (%[p]), %%zmm26\n\t"                                    \
        "movq " AX_WEIGHTS_SAID(AX_WEIGHTS_OUT) ", %[o]\n\tmovq " AX_WEIGHTS_SAID(AX_WEIGHTS_ROWS) ", %[c]\n\tmovq %[k], %[p]\n"               \
        "2:\tkxnorw %%k1, %%k1, %%k1\n\t"                                                                    \
        "vgatherdps " AX_WEIGHTS_TOTALS "(%[p],%%zmm26,4), %%zmm20%{%%k1%}\n\tkxnorw %%k1, %%k1, %%k1\n\t"   \
        "vgatherdps 1024+" AX_WEIGHTS_TOTALS "(%[p],%%zmm26,4), %%zmm21%{%%k1%}\n\t"                         \
        "vcvtne2ps2bf16 %%zmm20, %%zmm21, %%zmm20\n\tvmovdqu64 %%zmm20, (%[o])\n\t"                          \
        "addq " AX_WEIGHTS_SAID(AX_WEIGHTS_OUT_STEP) ", %[o]\n\taddq $4, %[p]\n\tdecq %[c]\n\tjnz 2b\n\t"                     \
        AX_WEIGHTS_REGISTERS(AX_WEIGHTS_BACK)                                                                \
        : [w] "=&r"(w), [s] "=&r"(s), [p] "=&r"(p), [o] "=&r"(o), [n] "=&r"(n), [d] "=&r"(d), [b] "=&r"(b),  \
          [t] "=&r"(t), [l] "=&r"(l), [c] "=&r"(c), [f] "=&r"(f), [k] "=&r"(k)                               \
        : [a] "r"(a)                                                                                         \
        : "memory", "cc"); \
  }
AX_WEIGHTS(ax_weights_of_4_bits, "64", "", AX_WEIGHTS_BITS, AX_WEIGHTS_RIGHT)
AX_WEIGHTS(ax_weights_of_8_bits, "64", "", AX_WEIGHTS_BITS, "")
AX_WEIGHTS(ax_weights_of_floats, "128",
           "vmovdqu64 128(%[p]), %%zmm29\n\tvmovdqu64 192(%[p]), %%zmm28\n\tmovl $0x80808080, %k[c]\n\t"
           "vpbroadcastd %k[c], %%zmm27\n\t",
           AX_WEIGHTS_FLOATS, AX_WEIGHTS_RIGHT)

/* As bfloat16: less 8, the numbers of 4 bits; of those of 8 the lower four bits, and the higher ones, with their sign.
 */
#define AX_WEIGHTS_FROM_0 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0
#define AX_WEIGHTS_FROM_8 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170
#define AX_WEIGHTS_BELOW_0 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80
#define AX_WEIGHTS_HIGH                                                                                           \
  0x0000, 0x4180, 0x4200, 0x4240, 0x4280, 0x42a0, 0x42c0, 0x42e0, 0xc300, 0xc2e0, 0xc2c0, 0xc2a0, 0xc280, 0xc240, \
      0xc200, 0xc180
__constant ushort ax_weights_four[64] = {AX_WEIGHTS_BELOW_0, AX_WEIGHTS_FROM_0, AX_WEIGHTS_BELOW_0, AX_WEIGHTS_FROM_0,
                                         AX_WEIGHTS_BELOW_0, AX_WEIGHTS_FROM_0, AX_WEIGHTS_BELOW_0, AX_WEIGHTS_FROM_0};
__constant ushort ax_weights_eight[64] = {AX_WEIGHTS_FROM_0, AX_WEIGHTS_FROM_8, AX_WEIGHTS_FROM_0,
                                          AX_WEIGHTS_FROM_8, AX_WEIGHTS_HIGH,   AX_WEIGHTS_HIGH};
/* The higher and the lower bytes of what float8_e4m3fn without a sign is. */
#define AX_WEIGHTS_16(byte) \
  byte, byte, byte, byte, byte, byte, byte, byte, byte, byte, byte, byte, byte, byte, byte, byte
#define AX_WEIGHTS_8(byte) byte, byte, byte, byte, byte, byte, byte, byte
#define AX_WEIGHTS_UP 0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240
/* clang-format off */
__constant uchar ax_weights_float8[256] = {
    0, 59, 59, 59, 60, 60, 60, 60, AX_WEIGHTS_8(60), AX_WEIGHTS_16(61), AX_WEIGHTS_16(62), AX_WEIGHTS_16(63),
    AX_WEIGHTS_16(64), AX_WEIGHTS_16(65), AX_WEIGHTS_16(66), AX_WEIGHTS_8(67), 67, 67, 67, 67, 67, 67, 67, 127,
    0, 0, 128, 192, 0, 32, 64, 96, 128, 144, 160, 176, 192, 208, 224, 240, AX_WEIGHTS_UP, AX_WEIGHTS_UP, AX_WEIGHTS_UP,
    AX_WEIGHTS_UP, AX_WEIGHTS_UP, AX_WEIGHTS_UP, 0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 192};
/* clang-format on */
__constant int ax_weights_lines[16] = {0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240};

/* kind: 4, 8, or 9 for float8_e4m3fn. n: of the whole weight, whose 32 rows from `row` on are taken. */
__attribute__((noinline)) void ax_weights_rows(int kind, long x, long sums, long w, long scales, long points, long out,
                                               int row, int n, int k, int m, int group, int scale_bytes) {
  long told[AX_WEIGHTS_TOLD];
  char space[AX_WEIGHTS_SIZE + 64];
  const long work = ((long)space + 63) & ~63L, pitch = kind == 4 ? k / 2 : k;
  for (int i = 0; i < 8; ++i) *(__private long*)(work + AX_WEIGHTS_SHAPE + 8 * i) = 0;
  *(__private char*)(work + AX_WEIGHTS_SHAPE) = 1;
  for (int i = 0; i < 8; ++i) { /* tiles 4 and 5 hold the weight's numbers; what the others have of a row is m words */
    *(__private ushort*)(work + AX_WEIGHTS_SHAPE + 16 + 2 * i) = (ushort)((i | 1) == 5 ? 64 : 4 * m);
    *(__private char*)(work + AX_WEIGHTS_SHAPE + 48 + i) = 16;
  }
  told[AX_WEIGHTS_X] = x;
  told[AX_WEIGHTS_W] = w + row * pitch;
  told[AX_WEIGHTS_PITCH] = pitch;
  told[AX_WEIGHTS_AHEAD] = told[AX_WEIGHTS_W] + 32 * pitch;
  told[AX_WEIGHTS_SCALES] = scales + (long)row * scale_bytes;
  told[AX_WEIGHTS_SCALE_BYTES] = scale_bytes;
  told[AX_WEIGHTS_SCALES_STEP] = (long)n * scale_bytes;
  told[AX_WEIGHTS_POINTS] = points ? points + row : 0;
  told[AX_WEIGHTS_POINTS_STEP] = n;
  told[AX_WEIGHTS_MIDDLE] = kind == 4 ? as_int(8.0f) : 0;
  told[AX_WEIGHTS_SUMS] = sums;
  told[AX_WEIGHTS_OUT] = out + 2L * row;
  told[AX_WEIGHTS_OUT_STEP] = 2L * n;
  told[AX_WEIGHTS_STEPS] = kind == 9 ? pitch / 128 : pitch / 64;
  told[AX_WEIGHTS_STEPS_OF_GROUP] = told[AX_WEIGHTS_STEPS] * group / k;
  told[AX_WEIGHTS_GROUPS] = k / group;
  told[AX_WEIGHTS_ROWS] = m;
  told[AX_WEIGHTS_LINE] = 4L * m;
  told[AX_WEIGHTS_TABLE] = kind == 4 ? (long)ax_weights_four : kind == 8 ? (long)ax_weights_eight : (long)ax_weights_float8;
  told[AX_WEIGHTS_PLACES] = (long)ax_weights_lines;
  told[AX_WEIGHTS_WORK] = work;
  if (kind == 4)
    ax_weights_of_4_bits(told);
  else if (kind == 8)
    ax_weights_of_8_bits(told);
  else
    ax_weights_of_floats(told);
}
inline int ax_weights_by_tiles(int kind, long x, long sums, long w, long scales, long points, long out, int row, int n,
                               int k, int m, int group, int scale_bytes) {
  if (get_sub_group_local_id() == 0)
    ax_weights_rows(kind, x, sums, w, scales, points, out, row, n, k, m, group, scale_bytes);
  return 0;
}
