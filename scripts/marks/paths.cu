// A path that only some lanes of some warps take.  One reduction per execution of it by a warp: what ncu counts in the build
// without marks, marks count in the other.
#include <nsysalign/marks_host.h>
__global__ void kernel(int n, unsigned long long* total, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  for (int i = 0; i < 20; i++)
    if (t < n && (t / 32 + i) % 3 == 0 && t % 32 < 8 + i) {
      NSYSALIGN_COUNT_WARPS(w, "path");
      asm volatile("red.global.add.u64 [%0], 1;" ::"l"(total + threadIdx.x) : "memory");
    }
}
int main(int argc, char** argv) {
  unsigned long long* total;
  if (cudaMalloc(&total, 1 << 16)) return 1;
  NSYSALIGN_RECORDER(r, 16);
  kernel<<<1000, 192>>>(150000, total, r.marks());
  if (cudaDeviceSynchronize()) return 1;
  if (argc > 1) r.write(argv[1]);
}
