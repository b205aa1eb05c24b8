// Marks, phases and path counters inside kernels, for nsysalign (docs/marks.md).
//
//     __global__ void gemm(..., nsysalign_marks marks) {     // one 64-bit pointer; 0 is off
//       NSYSALIGN_WARP(w, marks);                            // first in the kernel, in every warp
//       NSYSALIGN_RANGE(w, "load") { ... }
//       NSYSALIGN_MARK(w, "mma");
//       NSYSALIGN_MARK_AFTER(w, "landed", value);            // not before the value is there
//       NSYSALIGN_COUNT(w, "slow path");                     // threads that pass here
//       NSYSALIGN_COUNT_WARPS(w, "slow path, by warp");      // and how often a warp does
//     }
//
// Without -DNSYSALIGN_MARKS every macro is empty: the machine code is what it would be without them.
// Needs nothing of the host, so NVRTC takes it; C++14, compute capability 7.0 or newer.
#pragma once

/// The address of a buffer made by nsysalign.marks.buffer() or nsysalign::recorder; 0 turns marks off.
struct nsysalign_marks {
  unsigned long long address;
};

#define NSYSALIGN_MARKS_VERSION 2

#if !defined(NSYSALIGN_MARKS)

#define NSYSALIGN_WARP(w, marks)
#define NSYSALIGN_RANGE(w, name)
#define NSYSALIGN_MARK(w, name)
#define NSYSALIGN_MARK_AFTER(w, name, value)
#define NSYSALIGN_COUNT(w, name)
#define NSYSALIGN_COUNT_WARPS(w, name)

#else

#define NSYSALIGN_DEVICE __device__ __forceinline__

namespace nsysalign {

typedef unsigned int u32;
typedef unsigned long long u64;

// The buffer, in bytes from its address.  Magic, version and refused stay where they are in every version.
//   0  magic   4  version   8  refused (version of the kernel's header, where it is another)
//   16 lines of a region   20 line at which the regions begin   24 slots of the table (a power of two)
//   64 + 64 s, s < 256: line of the SMs with number s modulo 256
//        0 (s < 64 only) what region s has given away: chunks in the low half, strays in the high half
//        8 marks dropped   16 counts dropped (executions by a warp)   24 counts dropped (lanes)
//   64 + 64 * 256: the table: its tags, 8 bytes a slot, apart from what changes, so that they stay in the L1 cache; its
// slots, 64 bytes each.  Then the regions, at an address that 1024 divides.  A line is 64 bytes.  A region is filled from its beginning by chunks of 1024 bytes, from its end by strays of 64.
//   16 bytes of a chunk: a mark (timer, clock, 4 * name + kind), or behind a warp's last mark what it counted (threads, how often
// by warps or 0, 4 * name + EXIT)
constexpr u32 LINES = 16;  // of a chunk
constexpr u32 MAGIC = 0x4d41534eu, CHUNK = 1024, LINE = 64, SM_LINES = 256, REGIONS = 64;
constexpr u32 TABLE = LINE + LINE * SM_LINES, PROBES = 64;
constexpr u32 HEAD = 0x4b434e00u, STRAY = 0x41525400u;
constexpr u32 BEGIN = 1, END = 2, EXIT = 3;  // kinds of marks; 0 is a point in time
constexpr u32 LAST = CHUNK - 16;  // the bits that are all set in the address of a chunk's last slot
constexpr u32 OFF = LAST, FULL = CHUNK | LAST;  // no addresses, in place of the last slot that was used: no room behind
constexpr u32 RUN = 4, IN_RUN = 3;  // of chunks that are claimed together: see long_way()

/// 30 bits of FNV-1a, not 0; the kind of mark takes the two bits below.
__host__ __device__ constexpr u32 hash(const char* name) {
  u32 h = 2166136261u;
  for (; *name; ++name) h = (h ^ static_cast<unsigned char>(*name)) * 16777619u;
  h = (h >> 30) ^ (h & 0x3fffffffu);
  return h ? h : 1u;
}
template <u32 VALUE> struct constant { enum : u32 { value = VALUE }; };

NSYSALIGN_DEVICE u64 timer() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory"); return t; }
NSYSALIGN_DEVICE u32 clock_low() { u32 t; asm volatile("mov.u32 %0, %%clock;" : "=r"(t)::"memory"); return t; }
NSYSALIGN_DEVICE u64 clock_whole() { u64 t; asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory"); return t; }
NSYSALIGN_DEVICE u32 sm() { u32 s; asm volatile("mov.u32 %0, %%smid;" : "=r"(s)); return s; }
NSYSALIGN_DEVICE u64 grid() { u64 g; asm volatile("mov.u64 %0, %%gridid;" : "=l"(g)); return g; }
NSYSALIGN_DEVICE u32 lane() { u32 l; asm("mov.u32 %0, %%laneid;" : "=r"(l)); return l; }
NSYSALIGN_DEVICE bool first_of(u32 mask) { return lane() == static_cast<u32>(__ffs(static_cast<int>(mask)) - 1); }
NSYSALIGN_DEVICE void add(u64 p, u64 n) { asm volatile("red.global.add.u64 [%0], %1;" ::"l"(p), "l"(n) : "memory"); }
NSYSALIGN_DEVICE u32 word(u64 p) { u32 v; asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p)); return v; }
NSYSALIGN_DEVICE u64 longword(u64 p) { u64 v; asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(v) : "l"(p)); return v; }
NSYSALIGN_DEVICE u64 cached(u64 p) { u64 v; asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(p)); return v; }
NSYSALIGN_DEVICE u64 line(u64 buffer) { return buffer + LINE + LINE * (sm() % SM_LINES); }
NSYSALIGN_DEVICE u32 warp_in_block() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) >> 5;
}

NSYSALIGN_DEVICE void put_word_if(bool mine, u64 p, u32 value) {
  asm volatile("{\n\t.reg .pred q;\n\tsetp.ne.u32 q, %0, 0;\n\t@q st.global.u32 [%1], %2;\n\t}" ::"r"(static_cast<u32>(mine)), "l"(p), "r"(value)
               : "memory");
}

/// Whether this header may write there; else the lane that `tells` tells the host which version wanted to.
NSYSALIGN_DEVICE bool accepted(u64 buffer, bool tells) {
  const u64 is = cached(buffer);
  const bool same = is == (static_cast<u64>(NSYSALIGN_MARKS_VERSION) << 32 | MAGIC);
  put_word_if(tells && !same && static_cast<u32>(is) == MAGIC, buffer + 8, NSYSALIGN_MARKS_VERSION);
  return same;
}

NSYSALIGN_DEVICE u64 mixed(u64 x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Whose slot it is, after it was ours if it was nobody's.  Apart from its caller: the compiler puts a YIELD into a function with
/// such an atomic, and a YIELD sets lanes free that wait elsewhere for those that are here, so that the user's warp may run in
/// two parts from then on (seen on an H100 and an H200).  Here it passes one when a counter begins, not at every count.
static __device__ __noinline__ u64 taken(u64 mine, u64 p, u64 tag, u64 grid, u32 sm, u32 id) {
  u64 found;
  asm volatile("atom.global.cas.b64 %0, [%1], %2, %3;" : "=l"(found) : "l"(mine), "l"(0ull), "l"(tag) : "memory");
  if (found) return found;
  asm volatile("st.global.v2.u64 [%0], {%1,%2};" ::"l"(p), "l"(tag), "l"(grid) : "memory");
  asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(p + 16), "r"(sm), "r"(id) : "memory");
  return tag;
}

/// Add executions to a counter of this launch and SM: 0 tag, 8 grid, 16 SM, 20 id, 24 warps, 32 lanes, 40 to 63 zeros.  For one lane.
static __device__ __noinline__ void tally(u64 buffer, u32 id, u32 warps, u64 lanes) {
  const u32 slots = id ? word(buffer + 24) : 0, s = sm();  // id 0: it is not known which counter
  const u64 g = grid(), tag = mixed(mixed(g + 1) ^ (static_cast<u64>(id) << 32 | s)) | 1;
  u64 at = tag >> 8;
  for (u32 probe = 0; probe < PROBES && slots; ++probe, ++at) {
    const u64 mine = buffer + TABLE + 8 * (at & (slots - 1));
    const u64 p = buffer + TABLE + 8ull * slots + LINE * (at & (slots - 1));
    u64 found = cached(mine);  // a tag never changes once it is there
    if (!found) found = taken(mine, p, tag, g, s, id);
    if (found != tag) continue;
    add(p + 24, warps);
    add(p + 32, lanes);
    return;
  }
  add(line(buffer) + 16, warps);
  add(line(buffer) + 24, lanes);
}

NSYSALIGN_DEVICE u64 sum_of(u32 mask, u32 value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(mask, value & 0xffffu) + (static_cast<u64>(__reduce_add_sync(mask, value >> 16)) << 16);
#else
  u64 sum = 0;
  for (u32 rest = mask; rest; rest &= rest - 1) sum += __shfl_sync(mask, value, __ffs(static_cast<int>(rest)) - 1);
  return sum;
#endif
}

NSYSALIGN_DEVICE u32 few_of(u32 mask, u32 value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(mask, value);
#else
  return static_cast<u32>(sum_of(mask, value));
#endif
}

/// Count one execution by the lanes that are here, at once.
NSYSALIGN_DEVICE void count_now(u64 buffer, u32 id) {
  const u32 mask = __activemask();
  if (first_of(mask)) tally(buffer, id, 1, __popc(mask));
  __syncwarp(mask);
}

// A warp passes through marks together: nothing branches on what differs between lanes, so the compiler puts no convergence
// barrier around marks, nor around the loops that they are in (docs/marks.md, "Cost").  What one lane alone does is predicated.
NSYSALIGN_DEVICE void put(u64 p, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
NSYSALIGN_DEVICE void put_if(bool mine, u64 p, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("{\n\t.reg .pred q;\n\tsetp.ne.u32 q, %0, 0;\n\t@q st.global.cs.v4.u32 [%1], {%2,%3,%4,%5};\n\t}" ::"r"(static_cast<u32>(mine)),
               "l"(p), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
NSYSALIGN_DEVICE void add_if(bool mine, u64 p, u64 n) {
  asm volatile("{\n\t.reg .pred q;\n\tsetp.ne.u32 q, %0, 0;\n\t@q red.global.add.u64 [%1], %2;\n\t}" ::"r"(static_cast<u32>(mine)), "l"(p), "l"(n)
               : "memory");
}
NSYSALIGN_DEVICE u64 take_if(bool mine, u64 p, u64 n) {
  u64 before;
  asm volatile("{\n\t.reg .pred q;\n\tsetp.ne.u32 q, %1, 0;\n\tmov.u64 %0, 0;\n\t@q atom.global.add.u64 %0, [%2], %3;\n\t}"
               : "=&l"(before) : "r"(static_cast<u32>(mine)), "l"(p), "l"(n) : "memory");
  return before;
}

/// Address of fresh chunks (of 16 lines), in its low bits how many there are beyond the first of the `most` that were wanted;
/// of a stray line where `most` is 0; 0 where all regions are full.  All lanes of `here` call it for the one that leads; only its
/// result is one.
NSYSALIGN_DEVICE u64 claim_together(u64 buffer, u32 here, bool leads, u32 most) {
  const u32 lines = word(buffer + 16), first = word(buffer + 20);
  u32 region = sm() % REGIONS;
#pragma unroll 4  // as a loop it would get a YIELD: see taken()
  for (u32 tried = 0; tried < REGIONS; ++tried, region = (region + 1) % REGIONS) {
    const u64 cursor = buffer + LINE + LINE * region;
    const u64 seen = tried ? longword(cursor) : 0;  // a full region is left alone
    const bool mine = leads && static_cast<u32>(seen) * LINES + static_cast<u32>(seen >> 32) < lines;
    const u64 given = take_if(mine, cursor, most ? most : 1ull << 32);
    const u32 chunks = static_cast<u32>(given), strays = static_cast<u32>(given >> 32);
    const u32 used = chunks * LINES + strays;
    if (__any_sync(here, mine && used + (most ? LINES : 1) <= lines)) {
      const u32 fit = (lines - used) / LINES;
      const u64 at = buffer + static_cast<u64>(first + lines * region + (most ? chunks * LINES : lines - strays - 1)) * LINE;
      return most ? at | ((fit < most ? fit : most) - 1) : at;
    }
  }
  return 0;
}

/// The 64 bytes before a chunk's marks, or a stray mark by itself: lanes apart from the others cannot move what all share.
NSYSALIGN_DEVICE void head_if(bool mine, u64 p, u32 kind, u32 id, u64 time, u64 clock, u32 mask, u32 previous) {
  put_if(mine, p + 32, static_cast<u32>(time), static_cast<u32>(time >> 32), static_cast<u32>(clock), static_cast<u32>(clock >> 32));
  put_if(mine, p + 48, mask, previous, blockDim.x * blockDim.y * blockDim.z, 0);
  put_if(mine, p + 16, blockIdx.x, blockIdx.y | blockIdx.z << 16, warp_in_block(), sm());
  const u64 g = grid();
  put_if(mine, p, kind | NSYSALIGN_MARKS_VERSION, id, static_cast<u32>(g), static_cast<u32>(g >> 32));
}

/// A warp's first chunk (`last` OFF), a chunk that is full, lanes that are alone, no room: all that a mark seldom is, so that
/// its own code is short.  Takes the address of the slot that was used last and returns it with `run` in its low bits; id 0
/// makes no mark.
/// `run`: how many chunks behind this one are the warp's already: it takes one, then RUN at a time, since the atomic that claims
/// them takes longer than all else here.  What a claim takes lies outside of ranges: they begin after it and end before.
/// `here`: the lanes that made the call together.  It is not asked for in here: calls from both sides of a branch may meet in a
/// function that is not inlined, and were one mark with one's name.
static __device__ __noinline__ u64 long_way(u64 buffer, u64 last, u32 mask, u32 here, u32 id, u32 run) {
  u64 t = timer();
  const u64 whole = clock_whole();
  u32 c = static_cast<u32>(whole);
  const bool leads = first_of(here);
  const bool follows = __all_sync(here, here == mask && run && (last & LAST) == LAST);  // the run's next chunk
  if (!follows && __any_sync(here, last == OFF) && __any_sync(here, !accepted(buffer, leads))) return OFF;
  const bool apart = !follows && __any_sync(here, here != mask), full = !follows && __any_sync(here, last == FULL);
  const bool ended = follows || (!apart && !full && __any_sync(here, (last & LAST) == LAST));
  const bool claims = !follows && (apart || ended);
  u64 fresh = follows ? (last + 16) | (run - 1) : 0;  // it begins where this one ends
  if (claims) fresh = claim_together(buffer, here, leads, apart ? 0 : last == OFF ? 1 : RUN);
  const u64 p = fresh & ~static_cast<u64>(IN_RUN);
  if (apart || ended)  // `previous`: the chunk before, in lines from the buffer, never 0
    head_if(leads && p, p, apart ? STRAY : HEAD, apart ? id : 0, t, whole, here,
            apart || last == OFF ? 0 : static_cast<u32>((last - LAST - buffer) / LINE));
  add_if(leads && (id || apart) && (claims ? !p : full), line(buffer) + 8, 1);
  if (apart) return last | run;
  if (ended) {
    fresh = __shfl_sync(here, fresh, __ffs(static_cast<int>(here)) - 1);  // also where all know it: so that the compiler does
    run = static_cast<u32>(fresh) & IN_RUN;
    last = fresh > IN_RUN ? fresh - run + LINE - 16 : FULL;
    if ((id & 3) == BEGIN) t = timer(), c = clock_low();
  }
  const bool written = id && last != FULL;
  put_if(written, last + 16, static_cast<u32>(t), static_cast<u32>(t >> 32), c, id);
  return (written ? last + 16 : last) | run;
}

#if defined(__COUNTER__)
constexpr bool SHARED_SITES = false;
constexpr int SITES = 32;  // counters of a kernel that are kept in registers; others are added at once
#define NSYSALIGN_SITE(name) __COUNTER__
#define NSYSALIGN_BASE __COUNTER__
#else  // NVRTC has no such counter: two names may meet in one place (of one line, or of lines 64 apart), then both are lost
constexpr bool SHARED_SITES = true;
constexpr int SITES = 256;
#define NSYSALIGN_BASE 0
#define NSYSALIGN_SITE(name) static_cast<int>(1 + (__LINE__ * 4 + NSYSALIGN_HASH(name) % 4) % ::nsysalign::SITES)
#endif
/// What a warp carries along: where its last mark is, its lanes, and what its threads have counted.
template <int BASE> struct warp {
  const u64 buffer;
  u64 last;  // address of the slot that was used last; OFF, or FULL where there is no room
  u64 at;    // the same, in registers of each lane: the compiler keeps `last` where only one for all is, far from a store
  u32 mask;
  u32 run;   // of chunks: see long_way()
  u32 lanes[SITES], warps[SITES], ids[SITES];  // ids: only where lanes is not 0, so it takes no register
  u32 seen[SHARED_SITES ? SITES : 1];

  NSYSALIGN_DEVICE explicit warp(nsysalign_marks marks) : buffer(marks.address), last(OFF), at(OFF), mask(0), run(0) {
#pragma unroll
    for (int i = 0; i < SITES; ++i) lanes[i] = warps[i] = seen[SHARED_SITES ? i : 0] = 0;
    if (!buffer) return;
    mask = __activemask();
    take(mask, 0);
  }
  NSYSALIGN_DEVICE ~warp() {
    if (off()) return;
    mark(EXIT);
    if (told()) return;
    // each sum is kept by a lane of its own, and all go to memory together: one after the other they would take a microsecond each
    u32 id = 0, times = 0;
    u64 sum = 0;
    bool lost = false;
#pragma unroll
    for (int i = 0; i < SITES; ++i) {
      if (!lanes[i]) continue;
      const u32 here = __activemask(), from = here & (~0u << i % 32);
      const u64 all = sum_of(here, lanes[i]);
      const u32 by_warps = few_of(here, warps[i]);
      const bool mine = first_of(from ? from : here);
      if (__builtin_expect(__any_sync(here, mine && sum), 0)) {  // a lane that keeps one already
        if (mine && sum) tally(buffer, lost ? 0 : id, times ? times : 1, sum);
        __syncwarp(here);
      }
      id = mine ? ids[i] : id;
      sum = mine ? all : sum;
      times = mine ? by_warps : times;
      if (SHARED_SITES && __any_sync(here, seen[SHARED_SITES ? i : 0] != __shfl_sync(here, ids[i], __ffs(static_cast<int>(here)) - 1)))
        lost = mine || lost;
      else
        lost = !mine && lost;
    }
    const u32 here = __activemask(), known = __ballot_sync(here, sum && !lost);
    const bool fits = __all_sync(here, here == mask && __popc(known) <= left());
    if (fits && sum && !lost)
      put_if(true, at + 16 * (1 + __popc(known & ((1u << lane()) - 1))), static_cast<u32>(sum), static_cast<u32>(sum >> 32), times, id | EXIT);
    else if (sum)
      tally(buffer, lost ? 0 : id, times ? times : 1, sum);
  }
  warp(const warp&) = delete;
  warp& operator=(const warp&) = delete;

  NSYSALIGN_DEVICE void mark(u32 id) {
    if (__builtin_expect(!buffer, 0)) return;  // before all else: one branch is what marks cost that are off
    mark_if(id, false, 0);
  }

  template <class T> NSYSALIGN_DEVICE void mark_after(u32 id, const T& value) {
    if (__builtin_expect(!buffer, 0)) return;
    mark_if(id, true, folded(value) == 0x9e3779b9u);
  }

  /// `by_warps`: how often a warp does, is counted too, by the first of the lanes that are there.
  template <int SITE> NSYSALIGN_DEVICE void count(u32 id, bool by_warps) {
    constexpr bool fits = SITE > BASE && SITE - BASE <= SITES;
    constexpr int i = fits ? SITE - BASE - 1 : 0;
    if (fits) {
      if (SHARED_SITES) seen[SHARED_SITES ? i : 0] |= id;
      lanes[i] += 1;  // each lane its own: no vote, which would hold up the code around it
      if (by_warps) warps[i] += first_of(__activemask());
      ids[i] = id;
    } else if (!off()) {
      count_now(buffer, id);
    }
  }

 private:
  NSYSALIGN_DEVICE bool off() const { return last == OFF; }

  /// Slots that are left in the chunk.
  NSYSALIGN_DEVICE u32 left() const { return (LAST - (static_cast<u32>(last) & LAST)) / 16; }

  /// What a warp counted that ends as it began, written behind its marks: a record for each counter, in a place of its own.
  /// Plain stores that nobody waits for, where the table costs microseconds.
  NSYSALIGN_DEVICE bool told() {
#if __CUDA_ARCH__ >= 800 && defined(__COUNTER__)
    u32 places = 0, large = 0;
#pragma unroll
    for (int i = 0; i < SITES; ++i) {
      places = lanes[i] ? i + 1 : places;
      large |= lanes[i];
    }
    const u32 here = __activemask();
    if (__any_sync(here, here != mask || large >> 26)) return false;
    if (__reduce_max_sync(here, places) > left()) return false;
#pragma unroll
    for (int i = 0; i < SITES; ++i) {
      // not volatile: of a counter that the kernel has not, nothing is left
      u32 sum, times;
      asm("redux.sync.add.u32 %0, %1, %2;" : "=r"(sum) : "r"(lanes[i]), "r"(here));
      asm("redux.sync.add.u32 %0, %1, %2;" : "=r"(times) : "r"(warps[i]), "r"(here));
      if (lanes[i]) put(at + 16 * (i + 1), sum, 0, times, ids[i] | EXIT);  // each of these lanes the same
    }
    return true;
#else
    return false;
#endif
  }

  NSYSALIGN_DEVICE void take(u32 here, u32 id) {
    const u64 slot = long_way(buffer, last, mask, here, id, run);
    run = static_cast<u32>(slot) & IN_RUN;
    last = slot & ~static_cast<u64>(IN_RUN);
    at = last;
    u32 mine;
    asm volatile("mov.u32 %0, %%lanemask_eq;" : "=r"(mine));
    at += static_cast<u32>(__ffs(static_cast<int>(mine))) - 1 - lane();  // 0, which the compiler does not know
  }

  /// `odd`: false but for one value in 2^32; the timer is not read before it is known.
  /// Whether it is a rare case, must be the same in all lanes that are here.  They agree on the branch: they see the same
  /// lanes, and `last` differs in no two of `mask`.
  NSYSALIGN_DEVICE void mark_if(u32 id, bool waits, u32 odd) {
    u32 rare, here, low = static_cast<u32>(last);
    // Into the slot behind the last one, if there is one in this chunk and all of the warp's lanes are here.  An address never
    // leaves its chunk: its high half stays.
#define NSYSALIGN_CHECK                                                                                       \
  "{\n\t.reg .pred p, full;\n\t.reg .b32 left, a, b, c;\n\t.reg .b64 t;\n\tactivemask.b32 %1;\n\t"            \
  "lop3.b32 left, %2, 1008, 0, 0x0c;\n\tsetp.eq.u32 full, left, 0;\n\tsetp.ne.or.u32 p, %1, %4, full;\n\t" \
  "add.u32 %2, %2, 16;\n\tmov.b64 {a, b}, %3;\n\tadd.u32 a, a, 16;\n\tmov.b64 %3, {a, b};\n\t"
#define NSYSALIGN_WAIT "setp.ne.u32 full, %6, 0;\n\tvote.sync.any.pred full, full, %1;\n\tor.pred p, p, full;\n\t"
#define NSYSALIGN_TIME "mov.u64 t, %%globaltimer;\n\tmov.u32 c, %%clock;\n\tmov.b64 {a, b}, t;\n\t"
#if __CUDA_ARCH__ >= 900
#define NSYSALIGN_STORE "@!p st.global.cs.v4.u32 [%3], {a, b, c, %5};\n\tselp.u32 %0, 1, 0, p;\n\t}"
#else  // there the compiler has to be told that they agree
#define NSYSALIGN_STORE "mov.u32 %0, 1;\n\t@p bra.uni DONE;\n\tst.global.cs.v4.u32 [%3], {a, b, c, %5};\n\tmov.u32 %0, 0;\n\tDONE:\n\t}"
#endif
    if (waits)
      asm volatile(NSYSALIGN_CHECK NSYSALIGN_WAIT NSYSALIGN_TIME NSYSALIGN_STORE
                   : "=&r"(rare), "=&r"(here), "+r"(low), "+l"(at) : "r"(mask), "r"(id), "r"(odd) : "memory");
    else
      asm volatile(NSYSALIGN_CHECK NSYSALIGN_TIME NSYSALIGN_STORE
                   : "=&r"(rare), "=&r"(here), "+r"(low), "+l"(at) : "r"(mask), "r"(id) : "memory");
    last = (last & 0xffffffff00000000ull) | low;
    if (__builtin_expect(rare, 0)) {
      last = (last & 0xffffffff00000000ull) | (low - 16);
      take(here, id);
    }
#undef NSYSALIGN_CHECK
#undef NSYSALIGN_WAIT
#undef NSYSALIGN_TIME
#undef NSYSALIGN_STORE
  }

  template <class T> static NSYSALIGN_DEVICE u32 folded(const T& value) {
    u32 words[(sizeof(T) + 3) / 4] = {};
    memcpy(words, &value, sizeof(T));
    u32 all = 0;
#pragma unroll
    for (unsigned i = 0; i < (sizeof(T) + 3) / 4; ++i) all ^= words[i];
    return all;
  }
};

template <class W> class range {
 public:
  NSYSALIGN_DEVICE range(W& w, u32 id) : w_(w), id_(id) { w_.mark(id_ | BEGIN); }
  NSYSALIGN_DEVICE ~range() { w_.mark(id_ | END); }
  range(const range&) = delete;
  range& operator=(const range&) = delete;
  NSYSALIGN_DEVICE explicit operator bool() const { return false; }

 private:
  W& w_;
  u32 id_;
};
template <class W> NSYSALIGN_DEVICE range<W> ranged(W& w, u32 id) { return {w, id}; }  // no copy, in C++14 neither

template <class T> struct not_a_warp { enum { value = 1 }; };
template <int B> struct not_a_warp<warp<B>> { enum { value = 0 }; };
template <class T> NSYSALIGN_DEVICE T& checked(T& w) {
  static_assert(!not_a_warp<T>::value, "nsysalign: the first argument is the name given to NSYSALIGN_WARP(w, marks)");
  return w;
}

}  // namespace nsysalign

#define NSYSALIGN_HASH(name) (::nsysalign::constant<::nsysalign::hash(name)>::value)
#define NSYSALIGN_WARP(w, marks) ::nsysalign::warp<NSYSALIGN_BASE> w(marks)
#define NSYSALIGN_RANGE(w, name) if (auto&& nsysalign_range = ::nsysalign::ranged(::nsysalign::checked(w), NSYSALIGN_HASH(name) << 2)) {} else
#define NSYSALIGN_MARK(w, name) ::nsysalign::checked(w).mark(NSYSALIGN_HASH(name) << 2)
#define NSYSALIGN_MARK_AFTER(w, name, value) ::nsysalign::checked(w).mark_after(NSYSALIGN_HASH(name) << 2, value)
#define NSYSALIGN_COUNT(w, name) ::nsysalign::checked(w).template count<NSYSALIGN_SITE(name)>(NSYSALIGN_HASH(name) << 2, false)
#define NSYSALIGN_COUNT_WARPS(w, name) ::nsysalign::checked(w).template count<NSYSALIGN_SITE(name)>(NSYSALIGN_HASH(name) << 2, true)

#endif
