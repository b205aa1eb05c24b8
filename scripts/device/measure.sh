#!/usr/bin/env bash
# Every figure of `nsysalign measure` that only a GPU can give, in two parts of at most six minutes.
#   scripts/device/measure.sh OUT [STEPS]          PYTHON (python), NSYS (found as ever), LIMIT (360 s)
# STEPS is a regular expression for the names of steps: the parts are '^(machine|tools|article|same|neighbour|memory|transfer|tests)'
# and '^(machine|quick|three|curve|mistakes|proof)'.  OUT/figures.txt says which aims are met, from all that is in OUT.
# cuda-bench (`pip install cuda-bench`), torchvision and CuPy are wanted; what lacks them is left out and said.
set -u
cd "$(dirname "$0")/../.." || exit 2
OUT=${1:?OUT} STEPS=${2:-.} PYTHON=${PYTHON:-python} CALLS=scripts/device/calls.py
export OUT PYTHON CALLS PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
# shellcheck source=scripts/device/steps.sh
. scripts/device/steps.sh
measure() { # NAME SECONDS ARGUMENTS...
  step "$1" "$2" "$PYTHON" -m nsysalign measure ${NSYS:+--nsys "$NSYS"} -o "$OUT/$1" "${@:3}"
}
memory_used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader; }
beside_a_neighbour() { # a process holds half of the memory meanwhile, and says afterwards whether it is as it was
  memory_used
  mkfifo "$OUT/end"
  "$PYTHON" scripts/device/neighbour.py <"$OUT/end" >"$OUT/neighbour.log" &
  exec 9>"$OUT/end"
  for _ in $(seq 100); do grep -q holds "$OUT/neighbour.log" 2>/dev/null && break; sleep 0.2; done
  "$PYTHON" -m nsysalign measure "$CALLS:hungry" --batch auto --budget 25s --no-profile --processes 1 -o "$OUT/beside"
  exec 9>&-
  wait
  rm "$OUT/end"
  cat "$OUT/neighbour.log"
  memory_used
}
export -f beside_a_neighbour memory_used
step machine 10 nvidia-smi -q -d CLOCK,MEMORY,UTILIZATION
step tools 110 "$PYTHON" scripts/bench_measure.py "$OUT/compare.json" --nvbench --seconds 55
step article 70 "$PYTHON" scripts/bench_measure.py "$OUT/article.json" --in-turns --seconds 50
measure same 110 "$CALLS:mlp" "$CALLS:same" --batch 1,8,64,512,4096 --budget 85s --no-profile --mode latency,event,device,steady
step neighbour 50 bash -c beside_a_neighbour
measure memory 40 "$CALLS:hungry" --batch auto --budget 30s --no-profile --processes 1
measure transfer 30 "$CALLS:handed_over" --batch 16 --include-transfer --mode latency,event --quick
step tests 60 "$PYTHON" -m pytest -q -m gpu tests/measure
measure quick 30 "$CALLS:efficientnet" --quick --batch 1
measure three 60 "$CALLS:efficientnet" --batch 1 --budget 45s
measure curve 280 "$CALLS:efficientnet" --batch auto
step mistakes 50 "$PYTHON" scripts/bench_measure_mistakes.py "$OUT/mistakes.json"
measure proof 50 "$CALLS:convolutions" --batch 2,16,64 --budget 40s --processes 1 --mode event,device
"$PYTHON" scripts/device/figures.py "$OUT" | tee "$OUT/figures.txt"
find "$OUT" -name '*.nsys-rep' -delete
