package image

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

var (
	namePattern   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,63})?$`)
	digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	prefixPattern = regexp.MustCompile(`^[0-9a-f]{6,64}$`)
)

// Errors a caller acts on; they are to be found with errors.Is.
var (
	// ErrNotFound means that no image has this name or digest.
	ErrNotFound = errors.New("no such image")
	// ErrInUse means that an image cannot be removed because somebody holds it.
	ErrInUse = errors.New("image is in use")
	// ErrCorrupt means that an image's file is not what was written.
	ErrCorrupt = errors.New("image is damaged")
)

// ValidName reports an error unless name may name an image: at most 128 of
// a-z, 0-9, '.', '_' and '-', not beginning with punctuation, and perhaps a tag
// of at most 64 characters after a colon.
func ValidName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("%.200q cannot name an image: use a-z, 0-9, '.', '_' and '-', and perhaps a tag after a colon", name)
	}
	return nil
}

// digestPrefix returns the hexadecimal digits of a digest or of a prefix of one
// of at least six digits, or "" if s is neither.
func digestPrefix(s string) string {
	s = strings.TrimPrefix(s, "sha256:")
	if prefixPattern.MatchString(s) {
		return s
	}
	return ""
}
