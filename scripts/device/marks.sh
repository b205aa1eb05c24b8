#!/usr/bin/env bash
# Every figure of marks that only a GPU can give, in at most six minutes.
#   scripts/device/marks.sh build BIN                  where nvcc is; ARCH (sm_90)
#   scripts/device/marks.sh run BIN OUT [STEPS]        on the GPU; PYTHON (python), NSYS (nsys), LIMIT (360 s)
# STEPS is a regular expression for the names of steps.  OUT/figures.txt says which aims are met.
set -u
cd "$(dirname "$0")/../.." || exit 2
build() {
  local bin=$1 arch=${ARCH:-sm_90} pid status=0 pids=()
  mkdir -p "$bin"
  compile() { nvcc "-arch=$arch" -O3 -DNSYSALIGN_REPLACE_PROF_TRIGGER -I nsysalign/marks/include "${@:3}" "scripts/marks/$1.cu" -o "$bin/$2"; }
  compile checks checks -DNSYSALIGN_MARKS & pids+=($!)
  compile checks checks-off & pids+=($!)
  compile triggers triggers -DNSYSALIGN_MARKS & pids+=($!)
  compile launches launches -DNSYSALIGN_MARKS & pids+=($!)
  compile paths paths -DNSYSALIGN_MARKS & pids+=($!)
  compile paths paths-off & pids+=($!)
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  return $status
}
checked() { # BIN OUT PARTS...: run parts of checks.cu and triggers.cu and judge what they wrote
  set -o pipefail
  mkdir -p "$2/exact"
  { "$1/checks" "$2/exact" "${@:3}" && "$1/triggers" "$2/exact/triggers.nsam"; } | tee "$2/exact/said.jsonl" | "$PYTHON" scripts/marks/judge.py "$2/exact"
  local status=$?
  rm -f "$2/exact"/many-*.nsam
  return $status
}
joined() { # BIN OUT: over a million marks under nsys, against stamps taken beside them
  set -o pipefail
  local to=$2/joined
  mkdir -p "$to"
  "$NSYS" profile -t cuda -o "$to/t" --force-overwrite true "$1/checks" "$to" join >"$to/out" 2>&1
  "$NSYS" export --type sqlite --output "$to/t.sqlite" --force-overwrite true "$to/t.nsys-rep" >/dev/null 2>&1
  "$PYTHON" scripts/marks/judge_join.py "$to" "$to/t.sqlite"
  local status=$?
  rm -f "$to/join.nsam" "$to/t.nsys-rep"
  return $status
}
launched() { # BIN OUT: dependent launches, clusters, every GPU; plainly, then under nsys with its rows
  set -o pipefail
  local to=$2/launches
  mkdir -p "$to/plain" "$to/nsys"
  "$1/launches" "$to/plain" | "$PYTHON" scripts/marks/judge_launches.py "$to/plain"
  "$NSYS" profile -t cuda -o "$to/nsys/t" --force-overwrite true "$1/launches" "$to/nsys" >"$to/nsys/out" 2>&1
  "$NSYS" export --type sqlite --output "$to/nsys/t.sqlite" --force-overwrite true "$to/nsys/t.nsys-rep" >/dev/null 2>&1
  grep '^{' "$to/nsys/out" | "$PYTHON" scripts/marks/judge_launches.py "$to/nsys" "$to/nsys/t.sqlite"
}
sanitized() { # BIN OUT: buffers that are much too small, early exits, another version
  mkdir -p "$2/sanitizer"
  compute-sanitizer --tool memcheck "$1/checks" "$2/sanitizer" overflow paths version
  local status=$?
  rm -r "$2/sanitizer"
  return $status
}
run() {
  local bin=$1
  OUT=$2 STEPS=${3:-.} PYTHON=${PYTHON:-python} NSYS=${NSYS:-nsys}
  export OUT PYTHON NSYS PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
  export -f checked joined launched sanitized
  # shellcheck source=scripts/device/steps.sh
  . scripts/device/steps.sh
  step machine 10 nvidia-smi -q -d CLOCK,MEMORY,UTILIZATION
  step cost 20 "$bin/checks" "$OUT" cost
  step work 20 "$bin/checks" "$OUT" work
  step work-off 20 "$bin/checks-off" "$OUT" work
  step exact 60 bash -c 'checked "$@"' _ "$bin" "$OUT" paths together chase spins many overflow version long graph
  step sanitizer 30 bash -c 'sanitized "$@"' _ "$bin" "$OUT"
  step triton 40 "$PYTHON" scripts/marks/triton_check.py "$OUT"
  step joined 50 bash -c 'joined "$@"' _ "$bin" "$OUT"
  step ncu 30 "$PYTHON" scripts/marks/against.py ncu "$OUT" "$bin"
  step proton 40 "$PYTHON" scripts/marks/against.py proton "$OUT"
  step example 60 "$PYTHON" -m nsysalign run --marks -o "$OUT/example" scripts/marks/example.py
  step launches 30 bash -c 'launched "$@"' _ "$bin" "$OUT"
  step tests 90 "$PYTHON" -m pytest -q -m gpu tests/marks
  step speed 60 "$PYTHON" scripts/marks/speed.py
  "$PYTHON" scripts/marks/figures.py "$OUT" | tee "$OUT/figures.txt"
}
case ${1:-} in
  build) build "${2:?BIN}" ;;
  run) run "${2:?BIN}" "${3:?OUT}" "${4:-}" ;;
  *) sed -n '2,6p' "$0"; exit 2 ;;
esac
