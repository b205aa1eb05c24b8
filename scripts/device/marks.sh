#!/usr/bin/env bash
# Every figure of marks that only a GPU can give, in at most six minutes.
#   scripts/device/marks.sh build BIN                  where nvcc is; ARCH (sm_90)
#   scripts/device/marks.sh run BIN OUT [STEPS]        on the GPU; PYTHON (python), NSYS (nsys), LIMIT (360 s)
# STEPS is a regular expression for the names of steps.  Both ways to write marks, as measured and with -DNSYSALIGN_UNIFORM,
# side by side: cost, perturbation, exactness.  OUT/figures.txt says which aims are met.
set -u
cd "$(dirname "$0")/../.." || exit 2
build() {
  local bin=$1 arch=${ARCH:-sm_90} pid status=0 pids=()
  mkdir -p "$bin"
  compile() { nvcc "-arch=$arch" -O3 -DNSYSALIGN_REPLACE_PROF_TRIGGER -I nsysalign/marks/include "${@:3}" "scripts/marks/$1.cu" -o "$bin/$2"; }
  compile checks checks-usual -DNSYSALIGN_MARKS & pids+=($!)
  compile checks checks-uniform -DNSYSALIGN_MARKS -DNSYSALIGN_UNIFORM & pids+=($!)
  compile checks checks-off & pids+=($!)
  compile triggers triggers-usual -DNSYSALIGN_MARKS & pids+=($!)
  compile triggers triggers-uniform -DNSYSALIGN_MARKS -DNSYSALIGN_UNIFORM & pids+=($!)
  compile launches launches-usual -DNSYSALIGN_MARKS & pids+=($!)
  compile launches launches-uniform -DNSYSALIGN_MARKS -DNSYSALIGN_UNIFORM & pids+=($!)
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  return $status
}
checked() { # BIN OUT VARIANT PARTS...: run parts of checks.cu and triggers.cu and judge what they wrote
  set -o pipefail
  mkdir -p "$2/$3"
  { "$1/checks-$3" "$2/$3" "${@:4}" && "$1/triggers-$3" "$2/$3/triggers.nsam"; } | tee "$2/$3/said.jsonl" | "$PYTHON" scripts/marks/judge.py "$2/$3"
  local status=$?
  rm -f "$2/$3"/many-*.nsam
  return $status
}
joined() { # BIN OUT VARIANT: over a million marks under nsys, against stamps taken beside them
  set -o pipefail
  local to=$2/joined-$3
  mkdir -p "$to"
  "$NSYS" profile -t cuda -o "$to/t" --force-overwrite true "$1/checks-$3" "$to" join >"$to/out" 2>&1
  "$NSYS" export --type sqlite --output "$to/t.sqlite" --force-overwrite true "$to/t.nsys-rep" >/dev/null 2>&1
  "$PYTHON" scripts/marks/judge_join.py "$to" "$to/t.sqlite"
  local status=$?
  rm -f "$to/join.nsam" "$to/t.nsys-rep"
  return $status
}
launched() { # BIN OUT VARIANT: dependent launches, clusters, every GPU; plainly, then under nsys with its rows
  set -o pipefail
  local to=$2/launches-$3
  mkdir -p "$to/plain" "$to/nsys"
  "$1/launches-$3" "$to/plain" | "$PYTHON" scripts/marks/judge_launches.py "$to/plain"
  "$NSYS" profile -t cuda -o "$to/nsys/t" --force-overwrite true "$1/launches-$3" "$to/nsys" >"$to/nsys/out" 2>&1
  "$NSYS" export --type sqlite --output "$to/nsys/t.sqlite" --force-overwrite true "$to/nsys/t.nsys-rep" >/dev/null 2>&1
  grep '^{' "$to/nsys/out" | "$PYTHON" scripts/marks/judge_launches.py "$to/nsys" "$to/nsys/t.sqlite"
}
sanitized() { # BIN OUT VARIANT: buffers that are much too small, early exits, another version
  mkdir -p "$2/sanitizer-$3"
  compute-sanitizer --tool memcheck "$1/checks-$3" "$2/sanitizer-$3" overflow paths version
  local status=$?
  rm -r "$2/sanitizer-$3"
  return $status
}
run() {
  local bin=$1 variant
  OUT=$2 STEPS=${3:-.} PYTHON=${PYTHON:-python} NSYS=${NSYS:-nsys}
  export OUT PYTHON NSYS PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
  export -f checked joined launched sanitized
  # shellcheck source=scripts/device/steps.sh
  . scripts/device/steps.sh
  step machine 10 nvidia-smi -q -d CLOCK,MEMORY,UTILIZATION
  for variant in uniform usual; do
    mkdir -p "$OUT/$variant"
    step "cost-$variant" 20 "$bin/checks-$variant" "$OUT/$variant" cost
    step "work-$variant" 20 "$bin/checks-$variant" "$OUT/$variant" work
    step "exact-$variant" 60 bash -c 'checked "$@"' _ "$bin" "$OUT" "$variant" paths chase spins many overflow version long graph
    step "joined-$variant" 50 bash -c 'joined "$@"' _ "$bin" "$OUT" "$variant"
  done
  step work-off 20 "$bin/checks-off" "$OUT" work
  for variant in uniform usual; do
    step "sanitizer-$variant" 30 bash -c 'sanitized "$@"' _ "$bin" "$OUT" "$variant"
    step "launches-$variant" 30 bash -c 'launched "$@"' _ "$bin" "$OUT" "$variant"
  done
  step triton 40 "$PYTHON" scripts/marks/triton_check.py "$OUT"
  step proton 50 "$PYTHON" scripts/marks/against.py proton "$OUT"
  step ncu 50 "$PYTHON" scripts/marks/against.py ncu "$OUT"
  step example 60 "$PYTHON" -m nsysalign run --marks -o "$OUT/example" scripts/marks/example.py
  step tests 90 "$PYTHON" -m pytest -q -m gpu tests/marks
  "$PYTHON" scripts/marks/figures.py "$OUT" | tee "$OUT/figures.txt"
}
case ${1:-} in
  build) build "${2:?BIN}" ;;
  run) run "${2:?BIN}" "${3:?OUT}" "${4:-}" ;;
  *) sed -n '2,6p' "$0"; exit 2 ;;
esac
