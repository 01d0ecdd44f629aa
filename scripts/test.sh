#!/usr/bin/env bash
# test.sh: go vet, then every test under the race detector, then the packages
# that boot gVisor once more without it. Needs bin/bouvet and the default image.
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
timeout=${TEST_TIMEOUT:-20m}
start=$SECONDS
failed=()

"$go" vet ./...

mapfile -t all < <("$go" list ./...)
# Test binaries that contain the gVisor driver: there, the test binary itself is the sandbox.
# shellcheck disable=SC2016 # a Go template
mapfile -t sentry < <("$go" list -test -f '{{$p := .}}{{range .Deps}}{{if eq . "gvisor.dev/gvisor/runsc/cli"}}{{$p.ImportPath}}{{end}}{{end}}' ./... |
  sed -n 's/\.test$//p' | sort -u)

if CGO_ENABLED=1 "$go" test -race -run '^$' ./wire >/dev/null 2>&1; then
  echo "== ${#all[@]} packages with the race detector"
  # A race binary cannot boot gVisor: it starts BOUVET_HELPER instead of itself.
  CGO_ENABLED=1 BOUVET_HELPER=$PWD/bin/bouvet "$go" test -race -timeout "$timeout" "${all[@]}" || failed+=('with the race detector')
  second=("${sentry[@]}")
else
  echo '== no race detector here: it needs a C compiler and amd64 or arm64 (apt-get install gcc libc6-dev)'
  second=("${all[@]}")
fi
if [ ${#second[@]} -gt 0 ]; then
  echo "== ${#second[@]} packages without the race detector, gVisor inside the test binary"
  CGO_ENABLED=0 "$go" test -timeout "$timeout" "${second[@]}" || failed+=('without the race detector')
fi
if [ ${#failed[@]} -gt 0 ]; then
  echo "test: FAILED $(IFS=,; echo "${failed[*]}"), see above; $((SECONDS - start)) s" >&2
  exit 1
fi
echo "test: all ${#all[@]} packages passed, ${#second[@]} of them also without the race detector, in $((SECONDS - start)) s"
