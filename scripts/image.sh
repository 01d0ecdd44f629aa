#!/usr/bin/env bash
# image.sh: the default image, in the state directory. Cached: the second run is
# quick. Needs bin/bouvet.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=(mmdebstrap npm debian-keys ca-certificates)
if [ "$(id -u)" -ne 0 ]; then tools+=(newuidmap); fi
scripts/need.sh "${tools[@]}"
exec bin/bouvet image build-default "$@"
