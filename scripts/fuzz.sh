#!/usr/bin/env bash
# fuzz.sh: runs each fuzz target for FUZZTIME (default 20s). A failing input is
# kept by go test under the package's testdata/fuzz, to be committed with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
fuzztime=${FUZZTIME:-20s}
targets=0
while IFS=: read -r file line; do
  name=${line#func }
  name=${name%%(*}
  targets=$((targets + 1))
  printf '== %s %s\n' "$(dirname "$file")" "$name"
  "$go" test -run '^$' -fuzz "^$name\$" -fuzztime "$fuzztime" -fuzzminimizetime 10x -timeout 30m "$(dirname "$file")" </dev/null
done < <(grep -rE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*\(' ./*/ ./*_test.go 2>/dev/null | sort)
if [ "$targets" -eq 0 ]; then
  echo 'fuzz: found no targets' >&2
  exit 1
fi
echo "fuzz: $targets targets ran for $fuzztime each without a failure"
