package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// maxEnvFile bounds a file given with --env-file in bytes.
const maxEnvFile = 1 << 20

// environment resolves -e and --env-file: files first, in order, then flags; a
// later assignment wins. "K" alone takes K's value from lookup and is skipped
// where there is none, as docker does.
func environment(files, assignments []string, lookup func(string) (string, bool)) ([]string, error) {
	var lines []string
	for _, file := range files {
		more, err := readEnvFile(file)
		if err != nil {
			return nil, err
		}
		lines = append(lines, more...)
	}
	lines = append(lines, assignments...)

	var env []string
	for _, line := range lines {
		key, value, given := strings.Cut(line, "=")
		if err := validKey(key); err != nil {
			return nil, err
		}
		if strings.ContainsRune(value, 0) {
			return nil, fmt.Errorf("cannot use environment variable %s: its value contains a NUL byte", key)
		}
		if !given {
			if value, given = lookup(key); !given {
				continue
			}
		}
		env = slices.DeleteFunc(env, func(have string) bool { return strings.HasPrefix(have, key+"=") })
		env = append(env, key+"="+value)
	}
	return env, nil
}

func validKey(key string) error {
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fmt.Errorf("%s is not the name of an environment variable; write -e NAME=VALUE or -e NAME", quoted(key))
	}
	return nil
}

// readEnvFile reads NAME=VALUE lines; empty lines and lines that begin with #
// are skipped, quotes have no meaning.
func readEnvFile(path string) ([]string, error) {
	text, err := readBounded(path, maxEnvFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the environment file: %w", err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if trimmed := strings.TrimSpace(line); trimmed == "" || trimmed[0] == '#' {
			continue
		}
		lines = append(lines, strings.TrimLeft(line, " \t"))
	}
	return lines, nil
}

var errTooLarge = errors.New("file is too large")

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return readAllBounded(f, path, limit)
}

func readAllBounded(r io.Reader, name string, limit int64) ([]byte, error) {
	var b strings.Builder
	n, err := io.Copy(&b, io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, fmt.Errorf("%s: %w (limit %s)", printable(name, 400), errTooLarge, humanSize(limit))
	}
	return []byte(b.String()), nil
}
