#!/usr/bin/env bash
# demo.sh: runs code in sandboxes through the command line, and prints what comes
# back and how long it took. Needs bin/bouvet and the default image.
set -euo pipefail
cd "$(dirname "$0")/.."

bouvet=bin/bouvet
failures=0
shown=0

now_us() { echo "${EPOCHREALTIME/[.,]/}"; }

# As one would type it: in single quotes where that is needed and possible.
typed() {
  local word
  for word in "$@"; do
    if [[ $word =~ ^[A-Za-z0-9_./:=-]+$ ]]; then printf ' %s' "$word"; else printf " '%s'" "$word"; fi
  done
}

# show TITLE WANT INPUT COMMAND...: runs it; its output must contain WANT.
show() {
  local title=$1 want=$2 input=$3 start end output status=0
  shift 3
  shown=$((shown + 1))
  printf '\n%d. %s\n   $' "$shown" "$title"
  if [ -n "$input" ]; then printf " printf '%s' |" "$input"; fi
  printf '%s\n' "$(typed "$@")"
  start=$(now_us)
  output=$(printf '%b' "$input" | "$@" 2>&1) || status=$?
  end=$(now_us)
  printf '%s\n' "$output" | sed 's/^/   | /'
  if [ "$status" -ne 0 ] || [[ $output != *"$want"* ]]; then
    printf '   FAILED: exit %d, or no "%s" in the output\n' "$status" "$want"
    failures=$((failures + 1))
  fi
  awk -v us=$((end - start)) 'BEGIN { printf "   %.2f s, from no sandbox to none\n", us / 1e6 }'
}

# shellcheck disable=SC2016 # the sandbox expands these, not this script
examples() {
  show 'Python' '2432902008176640000' '' "$bouvet" run --lang python \
    --code 'import math, platform; print(math.factorial(20), "computed by Python", platform.python_version())'
  show 'Node.js' '[1,4,9,16]' '' "$bouvet" run --lang node \
    --code 'console.log(JSON.stringify([1, 2, 3, 4].map(n => n * n)), "computed by Node", process.version)'
  show 'bash' 'hello from bash' '' "$bouvet" run --lang bash \
    --code 'echo "hello from bash $BASH_VERSION, $(uname -sr), $(id -un)"'
  show 'A command, with input from a pipe' '3' 'a\nb\nc\n' "$bouvet" run -- wc -l
  show 'Nothing of the host: no network, and no process but its own' 'no network' '' "$bouvet" run --lang bash \
    --code '(: </dev/tcp/1.1.1.1/53) 2>/dev/null || echo "no network"; echo "$(ls /proc | grep -c "^[0-9]") processes"'
}

echo 'Each command below starts a sandbox of its own, runs in it, and removes it.'
examples

echo
if [ "$failures" -ne 0 ]; then
  echo "demo: $failures of $shown failed; try: $bouvet doctor" >&2
  exit 1
fi
echo "demo: all $shown ran. Your turn: $bouvet run --lang python --code 'print(1 + 1)'"
