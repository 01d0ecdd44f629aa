package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
)

// debianKeyring is what mmdebstrap checks Debian's signatures with. Debian has
// it; on Ubuntu it is a package to be installed.
const debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// missingTools returns the Debian packages that the build needs and the host
// lacks.
func missingTools(euid int) []string {
	var missing []string
	need := func(program, pkg string) {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	need("mmdebstrap", "mmdebstrap")
	need("npm", "npm")
	if euid != 0 {
		need("newuidmap", "uidmap")
	}
	if _, err := os.Stat(debianKeyring); errors.Is(err, fs.ErrNotExist) {
		missing = append(missing, "debian-archive-keyring")
	}
	return missing
}

// ensureTools returns an error that names what is missing and how to get it, or
// installs it.
func ensureTools(ctx context.Context, install bool, progress Progress) error {
	euid := os.Geteuid()
	missing := missingTools(euid)
	if len(missing) == 0 {
		return nil
	}
	remedy := "apt-get install --no-install-recommends -y " + strings.Join(missing, " ")
	if !install || euid != 0 {
		if euid != 0 {
			remedy = "sudo " + remedy
		}
		return fmt.Errorf("%s missing: run `%s`", strings.Join(missing, ", "), remedy)
	}
	progress.stage("installing " + strings.Join(missing, ", "))
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%s missing, and there is no apt-get here to install them with", strings.Join(missing, ", "))
	}
	args := append([]string{"DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "--no-install-recommends", "-y"}, missing...)
	if err := run(ctx, "/", "env", args...); err == nil {
		return nil
	}
	// A fresh machine may have no package lists yet.
	if err := run(ctx, "/", "apt-get", "update"); err != nil {
		return err
	}
	return run(ctx, "/", "env", args...)
}
