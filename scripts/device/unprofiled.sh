#!/bin/bash
# All that a GPU has to say about times without nsys, once; results appear as they come.
#
#     NSYS=/path/to/nsys PYTHON=/path/to/python scripts/device/unprofiled.sh OUT [STEPS]
#
# STEPS is a regular expression for the names of the steps.  In two parts, of ten minutes at most each:
# '^(calibrate|doctor|bench|score)' and '^options'.
# PYTHON has torch and nsysalign's dependencies.  Every step has a limit and may fail alone; OUT/steps.txt says how each ended.
# Without a GPU it ends well as well, with little to show: that is how it is tried.
set -u
out=$(mkdir -p "${1:?the folder for the results}" && cd "$1" && pwd)
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-python3} steps=${2:-.}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} XDG_CACHE_HOME=$out/cache
began=$SECONDS

step() { # NAME SECONDS COMMAND...
    local name=$1 limit=$2 from=$SECONDS
    shift 2
    [[ $name =~ $steps ]] || return 0
    timeout -k 10 "$limit" "$@" >"$out/$name.txt" 2>&1
    echo "$name: exit $?, $((SECONDS - from)) s, at $((SECONDS - began)) s" | tee -a "$out/steps.txt"
}

lscpu 2>/dev/null | grep -i 'model name' >"$out/machine.txt"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >>"$out/machine.txt" 2>&1

# what nsys adds per call
step calibrate 90 "$python" -m nsysalign doctor --calibrate
step doctor 30 "$python" -m nsysalign doctor
# the same programs with and without nsys, in turn: every run with nsys is compared with every one without
runs=()
for round in 1 2 3; do
    step "bench-$round" 110 "$python" -m nsysalign run --baseline -q -o "$out/bench-$round" scripts/bench_more.py
    [ -f "$out/bench-$round/trace.sqlite" ] && runs+=("$out/bench-$round")
done
# how far predictions are off, on hosts as fast in both runs and on others
step score 60 "$python" scripts/score_predictions.py --json "$out/score.json" "${runs[@]}"
[ -f "$out/score.txt" ] && cat "$out/score.txt"
# what options of nsys cost and take away
step options 240 "$python" scripts/bench_options.py --rounds 2 --seconds 200 --json "$out/options.json"
[ -f "$out/options.txt" ] && cat "$out/options.txt"
# reports of nsys are large and not needed: exports and logs are
find "$out" -name '*.nsys-rep' -delete
exit 0
