// Programs written for nvprof's __prof_trigger, unchanged but for the recorder; prints what can be counted by hand.
//   nvcc -arch=sm_90 -DNSYSALIGN_MARKS -DNSYSALIGN_REPLACE_PROF_TRIGGER -I nsysalign/addons/marks/include tests/marks/programs/triggers.cu
#include <nsysalign/marks_host.h>
#define OK(x) do { cudaError_t e = (x); if (e) { std::fprintf(stderr, "%s\n", cudaGetErrorString(e)); std::exit(1); } } while (0)
__global__ void per_iteration(int* x, int n) {
  for (int i = 0; i < n; i++) {
    if ((threadIdx.x & 31) < i) { __prof_trigger(0); x[threadIdx.x] += i; }
  }
}
__global__ void divergent(int* x) {
  if (threadIdx.x % 2) { __prof_trigger(1); x[threadIdx.x]++; } else { __prof_trigger(2); x[threadIdx.x]--; }
  __prof_trigger(3 + threadIdx.x % 3);  // not constant
}
__global__ void accesses(const int* x, int* y, int n) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  for (int i = 0; i < n; i++) {
    long long a = clock64();
    at = x[at] ^ 1;
    y[at & 1023] = at;
    long long d = clock64() - a;
    if (d > 1000) __prof_trigger(8);
    if (d > 2000) __prof_trigger(9);
    __prof_trigger(10);
  }
}
int main(int, char** argv) {
  NSYSALIGN_RECORDER(recorder, 16);
  int *x, *y; OK(cudaMalloc(&x, 4 << 20)); OK(cudaMemset(x, 0, 4 << 20)); OK(cudaMalloc(&y, 1 << 20));
  per_iteration<<<300, 64>>>(x, 40); divergent<<<300, 96>>>(x); accesses<<<264, 256>>>(x, y, 10);
  OK(cudaDeviceSynchronize());
  // [warps, lanes]; 39 of 40 iterations have a lane, sum of min(i, 32) lanes; more warps where lanes had come apart before
  std::printf("{\"triggers\":{\"0\":[%d,%d],\"1\":[900,14400],\"2\":[900,14400],\"3\":[900,9600],\"4\":[900,9600],\"5\":[900,9600],\"10\":[%d,%d]}}\n", 300 * 2 * 39, 300 * 2 * (31 * 32 / 2 + 8 * 32), 264 * 8 * 10, 264 * 256 * 10);
  recorder.write(argv[1]);
}
