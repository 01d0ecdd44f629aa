#!/usr/bin/env bash
# need.sh TOOL...: installs the named tools that this machine lacks, with apt-get,
# and says what and why. Does nothing, quickly, where all of them are here.
set -euo pipefail

present() {
  case $1 in
    cc) printf '#include <stdlib.h>\nint main(void){return 0;}\n' | gcc -x c -fsyntax-only - 2>/dev/null ;;
    debian-keys) [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] ;;
    libelf) [ -e /usr/include/gelf.h ] ;;
    ca-certificates) [ -e /etc/ssl/certs/ca-certificates.crt ] ;;
    *) command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] ;;
  esac
}

# Prints "packages|reason".
recipe() {
  case $1 in
    cc) echo 'gcc libc6-dev|the race detector needs a C compiler' ;;
    git) echo 'git|the version comes from git describe' ;;
    fsck.erofs) echo 'erofs-utils|tests check our images with fsck.erofs' ;;
    mmdebstrap) echo 'mmdebstrap|makes the default image' ;;
    npm) echo 'npm|fetches Node.js for the default image' ;;
    newuidmap) echo 'uidmap|makes the default image without root' ;;
    debian-keys) echo 'debian-archive-keyring|verifies the Debian packages of the default image' ;;
    ca-certificates) echo 'ca-certificates|verifies the servers that packages come from' ;;
    qemu-system-x86_64) echo 'qemu-system-x86|runs the microVMs of --driver qemu' ;;
    mkfs.ext4) echo 'e2fsprogs|makes the disks of machines' ;;
    lz4) echo 'lz4|tests compare our kernel unpacker with it' ;;
    make) echo 'make|builds the small guest kernel' ;;
    strip) echo 'binutils|builds the small guest kernel' ;;
    flex) echo 'flex|builds the small guest kernel' ;;
    bison) echo 'bison|builds the small guest kernel' ;;
    bc) echo 'bc|builds the small guest kernel' ;;
    perl) echo 'perl|builds the small guest kernel' ;;
    xz) echo 'xz-utils|unpacks the source of the small guest kernel' ;;
    libelf) echo 'libelf-dev|builds the small guest kernel' ;;
    shellcheck) echo 'shellcheck|checks the scripts' ;;
    *) echo "need.sh: no recipe for $1" >&2; exit 2 ;;
  esac
}

packages=()
for tool in "$@"; do
  line=$(recipe "$tool")
  if present "$tool"; then continue; fi
  read -r -a of_tool <<<"${line%%|*}"
  packages+=("${of_tool[@]}")
  printf 'missing: %-24s (%s)\n' "${line%%|*}" "${line#*|}"
done
[ ${#packages[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null 2>&1; then
    echo "cannot install: neither root nor sudo; as root run: apt-get install ${packages[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
if ! command -v apt-get >/dev/null 2>&1; then
  echo "cannot install: there is no apt-get here; install what provides: ${packages[*]}" >&2
  exit 1
fi

install_packages() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 "${packages[@]}" </dev/null
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "running: ${as_root[*]:+sudo }apt-get install ${packages[*]}"
# The lists of a fresh container are missing, those of an old one are stale.
if ! install_packages >"$log" 2>&1; then
  if ! { "${as_root[@]}" apt-get update -q </dev/null && install_packages; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "cannot install ${packages[*]}: see above" >&2
    exit 1
  fi
fi
