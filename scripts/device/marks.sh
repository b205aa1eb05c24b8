#!/usr/bin/env bash
# Every figure of marks that only a GPU can give, in at most six minutes.
#   scripts/device/marks.sh build BIN            where nvcc is; ARCH (sm_90)
#   scripts/device/marks.sh run BIN OUT          on the GPU; PYTHON (python), NSYS (nsys), LIMIT (360 s)
# Both ways to write marks, as measured and with -DNSYSALIGN_UNIFORM, side by side: cost, perturbation, exactness.
set -u
cd "$(dirname "$0")/../.." || exit 2
build() {
  local bin=$1 arch=${ARCH:-sm_90} pid status=0 pids=()
  mkdir -p "$bin"
  compile() { nvcc "-arch=$arch" -O3 -DNSYSALIGN_REPLACE_PROF_TRIGGER -I nsysalign/marks/include "${@:3}" "scripts/marks/$1.cu" -o "$bin/$2"; }
  compile checks checks-usual -DNSYSALIGN_MARKS & pids+=($!)
  compile checks checks-uniform -DNSYSALIGN_MARKS -DNSYSALIGN_UNIFORM & pids+=($!)
  compile checks checks-off & pids+=($!)
  compile triggers triggers -DNSYSALIGN_MARKS -DNSYSALIGN_UNIFORM & pids+=($!)
  compile launches launches-usual -DNSYSALIGN_MARKS & pids+=($!)
  compile launches launches-uniform -DNSYSALIGN_MARKS -DNSYSALIGN_UNIFORM & pids+=($!)
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  return $status
}
checked() { # BIN OUT VARIANT PARTS...: run parts of checks.cu and judge what they wrote
  set -o pipefail
  mkdir -p "$2/$3"
  "$1/checks-$3" "$2/$3" "${@:4}" | tee "$2/$3/said.jsonl" | "$PYTHON" scripts/marks/judge.py "$2/$3"
  rm -f "$2/$3"/many-*.nsam
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
run() {
  local bin=$1 variant
  OUT=$2 PYTHON=${PYTHON:-python} NSYS=${NSYS:-nsys}
  export OUT PYTHON NSYS PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
  export -f checked launched
  # shellcheck source=scripts/device/steps.sh
  . scripts/device/steps.sh
  step machine 10 nvidia-smi -q -d CLOCK,MEMORY,UTILIZATION
  for variant in uniform usual; do
    mkdir -p "$OUT/$variant"
    step "exact-$variant" 60 bash -c 'checked "$@"' _ "$bin" "$OUT" "$variant" paths chase spins many version long graph
    step "cost-$variant" 20 "$bin/checks-$variant" "$OUT/$variant" cost
    step "work-$variant" 20 "$bin/checks-$variant" "$OUT/$variant" work
    step "launches-$variant" 40 bash -c 'launched "$@"' _ "$bin" "$OUT" "$variant"
  done
  step work-off 20 "$bin/checks-off" "$OUT" work
  step triggers 20 "$bin/triggers" "$OUT"
  command -v compute-sanitizer >/dev/null && step sanitizer 40 compute-sanitizer "$bin/checks-uniform" "$OUT/uniform" paths version
  step proton 50 "$PYTHON" scripts/marks/against.py proton "$OUT"
  step ncu 40 "$PYTHON" scripts/marks/against.py ncu "$OUT"
  step example 60 "$PYTHON" -m nsysalign run --marks -o "$OUT/example" scripts/marks/example.py
  step tests 60 "$PYTHON" -m pytest -q -m gpu tests/marks
}
case ${1:-} in
  build) build "${2:?BIN}" ;;
  run) run "${2:?BIN}" "${3:?OUT}" ;;
  *) sed -n '2,5p' "$0"; exit 2 ;;
esac
