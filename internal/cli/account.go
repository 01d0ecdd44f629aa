package cli

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/bouvet-run/bouvet"
)

// defaultUser is the account commands run as where the image has it.
const defaultUser = "user"

// An account is who a command runs as, and where.
type account struct{ user, dir string }

// account decides on the user and the directory: flags, then what the image says,
// then the account "user" and its home directory.
func (s *runSession) account(ctx context.Context) (account, error) {
	a := account{user: s.user, dir: s.dir}
	if a.user == "" {
		a.user = s.image.Config.User
	}
	if a.dir == "" {
		a.dir = s.image.Config.WorkDir
	}
	if a.user != "" && a.dir != "" {
		return a, nil
	}
	// What the guest says decides only what happens within the guest.
	passwd, err := s.sandbox.ReadFile(ctx, "/etc/passwd")
	if err != nil {
		if errors.Is(err, bouvet.ErrVM) || ctx.Err() != nil {
			return account{}, err
		}
		return a, nil // an image without accounts
	}
	if _, ok := home(passwd, defaultUser); ok && a.user == "" {
		a.user = defaultUser
	}
	if a.dir == "" && a.user != "" {
		a.dir, err = s.homeDir(ctx, passwd, a.user)
	}
	return a, err
}

// homeDir is the home directory of user if there is one, else empty.
func (s *runSession) homeDir(ctx context.Context, passwd, user string) (string, error) {
	dir, ok := home(passwd, user)
	if !ok || !strings.HasPrefix(dir, "/") {
		return "", nil
	}
	_, err := s.sandbox.ListDir(ctx, dir)
	switch {
	case err == nil:
		return dir, nil
	case errors.Is(err, bouvet.ErrVM) || ctx.Err() != nil:
		return "", err
	default:
		return "", nil
	}
}

// home finds the home directory of a user, given by name, number or uid:gid, in
// the text of /etc/passwd.
func home(passwd, user string) (string, bool) {
	name, _, _ := strings.Cut(user, ":")
	_, err := strconv.ParseUint(name, 10, 32)
	byNumber := err == nil
	for line := range strings.Lines(passwd) {
		f := strings.Split(strings.TrimRight(line, "\r\n"), ":")
		if len(f) < 6 {
			continue
		}
		if f[0] == name || byNumber && f[2] == name {
			return f[5], f[5] != ""
		}
	}
	return "", false
}

// command is what to run: the words given and nothing else, what the image is made
// for, or a shell.
func (s *runSession) command(ctx context.Context) []string {
	if len(s.job.args) > 0 {
		return s.job.args
	}
	if words := append(append([]string{}, s.image.Config.Entrypoint...), s.image.Config.Cmd...); len(words) > 0 {
		return words
	}
	if _, err := s.sandbox.Client().Stat(ctx, "/bin/bash"); err == nil {
		return []string{"/bin/bash"}
	}
	return []string{"/bin/sh"}
}
