// Dependent launches, clusters and every GPU that there is, marked; prints JSON lines, writes a dump per part and device.
//   nvcc -arch=sm_90 -O3 -DNSYSALIGN_MARKS -I nsysalign/addons/marks/include tests/marks/programs/launches.cu -o launches;  ./launches OUT
// Plainly, or under `nsys profile`; tests/marks/programs/judge_launches.py says whether everything is joined and adds up.
#include <nsysalign/marks_host.h>
#include <cstdio>
#include <memory>
#include <string>
typedef unsigned long long u64;
#define OK(x) do { cudaError_t status_ = (x); if (status_) { std::fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(status_)); std::exit(1); } } while (0)
__device__ __forceinline__ u64 gt() { u64 t; asm volatile("mov.u64 %0,%%globaltimer;" : "=l"(t)::"memory"); return t; }
__device__ __forceinline__ void spin(u64 ns) { const u64 a = gt(); while (gt() - a < ns) {} }
static std::string out;
static std::string path(const std::string& name) { return out + "/" + name + ".nsam"; }

__global__ void first(nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  NSYSALIGN_RANGE(w, "before the trigger") spin(5000);
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  NSYSALIGN_RANGE(w, "after the trigger") spin(20000);
}
__global__ void second(nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  NSYSALIGN_RANGE(w, "prologue") spin(3000);
#if __CUDA_ARCH__ >= 900
  NSYSALIGN_RANGE(w, "waits for the first") cudaGridDependencySynchronize();
#endif
  NSYSALIGN_RANGE(w, "work") spin(5000);
}
__global__ void clustered(nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  NSYSALIGN_RANGE(w, "half") spin(2000 + 1000 * (blockIdx.x % 2));
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
  NSYSALIGN_RANGE(w, "other half") spin(2000);
}
__global__ void plain(u64 ns, nsysalign_marks m) {
  NSYSALIGN_WARP(w, m);
  NSYSALIGN_RANGE(w, "work") spin(ns);
}

static void launch(void (*kernel)(nsysalign_marks), int blocks, cudaLaunchAttribute* with, nsysalign_marks m) {
  cudaLaunchConfig_t how = {};
  how.gridDim = dim3(blocks), how.blockDim = dim3(64), how.attrs = with, how.numAttrs = with ? 1 : 0;
  OK(cudaLaunchKernelEx(&how, kernel, m));
}
void dependent(int sms) {
  NSYSALIGN_RECORDER(r, 64);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization, early.val.programmaticStreamSerializationAllowed = 1;
  for (int i = 0; i < 100; i++) launch(first, sms / 2, nullptr, r.marks()), launch(second, sms / 2, &early, r.marks());
  OK(cudaDeviceSynchronize());
  r.write(path("dependent").c_str());
  std::printf("{\"launches\":\"dependent\",\"kernels\":200,\"warps\":%d}\n", 200 * (sms / 2) * 2);
}
void clusters(int sms) {
  NSYSALIGN_RECORDER(r, 64);
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  int warps = 0;
  for (unsigned size : {1u, 2u, 4u, 8u}) {
    cluster.val.clusterDim.x = size, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    for (int i = 0; i < 10; i++) launch(clustered, 3 * sms / 8 * 8, &cluster, r.marks()), warps += 3 * sms / 8 * 8 * 2;
  }
  OK(cudaDeviceSynchronize());
  r.write(path("clusters").c_str());
  std::printf("{\"launches\":\"clusters\",\"kernels\":40,\"warps\":%d}\n", warps);
}
void devices(int count) {
  std::vector<std::unique_ptr<nsysalign::recorder>> all;
  for (int d = 0; d < count; d++) {
    OK(cudaSetDevice(d));
    all.emplace_back(new nsysalign::recorder(64, __FILE__));
  }
  for (int i = 0; i < 100; i++)
    for (int d = 0; d < count; d++) {
      OK(cudaSetDevice(d));
      plain<<<20 + d, 64>>>(4000 + 1000 * d, all[d]->marks());
    }
  OK(cudaSetDevice(0));  // each recorder finds its own device
  for (int d = 0; d < count; d++) {
    all[d]->write(path("device-" + std::to_string(d)).c_str());
    std::printf("{\"launches\":\"device-%d\",\"kernels\":100,\"warps\":%d}\n", d, 100 * (20 + d) * 2);
  }
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  out = argv[1];
  int count = 0;
  OK(cudaGetDeviceCount(&count));
  cudaDeviceProp p;
  OK(cudaGetDeviceProperties(&p, 0));
  std::printf("{\"device\":\"%s\",\"devices\":%d}\n", p.name, count);
  if (p.major >= 9) dependent(p.multiProcessorCount), std::fflush(stdout), clusters(p.multiProcessorCount), std::fflush(stdout);
  devices(count);
}
