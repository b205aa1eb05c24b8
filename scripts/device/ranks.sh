#!/usr/bin/env bash
# Two ranks on two GPUs, with and without nsys: <= 150 s.  From anywhere; OUT (the folder for the results), NSYS and PYTHON are set.
# together-1, together-2: all ranks in one trace, with a baseline; apart/: one trace per rank; slow: the puzzle, with a baseline.
set -u
cd "$(dirname "$0")/../.." || exit 1
LIMIT=${LIMIT:-150}
. scripts/device/steps.sh
OUT=$(cd "$OUT" && pwd)
python=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4
# NVLink multicast can take the host's GPUs out of service
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >"$OUT/machine.txt" 2>&1
ranks() { # PORT ARGUMENTS...
  local port=$1
  shift
  echo "$python" -m torch.distributed.run --nproc-per-node 2 --master-port "$port" "$@"
}
run() { # NAME SECONDS PORT SCRIPT
  # shellcheck disable=SC2046  # words without spaces
  step "$1" "$2" "$python" -m nsysalign run --baseline -q -o "$OUT/$1" -- $(ranks "$3" "$4")
}
run together-1 70 29511 scripts/bench_ddp.py
mkdir -p "$OUT/apart"
# shellcheck disable=SC2046
step apart 45 env --chdir="$OUT/apart" $(ranks 29512 --no-python "$python" -m nsysalign run -q "$PWD/scripts/bench_ddp.py")
run together-2 70 29513 scripts/bench_ddp.py
run slow 45 29514 scripts/puzzles/ddp_slow_rank.py
# exports and logs are what is kept
find "$OUT" \( -name '*.nsys-rep' -o -name report.html -o -name 'analysis.*' \) -delete
cat "$OUT/steps.txt"
exit 0
