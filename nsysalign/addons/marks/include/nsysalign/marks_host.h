// A buffer for marks in a CUDA C++ program, written to a file that nsysalign reads (docs/marks.md).  Python programs
// have nsysalign.marks.buffer() instead.
//
//     NSYSALIGN_RECORDER(recorder, 64);             // MiB on the current device; looks for names in this source file
//     gemm<<<...>>>(..., recorder.marks());
//     recorder.write();                             // waits for the device; also at the end of its scope
//
// Without -DNSYSALIGN_MARKS nothing is allocated or written, and marks() is 0.
#pragma once
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "marks.cuh"

namespace nsysalign {

class recorder {
 public:
  /// `mib`: how much is allocated, 1 or more.  Throws std::runtime_error where there is no such memory.
  explicit recorder(size_t mib, const char* source = nullptr) {
#if defined(NSYSALIGN_MARKS)
    const size_t bytes = (mib ? mib : 1) << 20;
    size_t slots = 1024;
    while (slots * 2 * (LINE + 8) * 16 <= bytes) slots *= 2;
    const unsigned first = (TABLE + slots * (LINE + 8) + CHUNK - 1) / CHUNK * (CHUNK / LINE);
    header_[0] = MAGIC, header_[1] = NSYSALIGN_MARKS_VERSION;
    header_[4] = (bytes / LINE - first) / REGIONS / LINES * LINES, header_[5] = first, header_[6] = slots;
    check(cudaGetDevice(&device_));
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device_));
    check(cudaMalloc(&memory_, bytes));
    check(cudaMemset(memory_, 0, bytes));
    check(cudaMemcpy(memory_, header_, LINE, cudaMemcpyHostToDevice));
    about_ = "\"pid\":" + std::to_string(getpid()) + ",\"device\":" + std::to_string(device_) + ",\"sms\":" +
             std::to_string(properties.multiProcessorCount) + ",\"bytes\":" + std::to_string(bytes);
#else
    (void)mib;
#endif
    if (source) names_of(source);
  }
  ~recorder() {
    try {
      if (!written_) write();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "nsysalign: the marks are lost: %s\n", error.what());
    }
    if (memory_) cudaFree(memory_);
  }
  recorder(const recorder&) = delete;
  recorder& operator=(const recorder&) = delete;

  nsysalign_marks marks() const { return {reinterpret_cast<unsigned long long>(memory_)}; }

  /// Write what is there by now, to `path` or into the directory of `nsysalign run`.  Without either: nowhere.
  void write(const char* path = nullptr) {
    written_ = true;
#if defined(NSYSALIGN_MARKS)
    const char* folder = std::getenv("NSYSALIGN_DIR");
    if (!path && !folder) return;
    static int number = 0;
    const std::string to = path ? path : std::string(folder) + "/marks-" + std::to_string(getpid()) + "-c" + std::to_string(number++) + ".nsam";
    const on_device here(device_);
    check(cudaDeviceSynchronize());
    std::vector<char> fixed(TABLE + static_cast<size_t>(header_[6]) * (LINE + 8));
    check(cudaMemcpy(fixed.data(), memory_, fixed.size(), cudaMemcpyDeviceToHost));
    std::FILE* file = std::fopen((to + ".partial").c_str(), "wb");
    if (!file) throw std::runtime_error("cannot write " + to);
    std::string text = "{" + about_ + ",\"names\":[";
    for (auto name = names_.begin(); name != names_.end(); ++name) text += (name == names_.begin() ? "\"" : ",\"") + *name + "\"";
    text += "]}";
    while ((24 + text.size()) % LINE) text += ' ';
    const unsigned head[2] = {1, static_cast<unsigned>(text.size())};
    std::fwrite("NSYSALIGN-MARKS\n", 16, 1, file);
    std::fwrite(head, 8, 1, file);
    std::fwrite(text.data(), text.size(), 1, file);
    std::fwrite(fixed.data(), TABLE, 1, file);
    write_regions(file, fixed);
    if (std::fclose(file) || std::rename((to + ".partial").c_str(), to.c_str())) throw std::runtime_error("cannot write " + to);
#else
    (void)path;
#endif
  }

 private:
#if defined(NSYSALIGN_MARKS)
  void write_regions(std::FILE* file, const std::vector<char>& fixed) {
    unsigned counts[2 * REGIONS + 16] = {};  // slots of the table that are used, then chunks and strays of each region
    std::vector<char> slots, body, region;
    for (size_t at = TABLE + 8 * static_cast<size_t>(header_[6]); at < fixed.size(); at += LINE)
      if (*reinterpret_cast<const u64_t*>(&fixed[at])) slots.insert(slots.end(), &fixed[at], &fixed[at] + LINE), counts[0]++;
    const unsigned lines = header_[4];
    for (unsigned r = 0; r < REGIONS; ++r) {
      u64_t given;
      std::memcpy(&given, &fixed[LINE + LINE * r], 8);
      unsigned chunks = std::min<u64_t>(given & 0xffffffffu, lines / LINES), strays = std::min<u64_t>(given >> 32, lines);
      const bool whole = chunks * LINES + strays > lines;  // where the two meet, a chunk's head tells where
      const char* start = memory_ + (static_cast<size_t>(header_[5]) + static_cast<size_t>(lines) * r) * LINE;
      region.resize(static_cast<size_t>(lines) * LINE);
      if (!chunks && !strays) continue;
      check(cudaMemcpy(region.data(), start, static_cast<size_t>(whole ? lines : chunks * LINES) * LINE, cudaMemcpyDeviceToHost));
      while (whole && chunks && (word_at(region, (chunks - 1) * LINES) & ~255u) != HEAD) --chunks;
      strays = std::min(strays, lines - chunks * LINES);
      if (strays && !whole)
        check(cudaMemcpy(&region[(static_cast<size_t>(lines) - strays) * LINE], start + (static_cast<size_t>(lines) - strays) * LINE,
                         static_cast<size_t>(strays) * LINE, cudaMemcpyDeviceToHost));
      counts[16 + 2 * r] = chunks, counts[17 + 2 * r] = strays;
      body.insert(body.end(), region.begin(), region.begin() + static_cast<size_t>(chunks) * CHUNK);
      body.insert(body.end(), region.end() - static_cast<size_t>(strays) * LINE, region.end());
    }
    std::fwrite(counts, sizeof counts, 1, file);
    std::fwrite(slots.data(), 1, slots.size(), file);
    std::fwrite(body.data(), 1, body.size(), file);
  }
#endif

  /// The literals after NSYSALIGN_ in a source file: the marks carry only their hashes.
  void names_of(const char* source) {
    std::FILE* file = std::fopen(source, "rb");
    if (!file) return;
    std::string text(4 << 20, 0);
    text.resize(std::fread(&text[0], 1, text.size(), file));
    std::fclose(file);
    for (size_t at = 0; (at = text.find("NSYSALIGN_", at)) != std::string::npos; ++at) {
      const size_t quote = text.find_first_of("\";)", at), end = text.find('"', quote + 1);
      if (quote == std::string::npos || end == std::string::npos || text[quote] != '"' || end - quote > 200) continue;
      const std::string name = text.substr(quote + 1, end - quote - 1);
      bool plain = true;
      for (unsigned char c : name) plain = plain && c >= ' ' && c < 127 && c != '\\';
      if (plain) names_.insert(name);
    }
  }

  /// The buffer's device, whichever the program has chosen since; afterwards that one again.
  struct on_device {
    int before = 0;
    explicit on_device(int device) {
      check(cudaGetDevice(&before));
      check(cudaSetDevice(device));
    }
    ~on_device() { cudaSetDevice(before); }
  };

  typedef unsigned long long u64_t;
  static unsigned word_at(const std::vector<char>& bytes, size_t line) {
    unsigned value;
    std::memcpy(&value, &bytes[line * 64], 4);
    return value;
  }
  static void check(cudaError_t error) {
    if (error) throw std::runtime_error(cudaGetErrorString(error));
  }

  char* memory_ = nullptr;
  int device_ = 0;
  unsigned header_[16] = {};
  bool written_ = false;
  std::string about_;
  std::set<std::string> names_;
};

}  // namespace nsysalign

#define NSYSALIGN_RECORDER(name, mib) ::nsysalign::recorder name(mib, __FILE__)
