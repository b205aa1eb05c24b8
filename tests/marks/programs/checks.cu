// What marks.cuh costs and whether it is right, on a GPU; prints JSON lines, writes dumps into a folder.
//   nvcc -arch=sm_90 -O3 -DNSYSALIGN_MARKS -I nsysalign/addons/marks/include tests/marks/programs/checks.cu -o checks;  ./checks OUT [PART...]
// Built without -DNSYSALIGN_MARKS it measures the same kernels without them.  tests/marks/programs/judge.py reads what it wrote.
#include <nsysalign/marks_host.h>
#include <cstdint>
#include <functional>
#include <map>
typedef unsigned long long u64;
#define OK(x) do { cudaError_t status_ = (x); if (status_) { std::fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(status_)); std::exit(1); } } while (0)
__device__ __forceinline__ u64 gt() { u64 t; asm volatile("mov.u64 %0,%%globaltimer;" : "=l"(t)::"memory"); return t; }
__device__ __forceinline__ u64 ck() { u64 t; asm volatile("mov.u64 %0,%%clock64;" : "=l"(t)::"memory"); return t; }
__device__ __forceinline__ u64 gid() { u64 g; asm volatile("mov.u64 %0,%%gridid;" : "=l"(g)); return g; }
__device__ __forceinline__ unsigned smid() { unsigned g; asm volatile("mov.u32 %0,%%smid;" : "=r"(g)); return g; }
static int sms; static std::string out;
static std::string path(const char* name) { return out + "/" + name + ".nsam"; }

// --- cycles of one mark, of one count; per warp.  "nothing" is the loop that they are in ---
template <int K> __global__ void cost(u64* cycles, char* memory, int n, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  const int me = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
  u64 p = reinterpret_cast<u64>(memory) + static_cast<u64>(me) * n * 16;
  (void)p;
  __syncthreads();
  const u64 a = ck();
#pragma unroll 4
  for (int i = 0; i < n; i++) {
    if (K == 0) asm volatile("" ::: "memory");
    if (K == 1) NSYSALIGN_MARK(w, "cost");
    if (K == 2) NSYSALIGN_COUNT(w, "cost count");
    if (K == 4) { u64 t = gt(); if (threadIdx.x % 32 == 0) { *reinterpret_cast<volatile u64*>(p) = t; __threadfence(); } p += 16; }  // fence and store
    if (K == 6) NSYSALIGN_COUNT_WARPS(w, "cost warps");
    if (K == 5) { NSYSALIGN_MARK_AFTER(w, "cost after", i); }
  }
  const u64 b = ck();
  if (threadIdx.x % 32 == 0) cycles[me] = b - a;
}
// --- the same without a loop: what the loop takes is part of the above ---
__global__ void straight(u64* cycles, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  const int me = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
  __syncthreads();
  u64 a = ck();
#pragma unroll 1
  for (int turn = 0; turn < 2; turn++) {  // the first fetches the code
    a = ck();
#pragma unroll
    for (int i = 0; i < 28; i++) NSYSALIGN_MARK(w, "straight");
  }
  const u64 b = ck();
  if (threadIdx.x % 32 == 0) cycles[me] = b - a;
}
void run_straight(nsysalign_marks m, u64* cycles) {
  const int shape[3][2] = {{1, 32}, {sms, 128}, {sms, 1024}};
  for (auto& s : shape) {
    for (int i = 0; i < 3; i++) straight<<<s[0], s[1]>>>(cycles, m);
    OK(cudaDeviceSynchronize());
    std::vector<u64> h(s[0] * s[1] / 32);
    OK(cudaMemcpy(h.data(), cycles, h.size() * 8, cudaMemcpyDeviceToHost));
    std::sort(h.begin(), h.end());
    std::printf("{\"straight\":\"mark\",\"armed\":%d,\"blocks\":%d,\"threads\":%d,\"cycles\":%.2f,\"max\":%.2f}\n", m.address != 0, s[0], s[1], h[h.size() / 2] / 28., h.back() / 28.);
  }
}
// --- what a warp pays once: where it begins, and where it ends with K counters ---
template <int K> __global__ void once(u64* cycles, nsysalign_marks m) {
  const int me = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
  u64 begin, end;
  const u64 start = ck();
  {
    NSYSALIGN_WARP(w, m);
    begin = ck();
    if (K == 8) {
      NSYSALIGN_COUNT(w, "once 0"); NSYSALIGN_COUNT(w, "once 1"); NSYSALIGN_COUNT(w, "once 2"); NSYSALIGN_COUNT(w, "once 3");
      NSYSALIGN_COUNT(w, "once 4"); NSYSALIGN_COUNT(w, "once 5"); NSYSALIGN_COUNT(w, "once 6"); NSYSALIGN_COUNT(w, "once 7");
    }
    end = ck();
  }
  __syncwarp();
  const u64 last = ck();
  if (threadIdx.x % 32 == 0) cycles[2 * me] = begin - start, cycles[2 * me + 1] = last - end;
}
template <int K> void run_once(const char* name, nsysalign_marks m, u64* cycles) {
  const int shape[3][2] = {{1, 32}, {sms, 128}, {sms, 1024}};
  for (auto& s : shape) {
    for (int i = 0; i < 3; i++) once<K><<<s[0], s[1]>>>(cycles, m);
    OK(cudaDeviceSynchronize());
    const int warps = s[0] * s[1] / 32;
    std::vector<u64> h(2 * warps), begin, end;
    OK(cudaMemcpy(h.data(), cycles, h.size() * 8, cudaMemcpyDeviceToHost));
    for (int i = 0; i < warps; i++) begin.push_back(h[2 * i]), end.push_back(h[2 * i + 1]);
    std::sort(begin.begin(), begin.end()); std::sort(end.begin(), end.end());
    std::printf("{\"once\":\"%s\",\"armed\":%d,\"blocks\":%d,\"threads\":%d,\"begin\":%llu,\"end\":%llu,\"begin_max\":%llu,\"end_max\":%llu}\n", name, m.address != 0, s[0], s[1], begin[warps / 2], end[warps / 2], begin.back(), end.back());
  }
}
template <int K> void run_cost(const char* name, nsysalign_marks m, u64* cycles, char* memory) {
  const int shape[3][2] = {{1, 32}, {sms, 128}, {sms, 1024}};
  for (int n : {56, 280}) for (auto& s : shape) {  // 56 fit into a warp's first chunk
    for (int i = 0; i < 3; i++) cost<K><<<s[0], s[1]>>>(cycles, memory, n, m);
    OK(cudaDeviceSynchronize());
    std::vector<u64> h(s[0] * s[1] / 32);
    OK(cudaMemcpy(h.data(), cycles, h.size() * 8, cudaMemcpyDeviceToHost));
    std::sort(h.begin(), h.end());
    std::printf("{\"cost\":\"%s\",\"armed\":%d,\"blocks\":%d,\"threads\":%d,\"n\":%d,\"cycles\":%.2f,\"max\":%.2f}\n", name, m.address != 0, s[0], s[1], n, static_cast<double>(h[h.size() / 2]) / n, static_cast<double>(h.back()) / n);
  }
}
void part_cost() {
  u64* cycles; char* memory;
  OK(cudaMalloc(&cycles, 1 << 20)); OK(cudaMalloc(&memory, 1 << 26));
  NSYSALIGN_RECORDER(r, 2048);
  for (nsysalign_marks m : {r.marks(), nsysalign_marks{0}}) {
    run_cost<0>("nothing", m, cycles, memory); run_cost<1>("mark", m, cycles, memory); run_cost<5>("mark after", m, cycles, memory);
    run_cost<2>("count", m, cycles, memory); run_cost<6>("count warps", m, cycles, memory);
    if (m.address) run_cost<4>("fence and store", m, cycles, memory);
    run_straight(m, cycles);
    run_once<0>("warp", m, cycles); run_once<8>("warp with eight counters", m, cycles);
  }
  r.write(path("cost").c_str());
  OK(cudaFree(cycles)); OK(cudaFree(memory));
}

// --- spins of a known length: truth is read from the same timer just outside ---
__global__ void spins(u64* truth, u64 ns, int n, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  const int me = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
  for (int i = 0; i < n; i++) {
    u64 a = 0, b = 0;
    NSYSALIGN_RANGE(w, "spin") { a = gt(); do b = gt(); while (b - a < ns); }
    if (threadIdx.x % 32 == 0) truth[(static_cast<u64>(me) * n + i) * 2] = a, truth[(static_cast<u64>(me) * n + i) * 2 + 1] = b;
  }
}
void part_spins() {
  NSYSALIGN_RECORDER(r, 64);
  const int n = 20; u64* truth; size_t all = static_cast<size_t>(sms) * 4 * n * 2;
  OK(cudaMalloc(&truth, all * 8));
  std::FILE* f = std::fopen((out + "/spins.truth").c_str(), "wb");
  for (u64 ns : {1000ull, 10000ull, 100000ull}) {
    spins<<<sms, 128>>>(truth, ns, n, r.marks());
    std::vector<u64> h(all);
    OK(cudaMemcpy(h.data(), truth, all * 8, cudaMemcpyDeviceToHost));
    std::fwrite(h.data(), 8, all, f);
  }
  std::fclose(f); OK(cudaFree(truth));
  r.write(path("spins").c_str());
}

// --- how much longer a kernel gets: units of work that take a warp 1 us, with k marks each.  The loops are the same with marks and
// without: left alone, nvcc unrolls those without and moves checks out of them, and that is then most of the difference. ---
__device__ __forceinline__ void part(float& a, float& b, int n) {
#pragma unroll 1
  do {
#pragma unroll
    for (int j = 0; j < 4; j++) { a = a * 1.0001f + b; b = b * 0.9999f + a; }
  } while (--n);
}
template <int K> __global__ void __launch_bounds__(1024) work(float* x, int units, int inner, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  float a = threadIdx.x, b = blockIdx.x;
  int left = units * (K == 9 ? 1 : K);
  asm volatile("" : "+r"(inner), "+r"(left));  // in registers
#pragma unroll 1
  do {
    if (K == 1) { part(a, b, inner); NSYSALIGN_MARK(w, "unit"); }
    if (K == 8) { part(a, b, inner); NSYSALIGN_MARK(w, "eighth"); }
    if (K == 9) {  // eight counters: which of them, is known to the compiler
      part(a, b, inner); NSYSALIGN_COUNT(w, "c0"); part(a, b, inner); NSYSALIGN_COUNT(w, "c1"); part(a, b, inner); NSYSALIGN_COUNT(w, "c2"); part(a, b, inner); NSYSALIGN_COUNT(w, "c3");
      part(a, b, inner); NSYSALIGN_COUNT(w, "c4"); part(a, b, inner); NSYSALIGN_COUNT(w, "c5"); part(a, b, inner); NSYSALIGN_COUNT(w, "c6"); part(a, b, inner); NSYSALIGN_COUNT(w, "c7");
    }
  } while (--left);
  if (a + b == 42) x[0] = a;
}
// `inner`: so that a unit lasts about 1 us on an H100 or H200; how long it did is printed
struct work_shape { int threads, blocks_per_sm, inner, inner_of_eighth; };
template <int K> void run_work(const char* name, nsysalign_marks m, float* x) {
  const work_shape shapes[] = {{128, 1, 46, 5}, {128, 4, 35, 4}, {256, 1, 43, 5}, {256, 4, 18, 2}, {1024, 1, 21, 2}, {1024, 4, 10, 1}};
  for (const work_shape& s : shapes) {
    const int units = 200, blocks = s.blocks_per_sm * sms;
    cudaEvent_t a, b; OK(cudaEventCreate(&a)); OK(cudaEventCreate(&b));
    int fit = 1; OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, work<K>, s.threads, 0));
    const int turns = std::max(1, s.blocks_per_sm / fit);  // of blocks, on each SM
    std::vector<float> t;
    for (int i = 0; i < 12; i++) {
      OK(cudaEventRecord(a)); work<K><<<blocks, s.threads>>>(x, units, K == 1 ? s.inner : s.inner_of_eighth, m); OK(cudaEventRecord(b)); OK(cudaEventSynchronize(b));
      float ms; OK(cudaEventElapsedTime(&ms, a, b));
#if defined(NSYSALIGN_MARKS)
      if (m.address) OK(cudaMemset(reinterpret_cast<char*>(m.address) + nsysalign::LINE, 0, nsysalign::LINE * nsysalign::SM_LINES));  // room again
#endif
      if (i > 1) t.push_back(ms * 1000);
    }
    std::sort(t.begin(), t.end());
    std::printf("{\"work\":\"%s\",\"armed\":%d,\"threads\":%d,\"blocks\":%d,\"units\":%d,\"us\":%.3f,\"min\":%.3f,\"unit_us\":%.3f}\n", name, m.address != 0, s.threads, blocks, units, t[t.size() / 2], t[0], t[0] / units / turns);
  }
}
void part_work() {
  float* x; OK(cudaMalloc(&x, 1024));
  NSYSALIGN_RECORDER(r, 1500);
  for (nsysalign_marks m : {nsysalign_marks{0}, r.marks()}) {
    run_work<1>("mark per unit", m, x); run_work<8>("8 marks per unit", m, x); run_work<9>("8 counters per unit", m, x);
  }
  OK(cudaFree(x));
}

// --- any number of marks, any size of buffer; divergence now and then ---
__global__ void many(int n, int divergent, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  for (int i = 0; i < n; i++) {
    if (divergent && threadIdx.x % 32 > static_cast<unsigned>(i % 32)) { NSYSALIGN_MARK(w, "some"); }
    else NSYSALIGN_MARK(w, "others");
  }
}
// Both sides of a branch in 31 of 32 iterations: 992 and 1056 lanes of a warp in all.
void divergent(size_t mib) {
  NSYSALIGN_RECORDER(r, mib);
  many<<<sms, 256>>>(64, 1, r.marks());
  OK(cudaDeviceSynchronize());
  const std::string name = "divergent-" + std::to_string(mib);
  r.write(path(name.c_str()).c_str());
  std::printf("{\"divergent\":\"%s\",\"marks\":%d,\"some\":%d,\"others\":%d}\n", name.c_str(), sms * 8 * (2 * 62 + 2 + 1), sms * 8 * 992, sms * 8 * 1056);
}
void part_many() {
  const u64 wanted[] = {1000, 100000, 10000000, 100000000};
  for (u64 n : wanted) for (size_t mib : {1, 16, 2048}) {
    if (n <= 10000000 || mib == 2048) {
      NSYSALIGN_RECORDER(r, mib);
      const int blocks = n >= 100000 ? sms : 1, threads = n >= 10000000 ? 1024 : 256;
      const int per = static_cast<int>(n / (static_cast<u64>(blocks) * threads / 32));
      many<<<blocks, threads>>>(per, 0, r.marks());
      OK(cudaDeviceSynchronize());
      char name[64]; std::snprintf(name, sizeof name, "many-%llu-%zu", n, mib);
      r.write(path(name).c_str());
      std::printf("{\"many\":\"%s\",\"executed\":%llu}\n", name, static_cast<u64>(per + 1) * blocks * threads / 32);
    }
  }
  for (size_t mib : {1, 256}) divergent(mib);
}

// --- counters against what can be counted by hand ---
__global__ void paths(int n, unsigned* own, nsysalign_marks m) {
  const unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x == 0) atomicAdd(own + smid(), 1u);
  NSYSALIGN_WARP(w, m);
  if (t >= static_cast<unsigned>(n)) return;  // an early exit
  NSYSALIGN_COUNT(w, "inside");
  for (unsigned i = 0; i < 10; i++) if (t % 10 > i) NSYSALIGN_COUNT(w, "loop");
  if (t % 32 < 7) { NSYSALIGN_COUNT(w, "seven lanes"); } else { NSYSALIGN_COUNT(w, "the others"); }
  if (t % 64 < 32) NSYSALIGN_COUNT(w, "even warps");
  NSYSALIGN_MARK(w, "end of paths");
}
// Much more than there is room for: marks, marks of diverged lanes, counters.  What compute-sanitizer looks at.
void part_overflow() {
  NSYSALIGN_RECORDER(r, 1);
  const int per = 1000, launches = 40;
  u64 lanes = 0;
  for (int t = 0; t < 4 * sms * 192; t++) lanes += 2 + t % 10 + (t % 64 < 32);  // of the five counters of paths
  many<<<sms, 256>>>(per, 0, r.marks());
  many<<<sms, 256>>>(64, 1, r.marks());
  unsigned* own; OK(cudaMalloc(&own, 4096));
  for (int i = 0; i < launches; i++) paths<<<4 * sms, 192>>>(1 << 30, own, r.marks());
  OK(cudaDeviceSynchronize());
  r.write(path("overflow").c_str());
  std::printf("{\"overflow\":{\"marks\":%llu,\"counts\":%llu}}\n", static_cast<u64>(sms) * 8 * (per + 1 + 127) + static_cast<u64>(launches) * 4 * sms * 6 * 2,
              launches * lanes);
  OK(cudaFree(own));
}

// Whether counting leaves warps together: whoever was apart before is counted apart.
__global__ void together(int n, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  for (int i = 0; i < n; i++) {
    if (threadIdx.x % 32 == static_cast<unsigned>(i * 7 % 32)) { NSYSALIGN_COUNT_WARPS(w, "one lane"); }
    if (threadIdx.x % 32 < 20) { NSYSALIGN_COUNT_WARPS(w, "twenty lanes"); }
    NSYSALIGN_COUNT_WARPS(w, "whole warps");
  }
}
void part_together() {
  NSYSALIGN_RECORDER(r, 16);
  const int n = 50, blocks = 8 * sms, warps = 6;
  together<<<blocks, 32 * warps>>>(n, r.marks());
  OK(cudaDeviceSynchronize());
  r.write(path("together").c_str());
  const int all = n * blocks * warps;
  std::printf("{\"together\":{\"one lane\":[%d,%d],\"twenty lanes\":[%d,%d],\"whole warps\":[%d,%d]}}\n", all, all, all, 20 * all, all, 32 * all);
}

void part_paths() {
  NSYSALIGN_RECORDER(r, 16);
  unsigned* own; OK(cudaMalloc(&own, 4096)); OK(cudaMemset(own, 0, 4096));
  const int n = 100003, threads = 192;
  paths<<<(n + threads - 1) / threads, threads>>>(n, own, r.marks());
  OK(cudaDeviceSynchronize());
  u64 loop = 0, seven = 0, even = 0;
  for (int t = 0; t < n; t++) loop += t % 10, seven += t % 32 < 7, even += t % 64 < 32;
  std::printf("{\"paths\":{\"inside\":%d,\"loop\":%llu,\"seven lanes\":%llu,\"the others\":%llu,\"even warps\":%llu}}\n", n, loop, seven, n - seven, even);
  std::vector<unsigned> h(1024); OK(cudaMemcpy(h.data(), own, 4096, cudaMemcpyDeviceToHost));
  std::printf("{\"paths_blocks_per_sm\":["); for (int i = 0; i < sms; i++) std::printf("%s%u", i ? "," : "", h[i]); std::printf("]}\n");
  r.write(path("paths").c_str());
  OK(cudaFree(own));
}

// --- accesses that take long, as the programs do that count them: hot in L2, and from memory ---
__global__ void chase(const unsigned* next, int steps, u64* own, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  unsigned at = (blockIdx.x * blockDim.x + threadIdx.x) * 977u % (1u << 24);
  at = at / 32 * 32 + threadIdx.x % 32;
  for (int i = 0; i < steps; i++) {
    const u64 a = ck();
    at = next[at];
    if (at == 0xffffffffu) break;  // needs the value
    const u64 d = ck() - a;
    if (d > 1000) { NSYSALIGN_COUNT(w, "over 1,000 cycles"); atomicAdd(own, 1ull); }
    if (d > 2000) { NSYSALIGN_COUNT(w, "over 2,000 cycles"); atomicAdd(own + 1, 1ull); }
  }
}
void part_chase() {
  NSYSALIGN_RECORDER(r, 16);
  const unsigned n = 1u << 24; std::vector<unsigned> h(n);
  for (unsigned i = 0; i < n; i++) h[i] = static_cast<unsigned>((static_cast<u64>(i) * 1103515245u + 12345u) % n);
  unsigned* next; u64* own; OK(cudaMalloc(&next, n * 4ull)); OK(cudaMalloc(&own, 64)); OK(cudaMemset(own, 0, 64));
  OK(cudaMemcpy(next, h.data(), n * 4ull, cudaMemcpyHostToDevice));
  chase<<<sms, 256>>>(next, 20, own, r.marks());
  u64 o[2]; OK(cudaMemcpy(o, own, 16, cudaMemcpyDeviceToHost));
  std::printf("{\"chase\":{\"over_1000\":%llu,\"over_2000\":%llu}}\n", o[0], o[1]);
  r.write(path("chase").c_str());
  OK(cudaFree(next)); OK(cudaFree(own));
}

// --- a kernel whose blocks take known times, with the truth beside: ramp, tail, imbalance; join by grid id ---
__global__ void blocks(u64* truth, int base_ns, int step_ns, nsysalign_marks m) {
  const u64 a = gt();
  {
    NSYSALIGN_WARP(w, m);
    const u64 ns = base_ns + static_cast<u64>(step_ns) * (blockIdx.x % 16 == 0 ? 16 : blockIdx.x % 4);
    NSYSALIGN_RANGE(w, "first half") { u64 s = gt(); while (gt() - s < ns / 2) {} }
    NSYSALIGN_RANGE(w, "second half") { u64 s = gt(); while (gt() - s < ns / 2) {} }
    __syncthreads();
  }
  if (threadIdx.x == 0) { u64* p = truth + 4 * blockIdx.x; p[0] = a; p[1] = gt(); p[2] = smid(); p[3] = gid(); }
}
__global__ void anchor(u64* o, u64 ns, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  u64 t = gt();
  if (threadIdx.x == 0) { atomicMin(o, t); if (blockIdx.x == 0) o[2] = gid(); }
  while (gt() - t < ns) {}
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(o + 1, gt());
}
void part_join() {
  NSYSALIGN_RECORDER(r, 512);
  u64* truth; const int most = 6000; OK(cudaMalloc(&truth, most * 32));
  std::FILE* f = std::fopen((out + "/join.truth").c_str(), "wb");
  for (int n : {1, 7, sms, 2 * sms + 5, 16 * sms, 5000}) for (int rep = 0; rep < (n > 4000 ? 9 : 2); rep++) {  // over a million marks
    blocks<<<n, 128>>>(truth, 4000, 1000, r.marks());
    std::vector<u64> h(4 * n); OK(cudaMemcpy(h.data(), truth, h.size() * 8, cudaMemcpyDeviceToHost));
    u64 count = n; std::fwrite(&count, 8, 1, f); std::fwrite(h.data(), 8, h.size(), f);
  }
  std::fclose(f);
  const int n = 300; std::vector<u64> init(4 * n); for (int i = 0; i < n; i++) init[4 * i] = ~0ull;
  u64* a; OK(cudaMalloc(&a, 32 * n)); OK(cudaMemcpy(a, init.data(), 32 * n, cudaMemcpyHostToDevice));
  const int bl[4] = {1, sms, sms * 2, 7}; const u64 ns[5] = {0, 3000, 20000, 200000, 2000000};
  for (int i = 0; i < n; i++) { anchor<<<bl[i & 3], 64>>>(a + 4 * i, ns[(i / 4) % 5], r.marks()); if (i % 10 == 9) OK(cudaDeviceSynchronize()); if (i % 100 == 99) { timespec t = {0, 200000000}; nanosleep(&t, 0); } }
  OK(cudaDeviceSynchronize());
  std::vector<u64> h(4 * n); OK(cudaMemcpy(h.data(), a, 32 * n, cudaMemcpyDeviceToHost));
  f = std::fopen((out + "/anchors.truth").c_str(), "wb"); std::fwrite(h.data(), 8, h.size(), f); std::fclose(f);
  r.write(path("join").c_str());
  OK(cudaFree(truth)); OK(cudaFree(a));
}

// --- graphs and streams ---
void part_graph() {
  NSYSALIGN_RECORDER(r, 16);
  u64* truth; OK(cudaMalloc(&truth, 1 << 20));
  cudaStream_t s, t; OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); OK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
  for (int i = 0; i < 5; i++) { blocks<<<20, 64, 0, s>>>(truth, 20000, 0, r.marks()); blocks<<<20, 64, 0, t>>>(truth + 4096, 20000, 0, r.marks()); }
  OK(cudaDeviceSynchronize());
  cudaGraph_t g; cudaGraphExec_t e;
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  blocks<<<20, 64, 0, s>>>(truth, 5000, 0, r.marks()); blocks<<<21, 64, 0, s>>>(truth + 4096, 5000, 0, r.marks());
  OK(cudaStreamEndCapture(s, &g)); OK(cudaGraphInstantiate(&e, g, 0));
  for (int i = 0; i < 4; i++) {
    OK(cudaGraphLaunch(e, s)); OK(cudaStreamSynchronize(s));
    u64 h[4], k[4]; OK(cudaMemcpy(h, truth, 32, cudaMemcpyDeviceToHost)); OK(cudaMemcpy(k, truth + 4096, 32, cudaMemcpyDeviceToHost));
    std::printf("{\"graph_replay\":%d,\"grid_ids\":[%llu,%llu]}\n", i, h[3], k[3]);
  }
  blocks<<<20, 64, 0, s>>>(truth, 5000, 0, r.marks()); OK(cudaDeviceSynchronize());
  u64 h[4]; OK(cudaMemcpy(h, truth, 32, cudaMemcpyDeviceToHost)); std::printf("{\"after_graph\":%llu}\n", h[3]);
  r.write(path("graph").c_str());
}

// --- a buffer of another version ---
void part_version() {
#if defined(NSYSALIGN_MARKS)
  NSYSALIGN_RECORDER(r, 1);
  unsigned other = NSYSALIGN_MARKS_VERSION + 1; OK(cudaMemcpy(reinterpret_cast<char*>(r.marks().address) + 4, &other, 4, cudaMemcpyHostToDevice));
  many<<<4, 64>>>(10, 0, r.marks()); OK(cudaDeviceSynchronize());
  r.write(path("version").c_str());
#endif
}

// --- longer than 32 bits of nanoseconds ---
void part_long() {
  NSYSALIGN_RECORDER(r, 1);
  u64* o; OK(cudaMalloc(&o, 4096)); OK(cudaMemset(o, 255, 4096));
  spins<<<1, 32>>>(o, 4500000000ull, 1, r.marks()); OK(cudaDeviceSynchronize());
  r.write(path("long").c_str());
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  out = argv[1];
  cudaDeviceProp p; OK(cudaGetDeviceProperties(&p, 0)); sms = p.multiProcessorCount;
#if defined(NSYSALIGN_MARKS)
  std::printf("{\"device\":\"%s\",\"sms\":%d,\"marks\":1}\n", p.name, sms);
#else
  std::printf("{\"device\":\"%s\",\"sms\":%d,\"marks\":0}\n", p.name, sms);
#endif
  std::map<std::string, std::function<void()>> parts = {{"cost", part_cost}, {"spins", part_spins}, {"work", part_work}, {"many", part_many}, {"overflow", part_overflow}, {"paths", part_paths}, {"together", part_together}, {"chase", part_chase}, {"join", part_join}, {"graph", part_graph}, {"version", part_version}, {"long", part_long}};
  for (int i = 2; i < argc; i++) { parts.at(argv[i])(); std::fflush(stdout); }
}
