#!/usr/bin/env bash
# nested.sh [FIRECRACKER [JAILER]]: runs drivers' tests where KVM works, on any
# machine. A small Debian machine starts under QEMU, which emulates a processor with
# AMD's virtualization: slow, but a real /dev/kvm. With a Firecracker, the tests of
# that driver run in it against the real program; without, QEMU's own with accel=kvm,
# and what only a unified cgroup tree can show. The machine's disk is made once, and
# kept in $BOUVET_CACHE_DIR or ~/.cache/bouvet. The exit status is the tests'.
#
# SUITES chooses others: lines of "PACKAGE SECONDS ARGUMENT..." (see the defaults
# below) or "export NAME=VALUE". A suite that fails gets one more try, and that is
# said: the emulated processor stops a guest within a guest now and then. NESTED_LIMIT bounds the machine's life in seconds, NESTED_LOG says where its
# console is kept.
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
cache=${BOUVET_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/bouvet}
state=${BOUVET_STATE_DIR:-/var/lib/bouvet}
limit=${NESTED_LIMIT:-1500}
log=${NESTED_LOG:-$cache/nested.log}
firecracker=${1:-}
jailer=${2:-}

log_max=67108864 # bytes
disk=4G
suite=bookworm
packages=linux-image-cloud-amd64,initramfs-tools,qemu-system-x86,e2fsprogs,kmod,iproute2,procps

die() { echo "nested: $1" >&2; exit 1; }
say() { printf 'nested: %s (%s s)\n' "$1" "$SECONDS"; }

[ "$(uname -m)" = x86_64 ] || die 'cannot start the machine: it needs an x86-64 host'
[ "$(id -u)" -eq 0 ] || die 'cannot make the disk of the machine: it needs root; run it with sudo'
if [ -n "$firecracker" ] && [ -z "$jailer" ]; then
  jailer=$(dirname "$firecracker")/jailer # as releases have it, and our driver needs one
fi
for program in "$firecracker" "$jailer"; do
  [ -z "$program" ] || [ -x "$program" ] || die "cannot use $program: it is no program"
done
scripts/need.sh qemu-system-x86_64 mmdebstrap mkfs.ext4 debian-keys
export PATH=$PATH:/usr/sbin:/sbin

work=$(mktemp -d)
machine=""
new=""
# shellcheck disable=SC2317,SC2329 # called by the trap
cleanup() {
  [ -z "$machine" ] || kill "$machine" 2>/dev/null || true
  wait
  # As a whole: another run may have the same name in mind.
  [ ! -e "$work/console" ] || mv -f "$work/console" "$log"
  rm -rf "$work" ${new:+"$new"}
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# base DIR: the disk, the kernel and its first file system.
base() {
  mmdebstrap --quiet --variant=minbase --include="$packages" \
    --customize-hook="mkdir -p \"\$1/payload\"" \
    --customize-hook="printf '#!/bin/bash\nmount /dev/vdb /payload && exec /payload/init\n' >\"\$1/nested-init\"; chmod 755 \"\$1/nested-init\"" \
    "$suite" "$1/root.tar" </dev/null
  mkdir "$1/root"
  tar -xf "$1/root.tar" -C "$1/root"
  mkfs.ext4 -q -F -O ^has_journal -d "$1/root" "$1/root.ext4" "$disk"
  cp -L "$1"/root/boot/vmlinuz-* "$1/vmlinuz"
  cp -L "$1"/root/boot/initrd.img-* "$1/initrd"
  rm -rf "$1/root" "$1/root.tar"
}

key=$({ declare -f base; echo "$disk $suite $packages"; } | sha256sum | cut -c1-16)
base=$cache/nested-$key
mkdir -p "$cache"
exec 9>"$cache/nested.lock"
flock 9 # two at once make one disk
if [ ! -d "$base" ]; then
  say "making the machine's disk in $base: some minutes, once"
  rm -rf "$cache"/nested-*/ "$cache"/.nested-*
  new=$(mktemp -d "$cache/.nested-XXXXXX")
  # mmdebstrap's helper has no privileges.
  chmod 755 "$new"
  base "$new"
  mv "$new" "$base"
  new=""
fi
exec 9>&-

# Without a Firecracker it is what shows that the machine is what it claims, in some
# minutes: KVM, the cgroups, vsock.
default_suites() {
  if [ -n "$firecracker" ]; then
    echo 'vm/firecracker 1300 -test.v -test.run=Real'
    return
  fi
  cat <<'S'
internal/kvm 120 -test.v
vm/qemu 120 -test.v -test.run=Trial|Acceleration|Verdict|Posture
vm/qemu 900 -test.v -test.run=TestConformance/(create|dial|exec|transfer|pause)/(boots|close_unblocks|results|streams_as_it_goes|files|pause_and_resume)$
vm/gvisor 600 -test.v -test.run=TestConformance/limits
vsock 60 -test.v -test.run=Listen
S
}
suites=${SUITES:-$(default_suites)}

say 'building the tests'
GO=$go scripts/build.sh
mkdir -p "$work/payload/src" "$work/payload/bin" "$work/payload/state"
while read -r package seconds arguments; do
  [ -n "$package" ] || continue
  if [ "$package" = export ]; then # NAME=VALUE, for what follows
    printf 'export %q\n' "$seconds"
    continue
  fi
  [ -d "$package" ] || die "there is no package $package here"
  dir=$work/payload/src/$package
  mkdir -p "$dir"
  CGO_ENABLED=0 "$go" test -c -trimpath -o "$dir/package.test" "./$package"
  [ ! -d "$package/testdata" ] || cp -a "$package/testdata" "$dir/"
  printf 'suite %q %q' "$package" "$seconds"
  for argument in $arguments; do printf ' %q' "$argument"; done
  echo
done <<<"$suites" >"$work/payload/suites"
install -m 755 test/nested/init "$work/payload/init"
install -m 755 bin/bouvet bin/bouvet-agent "$work/payload/bin/"
[ -z "$firecracker" ] || install -m 755 "$firecracker" "$work/payload/bin/firecracker"
[ -z "$jailer" ] || install -m 755 "$jailer" "$work/payload/bin/jailer"
for part in images kernels; do
  [ ! -d "$state/$part" ] || cp -a "$state/$part" "$work/payload/state/"
done
chmod 700 "$work/payload/state"
mkfs.ext4 -q -F -O ^has_journal -d "$work/payload" "$work/payload.ext4" "$disk"
rm -rf "$work/payload"

say "starting the machine; its console is kept in $log"
status=0
# thread=multi is not for speed: with the processors in turns in one thread, most guests
# in there stop for good while they boot (an interrupt comes where they allow none; seen
# with QEMU 7.2). With a thread for each, one of 23 did.
# It ends with this script, whatever ends that; its disk is as before at the next start.
setpriv --pdeathsig TERM timeout -k 10 "$limit" \
  qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none \
  -machine q35 -accel tcg,thread=multi,tb-size=512 -cpu EPYC,+svm,+npt -smp 2 -m 4096 \
  -kernel "$base/vmlinuz" -initrd "$base/initrd" \
  -append 'console=ttyS0 root=/dev/vda rw quiet panic=-1 mitigations=off init=/nested-init' \
  -drive "if=none,id=root,format=raw,snapshot=on,file=$base/root.ext4" -device virtio-blk-pci,drive=root \
  -drive "if=none,id=payload,format=raw,cache=unsafe,file=$work/payload.ext4" -device virtio-blk-pci,drive=payload \
  -device virtio-rng-pci -serial stdio </dev/null \
  > >(grep -v --line-buffered "TCG doesn't support requested feature" | stdbuf -o0 head -c "$log_max" | tee "$work/console") 2>&1 &
machine=$!
wait "$machine" || status=$?
machine=""
wait
case $status in
  0) ;;
  124 | 137) die "the machine took more than $limit s, see $log" ;;
  *) die "QEMU failed, see $log" ;;
esac
# The console's lines end as a terminal's do.
result=$(tail -c 4096 "$work/console" | tr -d '\r' | sed -n 's/^nested: exit \([0-9]*\)$/\1/p' | tail -n 1)
[ -n "$result" ] || die "the machine ended before its tests did, see $log"
# What this is for must not be skipped.
if [ "$result" -eq 0 ] && [ -n "$firecracker" ] && grep -q -e '--- SKIP: TestReal' "$work/console"; then
  die "the tests of the real Firecracker were skipped, see $log"
fi
say "the tests ended with exit status $result; the log is $log"
exit "$result"
