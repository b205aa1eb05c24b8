# Steps of a job on a lent GPU, each with a limit of its own, within a limit for all: what is known is in $OUT as it comes.
#   step NAME SECONDS COMMAND...     its output: $OUT/NAME.txt; its line in $OUT/steps.txt: status, seconds
# Only steps whose names match the regular expression $STEPS, where that is set.
# shellcheck shell=bash
LIMIT=${LIMIT:-360}
SECONDS=0
mkdir -p "$OUT"
step() {
  local name=$1 most=$2 left=$((LIMIT - SECONDS)) began=$SECONDS status
  shift 2
  [[ $name =~ ${STEPS:-.} ]] || return 0
  if [ "$left" -lt 5 ]; then
    echo "$name: left out, $LIMIT s are over" | tee -a "$OUT/steps.txt"
    return 0
  fi
  [ "$most" -gt "$left" ] && most=$left
  timeout --kill-after=5 "$most" "$@" >"$OUT/$name.txt" 2>&1 </dev/null
  status=$?
  echo "$name: status $status, $((SECONDS - began)) s" | tee -a "$OUT/steps.txt"
  return 0
}
