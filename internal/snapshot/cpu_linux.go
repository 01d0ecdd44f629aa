package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"sync"
)

// HostCPU names the host's processor and digests the features that it offers: the
// same text on machines that can take over each other's guests.
var HostCPU = sync.OnceValues(func() (string, error) {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	return cpuName(string(data)), nil
})

// cpuName reads the first processor of /proc/cpuinfo.
func cpuName(info string) string {
	first, _, _ := strings.Cut(info, "\n\n")
	var names []string
	features := ""
	for line := range strings.Lines(first) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "vendor_id", "cpu family", "model", "model name", "CPU implementer", "CPU part":
			names = append(names, value)
		case "flags", "Features":
			all := strings.Fields(value)
			slices.Sort(all)
			sum := sha256.Sum256([]byte(strings.Join(all, " ")))
			features = hex.EncodeToString(sum[:8])
		}
	}
	return strings.Join(append(names, "features "+features), "/")
}
