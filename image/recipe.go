package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// DefaultName is the name under which the store keeps the default image.
const DefaultName = "default"

// A recipe is all that decides what the default image holds. Its digest is kept
// with the image, so that a new recipe makes a new image and an old one does not.
type recipe struct {
	// Version is to be raised when the code that follows the recipe changes what
	// it makes.
	Version  int
	Suite    string
	Packages []string
	// Mirror is where packages come from; empty means Debian's own and its
	// security archive.
	Mirror string
	// NodeVersion and NodeIntegrity pin the npm package that Node.js comes from.
	NodeVersion, NodeIntegrity string
	// Epoch bounds modification times, in seconds: later ones become this one.
	// It also becomes the date in files that record when they were made.
	Epoch  int64
	Script string
	Config Config
}

// defaultRecipe returns what the default image is made of: Debian bookworm with
// Python 3.11 and bash 5.2, and Node.js 20.
func defaultRecipe() recipe {
	return recipe{
		Version: 1,
		Suite:   "bookworm",
		Packages: []string{
			"bash", "ca-certificates", "coreutils", "curl", "git", "libnss-myhostname",
			"procps", "python3", "python3-venv", "sudo",
		},
		NodeVersion:   "20.20.2",
		NodeIntegrity: "sha512-PeHQM8wAdmHtZA1mBocygZxs5LiUWtsJezQTkBd0iY987KpGrD1O2tVEydvMZiuXceRanxt7rjTnDEBwOPujoQ==",
		Epoch:         1767225600, // 2026-01-01
		Script:        setupScript,
		Config: Config{
			Env: []string{
				"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
				"LANG=C.UTF-8",
			},
			Cmd:     []string{"/bin/bash"},
			WorkDir: "/home/user",
			User:    "user",
		},
	}
}

func (r recipe) digest() (string, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("cannot compute the digest of the recipe: %w", err)
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

func (r recipe) source() string {
	return fmt.Sprintf("Debian %s (%s), Node.js %s", r.Suite, strings.Join(r.Packages, " "), r.NodeVersion)
}

// setupScript runs on the host when all packages are installed; $1 is the root
// of the new system. libnss-myhostname makes the sandbox's own host name
// resolve, whatever it is: sudo complains otherwise.
const setupScript = `set -eu
root=$1
chroot "$root" useradd --create-home --home-dir /home/user --shell /bin/bash --uid 1000 --user-group user
printf 'user ALL=(ALL:ALL) NOPASSWD:ALL\n' >"$root/etc/sudoers.d/user"
chmod 0440 "$root/etc/sudoers.d/user"
printf 'LANG=C.UTF-8\n' >"$root/etc/default/locale"
rm -f "$root/etc/resolv.conf" "$root/etc/hostname" "$root/etc/hosts" "$root/etc/machine-id" "$root/var/lib/dbus/machine-id"
printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' >"$root/etc/hosts"
printf 'sandbox\n' >"$root/etc/hostname"
printf 'nameserver 127.0.0.1\n' >"$root/etc/resolv.conf"
: >"$root/etc/machine-id"
chroot "$root" python3 -m compileall -q -f --invalidation-mode unchecked-hash /usr/lib/python3 /usr/lib/python3.11 >/dev/null || true
rm -f "$root/var/cache/ldconfig/aux-cache" "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old
find "$root/var/log" -type f -delete
`
