#!/usr/bin/env bash
# need-vhost-device-vsock.sh [--if-possible]: builds rust-vmm's vhost-device-vsock
# with cargo, for the test that drives the agent over AF_VSOCK in a real guest
# (test/vsock). It takes some minutes once; the program is then kept in
# $BOUVET_CACHE_DIR or ~/.cache/bouvet. Does nothing, quickly, where it is there.
# With --if-possible it is no failure that it cannot be built: the test then skips.
set -euo pipefail

version=0.3.0
root=${BOUVET_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/bouvet}/vhost-device-vsock-$version
program=$root/bin/vhost-device-vsock

give_up() {
  echo "cannot build vhost-device-vsock: $1" >&2
  if [ "${2:-}" = --if-possible ]; then exit 0; fi
  exit 1
}

if [ -x "$program" ]; then exit 0; fi
command -v cargo >/dev/null 2>&1 || give_up 'there is no cargo; install Rust from https://rustup.rs' "${1:-}"
echo "building vhost-device-vsock $version from crates.io into $root: some minutes, once"
mkdir -p "$root"
target=$(mktemp -d "$root/target.XXXXXX")
trap 'rm -rf "$target"' EXIT
# cargo puts the program in its place as a whole, so two of us do not disturb each other.
CARGO_TARGET_DIR=$target nice timeout -k 10 "${BUILD_TIMEOUT:-20m}" \
  cargo install --locked --no-track --force --root "$root" "vhost-device-vsock@$version" </dev/null ||
  give_up 'see above' "${1:-}"
