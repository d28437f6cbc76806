/* Numbers of distributions whose parameters are each element's own, by rejection. types.cl, assertions.cl and random.cl
 * stand in front of this text; it is built for floats alone.
 *
 * An element has a stream of its own: the counter's high half is the element, its low half goes on from the generator's
 * offset by one step of four outputs a draw, TRIES of them at most, which the host reserves. What is refused so often
 * (of a probability below 2^-60) is taken as it is.
 */

typedef struct {
  ulong seed, step, item, last;
  uint4 words;
  uint left; /* of `words` */
} stream_t;

inline stream_t stream_of(ulong seed, ulong offset, ulong item) {
  stream_t s = {seed, offset / 4, item, offset / 4 + TRIES, (uint4)(0), 0};
  return s;
}

/* Another draw may be made. */
inline bool goes_on(const stream_t* s) { return s->step < s->last || s->left >= 2; }

/* Of (0, 1). */
inline float uniform_of(stream_t* s) {
  if (s->left == 0) {
    s->words = philox(s->seed, s->step++, s->item);
    s->left = 4;
  }
  const uint drawn = s->words.x;
  s->words = s->words.yzwx;
  s->left -= 1;
  return (float)(drawn >> 9) * 0x1p-23f + 0x1p-24f;
}

inline float normal_of(stream_t* s) {
  const float radius = sqrt(-2.0f * log(uniform_of(s)));
  return radius * cospi(2.0f * uniform_of(s));
}

/* Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; of a shape below 1, one larger by 1
 * times u^(1/shape). */
inline float gamma_of(stream_t* s, float shape) {
  float factor = 1.0f;
  if (shape < 1.0f) {
    if (shape == 0.0f) return 0.0f;
    factor = pow(uniform_of(s), 1.0f / shape);
    shape += 1.0f;
  }
  const float d = shape - 1.0f / 3.0f, c = rsqrt(9.0f * d);
  float v = 1.0f;
  while (goes_on(s)) {
    const float x = normal_of(s), root = 1.0f + c * x;
    if (root <= 0.0f) continue;
    v = root * root * root;
    if (log(uniform_of(s)) < 0.5f * x * x + d - d * v + d * log(v)) break;
  }
  return factor * d * v;
}

/* Products of uniform numbers until they fall below e^-rate (Knuth); from a rate of 10 on Hormann, "The transformed
 * rejection method for generating Poisson random variables", 1993 (PTRS). */
inline float poisson_of(stream_t* s, float rate) {
  if (rate == 0.0f) return 0.0f;
  if (rate < 10.0f) {
    const float end = exp(-rate);
    float product = uniform_of(s), made = 0.0f;
    for (; product > end && goes_on(s); made += 1.0f) product *= uniform_of(s);
    return made;
  }
  const float root = sqrt(rate), log_rate = log(rate);
  const float b = 0.931f + 2.53f * root, a = -0.059f + 0.02483f * b;
  const float inverse = 1.1239f + 1.1328f / (b - 3.4f), enough = 0.9277f - 3.6224f / (b - 2.0f);
  float made = floor(rate);
  while (goes_on(s)) {
    const float u = uniform_of(s) - 0.5f, v = uniform_of(s), us = 0.5f - fabs(u);
    const float k = floor((2.0f * a / us + b) * u + rate + 0.43f);
    if (us >= 0.07f && v <= enough) return k;
    if (k < 0.0f || (us < 0.013f && v > us)) continue;
    made = k;
    if (log(v * inverse / (a / (us * us) + b)) <= k * log_rate - rate - lgamma(k + 1.0f)) break;
  }
  return made;
}

/* What Stirling's formula leaves of log(k!). */
inline float stirling_rest(float k) {
  if (k < 10.0f) return lgamma(k + 1.0f) - ((k + 0.5f) * log(k + 1.0f) - (k + 1.0f) + 0.91893853320467f);
  const float square = (k + 1.0f) * (k + 1.0f);
  return (1.0f / 12.0f - (1.0f / 360.0f - 1.0f / (1260.0f * square)) / square) / (k + 1.0f);
}

/* Sums of geometric numbers where few successes are expected; else Hormann, "The generation of binomial random
 * variates", 1993 (BTRS). `p` is at most a half. */
inline float binomial_below(stream_t* s, float n, float p) {
  if (n * p < 10.0f) {
    const float by = log1p(-p);
    float made = 0.0f, sum = ceil(log(uniform_of(s)) / by);
    for (; sum <= n && goes_on(s); made += 1.0f) sum += ceil(log(uniform_of(s)) / by);
    return made;
  }
  const float deviation = sqrt(n * p * (1.0f - p));
  const float b = 1.15f + 2.53f * deviation, a = -0.0873f + 0.0248f * b + 0.01f * p, c = n * p + 0.5f;
  const float enough = 0.92f - 4.2f / b, odds = p / (1.0f - p), alpha = (2.83f + 5.1f / b) * deviation;
  const float m = floor((n + 1.0f) * p);
  float made = m;
  while (goes_on(s)) {
    const float u = uniform_of(s) - 0.5f, v = uniform_of(s), us = 0.5f - fabs(u);
    const float k = floor((2.0f * a / us + b) * u + c);
    if (us >= 0.07f && v <= enough) return k;
    if (k < 0.0f || k > n) continue;
    made = k;
    const float bound = (m + 0.5f) * log((m + 1.0f) / (odds * (n - m + 1.0f))) +
                        (n + 1.0f) * log((n - m + 1.0f) / (n - k + 1.0f)) +
                        (k + 0.5f) * log(odds * (n - k + 1.0f) / (k + 1.0f)) + stirling_rest(m) +
                        stirling_rest(n - m) - stirling_rest(k) - stirling_rest(n - k);
    if (log(v * alpha / (a / (us * us) + b)) <= bound) break;
  }
  return made;
}

inline float binomial_of(stream_t* s, float n, float p) {
  if (isnan(p) || isnan(n)) return NAN;
  if (n <= 0.0f || p <= 0.0f) return 0.0f;
  if (p >= 1.0f) return n;
  return p <= 0.5f ? binomial_below(s, n, p) : n - binomial_below(s, n, 1.0f - p);
}

WORK_GROUP __kernel void random_gamma(__global dst_t* dst, ulong count, ulong seed, ulong offset, __global const float* shape,
                           float least) {
  FOR_EACH_ELEMENT(i, step) {
    stream_t s = stream_of(seed, offset, i);
    dst[i] = WRITE(fmax(least, gamma_of(&s, shape[i])));
  }
  END_FOR_EACH_ELEMENT
}

WORK_GROUP __kernel void random_poisson(__global dst_t* dst, ulong count, ulong seed, ulong offset, __global const float* rate,
                             __global int* record, int number) {
  FOR_EACH_ELEMENT(i, step) {
    if (!(rate[i] >= 0.0f)) ax_fail(record, number, 0);
    stream_t s = stream_of(seed, offset, i);
    dst[i] = WRITE(rate[i] >= 0.0f ? poisson_of(&s, rate[i]) : 0.0f);
  }
  END_FOR_EACH_ELEMENT
}

WORK_GROUP __kernel void random_binomial(__global dst_t* dst, ulong count, ulong seed, ulong offset, __global const float* trials,
                              __global const float* probability) {
  FOR_EACH_ELEMENT(i, step) {
    stream_t s = stream_of(seed, offset, i);
    dst[i] = WRITE(binomial_of(&s, trials[i], probability[i]));
  }
  END_FOR_EACH_ELEMENT
}
