// Package mountinfo reads the kernel's list of mounts.
package mountinfo

import "strings"

// Parse reads a line of mountinfo (proc(5)): where it is mounted, the kind of file
// system and its own options.
func Parse(line string) (point, kind, options string, ok bool) {
	before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
	left, right := strings.Fields(before), strings.Fields(after)
	if !ok || len(left) < 6 || len(right) < 3 {
		return "", "", "", false
	}
	return unescape(left[4]), right[0], right[2], true
}

// unescape undoes the octal escapes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
