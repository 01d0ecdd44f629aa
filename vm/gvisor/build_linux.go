package gvisor

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/bouvet-run/bouvet/vm"
)

const gvisorModule = "gvisor.dev/gvisor"

// buildOf names what the state of a machine that exe runs depends on: gVisor's code,
// and what we ask of it. Our other changes do not make saved machines useless.
func buildOf(exe string) (string, error) {
	code, err := codeOf(exe)
	if err != nil {
		return "", fmt.Errorf("cannot tell which gVisor %s is: %w", exe, err)
	}
	layout, err := json.Marshal(makeSpec(&vm.Config{}, ""))
	if err != nil {
		return "", fmt.Errorf("cannot encode specification: %w", err)
	}
	sum := sha256.Sum256(layout)
	return fmt.Sprintf("runsc %s layout %s", code, hex.EncodeToString(sum[:8])), nil
}

// codeOf is the version of the gVisor module that exe is linked with and the one that
// runsc compares. Where they cannot be known or do not say enough, for the module was
// replaced, it is the executable's digest.
func codeOf(exe string) (string, error) {
	if exe == ownExe {
		if v := moduleOf(exe); v != "" {
			return v + " " + Version(), nil
		}
	}
	return fileDigest(exe)
}

// moduleOf is the version of the gVisor module in exe, or empty. The binary of a test
// does not tell.
func moduleOf(exe string) string {
	info, err := buildinfo.ReadFile(exe)
	if err != nil {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == gvisorModule && m.Replace == nil && m.Sum != "" {
			return m.Version
		}
	}
	return ""
}

// fileDigest is the SHA-256 of a file of ours.
func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}
