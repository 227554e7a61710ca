// Yardsticks for codec/cpu: what C does with the same arithmetic on one core, without checks of operands, strides,
// types or non-finite input. scripts/bench-compare.sh builds it three ways: scalar (gcc -O2, no vectorizer), auto
// (gcc -O3 -march=native) and hand (the same, with the AVX-512 kernels below). It prints "name Melem/s" a line,
// by CPU time, so that other processes on the machine disturb it little.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <immintrin.h>

enum { GROUP = 32, DIM = 128, STATES = 4096, BLOCK = 256 };

static uint64_t seed = 0x9e3779b97f4a7c15u;
static double uniform(void) {
	seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
	return ((seed >> 11) + 0.5) / 9007199254740992.0;
}
static float normal(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }
static double cpu_seconds(void) {
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + 1e-9 * t.tv_nsec;
}

static inline uint32_t bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline uint16_t to_bf16(float x) { uint32_t u = bits(x); return (u + 0x7fff + (u >> 16 & 1)) >> 16; }
static inline uint16_t to_f16(float x) { return _cvtss_sh(x, 0); }
static inline float from_f16(uint16_t h) { return _cvtsh_ss(h); }

static float *X;                 // samples
static uint8_t *CODES;           // packed
static uint16_t *SCALE, *ZERO, *OUT;
static uint32_t *WORDS;          // packed trellis blocks
static float SIGN[DIM], F[STATES], FF[STATES];
static const float MID[7] = {-1.74793f, -1.05f, -0.50054f, 0, 0.50054f, 1.05f, 1.74793f};
static const float CENTROID[8] = {-2.15195f, -1.34391f, -0.75601f, -0.24509f, 0.24509f, 0.75601f, 1.34391f, 2.15195f};

#define KERNEL __attribute__((noinline)) static void

KERNEL key_encode(size_t n) { // int8, affine
	for (size_t g = 0; g < n / GROUP; g++) {
		const float *x = X + g * GROUP;
		float lo = x[0], hi = x[0];
		for (int i = 1; i < GROUP; i++) lo = x[i] < lo ? x[i] : lo, hi = x[i] > hi ? x[i] : hi;
		float scale = (hi - lo) / 254, se = scale + 1e-8f, zero = rintf((hi + lo) / (2 * se));
		for (int i = 0; i < GROUP; i++) {
			float q = rintf(x[i] / se - zero);
			q = q < -127 ? -127 : q > 127 ? 127 : q;
			((int8_t *)CODES)[g * GROUP + i] = (int8_t)(int)q;
		}
		SCALE[g] = to_f16(scale), ZERO[g] = to_f16(zero);
	}
}
KERNEL key_decode(size_t n) { // to bf16
	for (size_t g = 0; g < n / GROUP; g++) {
		float scale = from_f16(SCALE[g]), zero = from_f16(ZERO[g]);
		const int8_t *q = (const int8_t *)CODES + g * GROUP;
		uint16_t *o = OUT + g * GROUP;
		for (int i = 0; i < GROUP; i++) o[i] = to_bf16(((float)q[i] + zero) * scale);
	}
}
static inline void hadamard(float *a) {
	for (int h = 1; h < DIM; h *= 2)
		for (int i = 0; i < DIM; i += 2 * h)
			for (int j = i; j < i + h; j++) {
				float u = a[j], v = a[j + h];
				a[j] = u + v, a[j + h] = u - v;
			}
	for (int i = 0; i < DIM; i++) a[i] *= 0.08838834764831845f;
}
KERNEL value_encode(size_t n) { // 3 bits, rms
	for (size_t r = 0; r < n / DIM; r++) {
		float a[DIM];
		for (int i = 0; i < DIM; i++) a[i] = X[r * DIM + i] * SIGN[i];
		hadamard(a);
		for (int g = 0; g < DIM / GROUP; g++) {
			float q[GROUP], *y = a + g * GROUP;
			for (int i = 0; i < GROUP; i++) q[i] = y[i] * y[i];
			for (int s = GROUP / 2; s; s /= 2)
				for (int i = 0; i < s; i++) q[i] += q[i + s];
			float scale = sqrtf(q[0] / GROUP), se = scale + 1e-8f;
			SCALE[r * 4 + g] = to_f16(scale);
			uint8_t *o = CODES + r * 48 + g * 12;
			for (int i = 0; i < GROUP; i += 8) {
				uint32_t w = 0;
				for (int j = 0; j < 8; j++) {
					float v = y[i + j] / se;
					uint32_t c = 0;
					for (int b = 0; b < 7; b++) c += v > MID[b];
					w |= c << 3 * j;
				}
				o[i / 8 * 3] = w, o[i / 8 * 3 + 1] = w >> 8, o[i / 8 * 3 + 2] = w >> 16;
			}
		}
	}
}
KERNEL value_decode(size_t n) { // 3 bits, to bf16
	for (size_t r = 0; r < n / DIM; r++) {
		float a[DIM];
		for (int i = 0; i < DIM; i += 8) {
			const uint8_t *p = CODES + r * 48 + i / 8 * 3;
			uint32_t w = p[0] | p[1] << 8 | p[2] << 16;
			float scale = from_f16(SCALE[r * 4 + i / GROUP]);
			for (int j = 0; j < 8; j++) a[i + j] = CENTROID[w >> 3 * j & 7] * scale;
		}
		hadamard(a);
		for (int i = 0; i < DIM; i++) OUT[r * DIM + i] = to_bf16(a[i] * SIGN[i]);
	}
}
static inline float one_mad(uint32_t s) {
	uint32_t x = s * 34038481u + 76625530u;
	int y = (int)((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)) - 510;
	return (float)y / 147.800537109375f;
}
static inline void trellis_decode(size_t n, const int k) { // a window of two words a weight, to bf16
	const int words = BLOCK * k / 32;
	for (size_t b = 0; b < n / BLOCK; b++) {
		const uint32_t *p = WORDS + b * words;
		float scale = from_f16(SCALE[b]);
		for (int t = 0; t < BLOCK; t++) {
			int bit = (BLOCK - 1 - t) * k, w = bit / 32, next = w + 1 == words ? 0 : w + 1;
			uint64_t window = p[w] | (uint64_t)p[next] << 32;
			OUT[b * BLOCK + t] = to_bf16(one_mad(window >> bit % 32 & (STATES - 1)) * scale);
		}
	}
}
KERNEL trellis_decode2(size_t n) { trellis_decode(n, 2); }
KERNEL trellis_decode3(size_t n) { trellis_decode(n, 3); }
KERNEL trellis_decode4(size_t n) { trellis_decode(n, 4); }

static float SCORE[2][STATES] __attribute__((aligned(64))), BEST[STATES] __attribute__((aligned(64)));
static uint8_t BACK[BLOCK][STATES / 2] __attribute__((aligned(64)));
static uint16_t STATE[BLOCK];
static const int K = 2, Q = STATES >> 2;

static inline void step(const float *g, float *next, uint8_t *back, float x2) { // QTIP's, k = 2
	for (int j = 0; j < Q; j++) {
		float best = g[j];
		uint8_t arg = 0;
		for (int m = 1; m < 1 << K; m++) {
			float v = g[j + m * Q];
			arg = v >= best ? m : arg, best = v >= best ? v : best;
		}
		BEST[j] = best, back[j] = arg;
	}
	for (int j = 0; j < Q; j++)
		for (int b = 0; b < 1 << K; b++) next[j << K | b] = BEST[j] + (x2 * F[j << K | b] - FF[j << K | b]);
}
#ifdef HAND
static inline void step512(const float *g, float *next, uint8_t *back, float x2) {
	__m512 x = _mm512_set1_ps(x2);
	__m512i spread[4];
	for (int j = 0; j < 4; j++) {
		int a[16];
		for (int l = 0; l < 16; l++) a[l] = (16 * j + l) / 4;
		spread[j] = _mm512_loadu_si512(a);
	}
	for (int j = 0; j < Q; j += 16) {
		__m512 best = _mm512_load_ps(g + j);
		__m512i arg = _mm512_setzero_si512();
		for (int m = 1; m < 4; m++) {
			__m512 v = _mm512_load_ps(g + j + m * Q);
			arg = _mm512_mask_mov_epi32(arg, _mm512_cmp_ps_mask(v, best, _CMP_GE_OQ), _mm512_set1_epi32(m));
			best = _mm512_max_ps(v, best);
		}
		_mm_store_si128((__m128i *)(back + j), _mm512_cvtepi32_epi8(arg));
		for (int i = 0; i < 4; i++) {
			int o = 4 * j + 16 * i;
			__m512 f = _mm512_load_ps(F + o);
			_mm512_store_ps(next + o, _mm512_add_ps(_mm512_permutexvar_ps(spread[i], best),
				_mm512_sub_ps(_mm512_mul_ps(x, f), _mm512_mul_ps(f, f))));
		}
	}
}
#define STEP step512
#else
#define STEP step
#endif
static void viterbi_pass(const float *x, int shift, int overlap) {
	float *g = SCORE[0], *next = SCORE[1];
	for (int s = 0; s < STATES; s++) g[s] = overlap < 0 || s >> K == overlap ? 2 * x[shift] * F[s] - FF[s] : -1e30f;
	for (int t = 1; t < BLOCK; t++) {
		STEP(g, next, BACK[t], 2 * x[(t + shift) % BLOCK]);
		float *swap = g;
		g = next, next = swap;
	}
	int s = -1;
	for (int i = 0; i < STATES; i++)
		if ((overlap < 0 || i % Q == overlap) && (s < 0 || g[i] >= g[s])) s = i;
	for (int t = BLOCK - 1; t >= 0; t--) {
		STATE[t] = s;
		if (t) s = (s >> K) + BACK[t][s >> K] * Q;
	}
}
KERNEL viterbi(size_t n) { // k = 2, tail-biting
	for (size_t b = 0; b < n / BLOCK; b++) {
		viterbi_pass(X + b * BLOCK, BLOCK / 2, -1);
		viterbi_pass(X + b * BLOCK, 0, STATE[BLOCK / 2] >> K);
	}
}

#ifdef HAND
static inline __m512 flip(__m512 x, __mmask16 m) {
	return _mm512_castsi512_ps(_mm512_mask_xor_epi32(_mm512_castps_si512(x), m, _mm512_castps_si512(x), _mm512_set1_epi32(1 << 31)));
}
static inline void hadamard512(__m512 *v) {
	for (int i = 0; i < 8; i++) {
		__m512 a = v[i];
		a = _mm512_add_ps(_mm512_permute_ps(a, 0xb1), flip(a, 0xaaaa));
		a = _mm512_add_ps(_mm512_permute_ps(a, 0x4e), flip(a, 0xcccc));
		a = _mm512_add_ps(_mm512_shuffle_f32x4(a, a, 0xb1), flip(a, 0xf0f0));
		v[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, a, 0x4e), flip(a, 0xff00));
	}
	for (int h = 1; h < 8; h *= 2)
		for (int i = 0; i < 8; i += 2 * h)
			for (int j = i; j < i + h; j++) {
				__m512 a = v[j], b = v[j + h];
				v[j] = _mm512_add_ps(a, b), v[j + h] = _mm512_sub_ps(a, b);
			}
	for (int i = 0; i < 8; i++) v[i] = _mm512_mul_ps(v[i], _mm512_set1_ps(0.08838834764831845f));
}
static inline __m256i bf16x16(__m512 x) {
	__m512i u = _mm512_castps_si512(x);
	u = _mm512_add_epi32(u, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1))));
	return _mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16));
}
KERNEL key_encode512(size_t n) {
	for (size_t g = 0; g < n / GROUP; g++) {
		__m512 a = _mm512_loadu_ps(X + g * GROUP), b = _mm512_loadu_ps(X + g * GROUP + 16);
		float lo = _mm512_reduce_min_ps(_mm512_min_ps(a, b)), hi = _mm512_reduce_max_ps(_mm512_max_ps(a, b));
		float scale = (hi - lo) / 254, se = scale + 1e-8f, zero = rintf((hi + lo) / (2 * se));
		for (int i = 0; i < 2; i++) {
			__m512 q = _mm512_sub_ps(_mm512_div_ps(i ? b : a, _mm512_set1_ps(se)), _mm512_set1_ps(zero));
			q = _mm512_min_ps(_mm512_max_ps(q, _mm512_set1_ps(-127)), _mm512_set1_ps(127));
			_mm_storeu_si128((__m128i *)(CODES + g * GROUP + 16 * i), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(q)));
		}
		SCALE[g] = to_f16(scale), ZERO[g] = to_f16(zero);
	}
}
KERNEL value_encode512(size_t n) {
	for (size_t r = 0; r < n / DIM; r++) {
		__m512 v[8];
		for (int i = 0; i < 8; i++) v[i] = _mm512_mul_ps(_mm512_loadu_ps(X + r * DIM + 16 * i), _mm512_loadu_ps(SIGN + 16 * i));
		hadamard512(v);
		for (int g = 0; g < 4; g++) {
			float sum = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_mul_ps(v[2 * g], v[2 * g]), _mm512_mul_ps(v[2 * g + 1], v[2 * g + 1])));
			float scale = sqrtf(sum / GROUP);
			SCALE[r * 4 + g] = to_f16(scale);
			for (int i = 0; i < 2; i++) {
				__m512 y = _mm512_div_ps(v[2 * g + i], _mm512_set1_ps(scale + 1e-8f));
				__m512i c = _mm512_setzero_si512();
				for (int b = 0; b < 7; b++)
					c = _mm512_mask_add_epi32(c, _mm512_cmp_ps_mask(y, _mm512_set1_ps(MID[b]), _CMP_GT_OQ), c, _mm512_set1_epi32(1));
				__m128i bytes = _mm512_cvtepi32_epi8(c);
				uint64_t w = _pext_u64(_mm_cvtsi128_si64(bytes), 0x0707070707070707) | _pext_u64(_mm_extract_epi64(bytes, 1), 0x0707070707070707) << 24;
				memcpy(CODES + r * 48 + g * 12 + i * 6, &w, 6);
			}
		}
	}
}
KERNEL value_decode512(size_t n) {
	__m512 centroids = _mm512_broadcast_f32x8(_mm256_loadu_ps(CENTROID));
	for (size_t r = 0; r < n / DIM; r++) {
		__m512 v[8];
		for (int i = 0; i < 8; i++) {
			uint64_t w;
			memcpy(&w, CODES + r * 48 + i * 6, 8);
			__m128i index = _mm_set_epi64x(_pdep_u64(w >> 24, 0x0707070707070707), _pdep_u64(w, 0x0707070707070707));
			v[i] = _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(index), centroids), _mm512_set1_ps(from_f16(SCALE[r * 4 + i / 2])));
		}
		hadamard512(v);
		for (int i = 0; i < 8; i++)
			_mm256_storeu_si256((__m256i *)(OUT + r * DIM + 16 * i), bf16x16(_mm512_mul_ps(v[i], _mm512_loadu_ps(SIGN + 16 * i))));
	}
}
static inline void trellis_decode512(size_t n, const int k) {
	const int bytes = BLOCK * k / 8;
	__m512i shift = _mm512_set_epi64(0, k, 2 * k, 3 * k, 4 * k, 5 * k, 6 * k, 7 * k);
	for (size_t b = 0; b < n / BLOCK; b++) {
		uint8_t ring[BLOCK * 4 / 8 + 8];
		memcpy(ring, (uint8_t *)WORDS + b * bytes, bytes), memcpy(ring + bytes, ring, 8);
		__m512 scale = _mm512_set1_ps(from_f16(SCALE[b]));
		for (int g = 0; g < BLOCK / 8; g += 2) {
			uint64_t w0, w1;
			memcpy(&w0, ring + g * k, 8), memcpy(&w1, ring + g * k + k, 8);
			__m256i later = _mm512_cvtepi64_epi32(_mm512_srlv_epi64(_mm512_set1_epi64(w0), shift));
			__m256i sooner = _mm512_cvtepi64_epi32(_mm512_srlv_epi64(_mm512_set1_epi64(w1), shift));
			__m512i s = _mm512_and_si512(_mm512_inserti64x4(_mm512_castsi256_si512(sooner), later, 1), _mm512_set1_epi32(STATES - 1));
			__m512i x = _mm512_add_epi32(_mm512_mullo_epi32(s, _mm512_set1_epi32(34038481)), _mm512_set1_epi32(76625530));
			__m512i y = _mm512_dpbusd_epi32(_mm512_set1_epi32(-510), x, _mm512_set1_epi8(1));
			__m512 f = _mm512_div_ps(_mm512_cvtepi32_ps(y), _mm512_set1_ps(147.800537109375f));
			_mm256_storeu_si256((__m256i *)(OUT + b * BLOCK + BLOCK - 16 - 8 * g), bf16x16(_mm512_mul_ps(f, scale)));
		}
	}
}
KERNEL trellis_decode512_2(size_t n) { trellis_decode512(n, 2); }
KERNEL trellis_decode512_3(size_t n) { trellis_decode512(n, 3); }
KERNEL trellis_decode512_4(size_t n) { trellis_decode512(n, 4); }
#define key_encode key_encode512
#define value_encode value_encode512
#define value_decode value_decode512
#define trellis_decode2 trellis_decode512_2
#define trellis_decode3 trellis_decode512_3
#define trellis_decode4 trellis_decode512_4
#endif

static void measure(const char *name, void (*f)(size_t), size_t n, double seconds) {
	f(n); // touches all memory
	double best = 0;
	for (int i = 0; i < 3; i++) {
		int calls = 0;
		double start = cpu_seconds(), t;
		do f(n), calls++; while ((t = cpu_seconds() - start) < seconds);
		if (calls * (double)n / t > best) best = calls * (double)n / t;
	}
	printf("%s %.4f\n", name, best / 1e6);
	fflush(stdout);
}
static void copy(size_t n) { memcpy(OUT, X, 2 * n); }

int main(int argc, char **argv) {
	double seconds = argc > 1 ? atof(argv[1]) : 0.1;
	size_t n = 4 << 20;
	X = aligned_alloc(64, n * 4), CODES = aligned_alloc(64, n), OUT = aligned_alloc(64, n * 2), WORDS = aligned_alloc(64, n);
	SCALE = calloc(n / GROUP, 2), ZERO = calloc(n / GROUP, 2);
	for (size_t i = 0; i < n; i++) X[i] = normal();
	for (size_t i = 0; i < n / 4; i++) uniform(), WORDS[i] = seed >> 16;
	for (int i = 0; i < DIM; i++) SIGN[i] = uniform() < .5 ? -1 : 1;
	for (int s = 0; s < STATES; s++) F[s] = one_mad(s), FF[s] = F[s] * F[s];
	measure("memcpy", copy, n, seconds);
	measure("EncodeKeys/bits=8", key_encode, n, seconds);
	measure("DecodeKeys/bits=8", key_decode, n, seconds);
	measure("EncodeValues/dim=128/bits=3/scale=rms", value_encode, n, seconds);
	measure("DecodeValues/dim=128/bits=3", value_decode, n, seconds);
	measure("DecodeTrellis/k=2", trellis_decode2, n, seconds);
	measure("DecodeTrellis/k=3", trellis_decode3, n, seconds);
	measure("DecodeTrellis/k=4", trellis_decode4, n, seconds);
	measure("EncodeBlocks/k=2", viterbi, 8 * BLOCK, seconds);
	return 0;
}
