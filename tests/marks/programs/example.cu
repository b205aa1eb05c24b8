#include <nsysalign/marks.cuh>

// C = A B: a tile of 128 x 128 for each block, 8 x 8 for each thread.
extern "C" __global__ void __launch_bounds__(256, 2) gemm(const float* a, const float* b, float* c, int n, int k, nsysalign_marks marks) {
  NSYSALIGN_WARP(w, marks);
  __shared__ float as[8][128], bs[8][128];
  float sum[8][8] = {};
  const int x = threadIdx.x % 16 * 8, y = threadIdx.x / 16 * 8;
  const long long row = blockIdx.y * 128, column = blockIdx.x * 128;
  for (int at = 0; at < k; at += 8) {
    NSYSALIGN_RANGE(w, "load") {
      for (int i = threadIdx.x; i < 1024; i += 256) {
        as[i % 8][i / 8] = a[(row + i / 8) * k + at + i % 8];
        bs[i / 128][i % 128] = b[(at + i / 128) * (long long)n + column + i % 128];
      }
      __syncthreads();
    }
    NSYSALIGN_RANGE(w, "mma") {
#pragma unroll
      for (int s = 0; s < 8; s++) {
        float left[8], right[8];
#pragma unroll
        for (int i = 0; i < 8; i++) left[i] = as[s][y + i], right[i] = bs[s][x + i];
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
          for (int j = 0; j < 8; j++) sum[i][j] += left[i] * right[j];
      }
      __syncthreads();
    }
  }
  NSYSALIGN_RANGE(w, "store") {
    for (int i = 0; i < 8; i++)
      for (int j = 0; j < 8; j++) c[(row + y + i) * n + column + x + j] = sum[i][j];
  }
}

// Sums of rows that get longer, as under a causal mask: block i has i + 1 pieces to read.
__device__ void triangle(const float* in, float* out, int row, nsysalign_marks marks) {
  NSYSALIGN_WARP(w, marks);
  __shared__ float parts[4];
  float sum = 0;
  NSYSALIGN_RANGE(w, "rows") {
    for (int piece = 0; piece <= row; piece++) {
      const float value = in[(long long)piece * 4096 + row * 8 % 4096 + threadIdx.x];
      sum += value;
      for (int i = 0; i < 40; i++) sum = sum * 0.999f + value;
      if (value > 0.999f) NSYSALIGN_COUNT(w, "large");
    }
  }
  NSYSALIGN_RANGE(w, "reduce") {
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) out[row] = parts[0] + parts[1] + parts[2] + parts[3];
  }
}
extern "C" __global__ void short_first(const float* in, float* out, nsysalign_marks marks) { triangle(in, out, blockIdx.x, marks); }
extern "C" __global__ void long_first(const float* in, float* out, nsysalign_marks marks) { triangle(in, out, gridDim.x - 1 - blockIdx.x, marks); }
