#!/usr/bin/env bash
# Every figure of `nsysalign measure` that only a GPU can give, in at most six minutes.
#   scripts/device/measure.sh OUT          PYTHON (python), NSYS (found as ever), LIMIT (360 s)
set -u
cd "$(dirname "$0")/../.." || exit 2
OUT=${1:?OUT} PYTHON=${PYTHON:-python} CALLS=scripts/device/calls.py
export OUT PYTHON CALLS PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
# shellcheck source=scripts/device/steps.sh
. scripts/device/steps.sh
measure() { # NAME SECONDS ARGUMENTS...
  step "$1" "$2" "$PYTHON" -m nsysalign measure ${NSYS:+--nsys "$NSYS"} -o "$OUT/$1" "${@:3}"
}
beside_a_neighbour() {
  mkfifo "$OUT/end"
  "$PYTHON" scripts/device/neighbour.py <"$OUT/end" >"$OUT/neighbour.txt" &
  exec 9>"$OUT/end"
  for _ in $(seq 100); do grep -q holds "$OUT/neighbour.txt" 2>/dev/null && break; sleep 0.2; done
  "$PYTHON" -m nsysalign measure "$CALLS:hungry" --batch auto --budget 25s --no-profile --processes 1 -o "$OUT/beside"
  exec 9>&-
  wait
  rm "$OUT/end"
  cat "$OUT/neighbour.txt"
  nvidia-smi --query-gpu=memory.used --format=csv
}
export -f beside_a_neighbour
step machine 10 nvidia-smi -q -d CLOCK,MEMORY,UTILIZATION
step article 70 "$PYTHON" scripts/bench_measure.py "$OUT/article.json" --in-turns --seconds 60
measure quick 20 "$CALLS:mlp" --quick --batch 1
measure three 60 "$CALLS:convolutions" --batch 1 --budget 45s
measure same 120 "$CALLS:mlp" "$CALLS:same" --batch 1,8,64,512,4096 --budget 100s --no-profile --mode latency,event,device,steady
measure proof 80 "$CALLS:convolutions" --batch 2,16,64 --budget 70s --processes 1 --mode event,device
step neighbour 50 bash -c beside_a_neighbour
measure memory 40 "$CALLS:hungry" --batch auto --budget 30s --no-profile --processes 1
measure transfer 30 "$CALLS:handed_over" --batch 16 --include-transfer --mode latency,event --quick
measure locked 30 "$CALLS:mlp" --batch 64 --lock-clocks "${MHZ:-1500}" --mode event,device --quick
step tests 60 "$PYTHON" -m pytest -q -m gpu tests/measure
