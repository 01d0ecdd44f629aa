#!/usr/bin/env bash
# lint.sh: everything that can be said about the code without running it. Goes
# on after a finding; exits 1 if there was any. Tools are pinned in tools/go.mod.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

go=${GO:-go}
failed=()

check() { # check NAME COMMAND...
  local name=$1
  shift
  printf '== %s\n' "$name"
  "$@" || failed+=("$name")
}

tool() { "$go" tool -modfile=tools/go.mod "$@"; }

formatted() {
  local bad
  bad=$(gofmt -l .) || return 1
  [ -z "$bad" ] || { printf 'not formatted (run: make fmt): %s\n' "$bad"; return 1; }
}

tidy() { "$go" mod tidy -diff && "$go" -C tools mod tidy -diff; }

scripts_checked() {
  command -v shellcheck >/dev/null 2>&1 || { echo 'skipped: no shellcheck (apt-get install shellcheck)'; return 0; }
  shellcheck .ci/run scripts/*.sh
}

# Packages that have files for other platforms must build there. (The rest is for Linux.)
others() {
  local platform packages
  mapfile -t packages < <(git grep -l '^//go:build !linux' -- '*_other.go' | xargs -rn1 dirname | sort -u)
  [ ${#packages[@]} -gt 0 ] || { echo 'there is none: what is this checkout?'; return 1; }
  for platform in linux/arm64 darwin/arm64; do
    GOOS=${platform%/*} GOARCH=${platform#*/} CGO_ENABLED=0 "$go" build "${packages[@]/#/./}" ||
      { echo "does not build for $platform"; return 1; }
  done
}

vulnerabilities() {
  local output status=0
  output=$(tool govulncheck ./... 2>&1) || status=$?
  if [ "$status" -ne 0 ] && grep -qE 'fetching vulnerabilities|dial tcp|no such host|i/o timeout' <<<"$output"; then
    echo 'skipped: the vulnerability database (vuln.go.dev) cannot be reached'
    return 0
  fi
  [ "$status" -eq 0 ] || printf '%s\n' "$output"
  return "$status"
}

check 'go vet' "$go" vet ./...
check 'gofmt' formatted
check 'other platforms' others
check 'go mod tidy' tidy
check 'rules of the house' "$go" test -count=1 ./internal/house
check 'golangci-lint' tool golangci-lint run --allow-parallel-runners ./...
check 'shellcheck' scripts_checked
check 'govulncheck' vulnerabilities

if [ ${#failed[@]} -gt 0 ]; then
  echo "lint: findings in: ${failed[*]}" >&2
  exit 1
fi
echo 'lint: no findings'
