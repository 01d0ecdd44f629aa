#!/usr/bin/env bash
# build.sh: bin/bouvet-agent, then bin/bouvet, which embeds it. Both are static.
set -euo pipefail
cd "$(dirname "$0")/.."

max_agent_bytes=6000000
go=${GO:-go}
module=$("$go" list -m)
version=$(git describe --tags --always --dirty 2>/dev/null || echo devel)
# gVisor refuses to restore a checkpoint of another version, so this names what a
# checkpoint depends on and nothing more: our own commits do not invalidate it.
gvisor=$("$go" list -m -f '{{.Version}}' gvisor.dev/gvisor)

build() { # build OUTPUT PACKAGE LDFLAGS
  # Written beside and renamed: the old one may be running.
  CGO_ENABLED=0 "$go" build -trimpath -buildvcs=false -ldflags "-s -w $3" -o "$1.new" "$2"
  mv -f "$1.new" "$1"
}

[ -x bin/bouvet ] || echo 'building: the first time takes minutes, most of them for gVisor'
mkdir -p bin internal/guest/bin

if "$go" list -deps ./cmd/bouvet-agent | grep -qx 'net/http'; then
  echo 'bouvet-agent links net/http: it must stay small; go list -deps ./cmd/bouvet-agent shows the way in' >&2
  exit 1
fi
build bin/bouvet-agent ./cmd/bouvet-agent "-X main.version=$version"
bytes=$(stat -c %s bin/bouvet-agent)
if [ "$bytes" -gt "$max_agent_bytes" ]; then
  echo "bouvet-agent has $bytes bytes, more than $max_agent_bytes" >&2
  exit 1
fi
cp bin/bouvet-agent internal/guest/bin/bouvet-agent.new
mv -f internal/guest/bin/bouvet-agent.new internal/guest/bin/bouvet-agent

build bin/bouvet ./cmd/bouvet \
  "-X gvisor.dev/gvisor/runsc/version.version=bouvet-$gvisor -X $module/internal/cli.version=$version"
printf 'built bin/bouvet (%s bytes) and bin/bouvet-agent (%s bytes), version %s\n' \
  "$(stat -c %s bin/bouvet)" "$bytes" "$version"
