#!/usr/bin/env bash
# fuzz.sh: runs each fuzz target for FUZZTIME (default 20s). A failing input is
# kept by go test under the package's testdata/fuzz, to be committed with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
fuzztime=${FUZZTIME:-20s}
targets=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

run_fuzz() { # run_fuzz NAME PACKAGE
  "$go" test -run '^$' -fuzz "^$1\$" -fuzztime "$fuzztime" -fuzzminimizetime 10x -timeout 30m "$2" </dev/null 2>&1 | tee "$log"
}

# Go's own coordinator may report the end of the time as a failure of the target
# (go.dev/issue/75804, mended in Go 1.27): that message alone, without an input, a
# panic or an error of the test, gets one more try. Anything else fails.
fuzz_one() { # fuzz_one NAME PACKAGE
  if run_fuzz "$@"; then return; fi
  if [ "$(grep -c '^    ' "$log")" -eq 1 ] && grep -qx '    context deadline exceeded' "$log" && ! grep -qiE 'failing input|panic|race' "$log"; then
    echo "== once more: $1 ended by go.dev/issue/75804"
    run_fuzz "$@"
    return
  fi
  return 1
}

while IFS=: read -r file line; do
  name=${line#func }
  name=${name%%(*}
  targets=$((targets + 1))
  printf '== %s %s\n' "$(dirname "$file")" "$name"
  fuzz_one "$name" "$(dirname "$file")"
done < <(grep -rE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*\(' ./*/ ./*_test.go 2>/dev/null | sort)
if [ "$targets" -eq 0 ]; then
  echo 'fuzz: found no targets' >&2
  exit 1
fi
echo "fuzz: $targets targets ran for $fuzztime each without a failure"
