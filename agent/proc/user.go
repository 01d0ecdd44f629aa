package proc

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// An Account is what the guest's /etc/passwd and /etc/group say of a user.
type Account struct {
	Name     string
	UID, GID uint32
	// Groups are the supplementary groups, GID not among them.
	Groups []uint32
	Home   string
}

// The databases, replaced in tests.
var (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
)

// maxDatabase bounds what is read of a database, in bytes: the guest may have
// made it anything.
const maxDatabase = 4 << 20

// LookUpUser reads the guest's user database. Spec is a name or a number,
// optionally followed by ":" and a group's name or number. A number that is not
// in the database is allowed; its group is 0 and its home "/" then, as in
// containers elsewhere.
func LookUpUser(spec string) (*Account, error) {
	name, group, hasGroup := strings.Cut(spec, ":")
	if name == "" || hasGroup && group == "" {
		return nil, fmt.Errorf("bad user %q: want a name or a number, or user:group", spec)
	}
	a, err := findUser(name)
	if err != nil {
		return nil, err
	}
	groups := readDatabase(groupFile, 3)
	if hasGroup {
		// An explicit group stands alone: the caller says what it wants.
		if a.GID, err = findGroup(groups, group); err != nil {
			return nil, err
		}
		return a, nil
	}
	for _, g := range groups {
		gid, ok := number(g[2])
		if !ok || gid == a.GID || len(g) < 4 || slices.Contains(a.Groups, gid) {
			continue
		}
		if slices.Contains(strings.Split(g[3], ","), a.Name) {
			a.Groups = append(a.Groups, gid)
		}
	}
	return a, nil
}

func findUser(name string) (*Account, error) {
	uid, isNumber := number(name)
	for _, f := range readDatabase(passwdFile, 6) {
		u, okUID := number(f[2])
		g, okGID := number(f[3])
		if !okUID || !okGID || f[0] == "" {
			continue
		}
		if f[0] == name || isNumber && u == uid {
			a := &Account{Name: f[0], UID: u, GID: g, Home: f[5]}
			if a.Home == "" {
				a.Home = "/"
			}
			return a, nil
		}
	}
	if isNumber {
		return &Account{Name: name, UID: uid, Home: "/"}, nil
	}
	return nil, fmt.Errorf("unknown user %q", name)
}

func findGroup(groups [][]string, name string) (uint32, error) {
	for _, f := range groups {
		if gid, ok := number(f[2]); ok && f[0] == name {
			return gid, nil
		}
	}
	if gid, ok := number(name); ok {
		return gid, nil
	}
	return 0, fmt.Errorf("unknown group %q", name)
}

// number reads a user or group number. The highest means "no change" to the
// kernel.
func number(s string) (uint32, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1
}

// readDatabase returns the lines of a database that have at least so many fields.
// One that cannot be read is empty.
func readDatabase(path string, fields int) [][]string {
	// The guest may have put a fifo there, which must not hold us up.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	var text strings.Builder
	if _, err := io.Copy(&text, io.LimitReader(f, maxDatabase)); err != nil {
		return nil
	}
	var lines [][]string
	for line := range strings.SplitSeq(text.String(), "\n") {
		if f := strings.Split(strings.TrimRight(line, "\r"), ":"); len(f) >= fields && !strings.HasPrefix(line, "#") {
			lines = append(lines, f)
		}
	}
	return lines
}

// credential returns what fork needs to become a, nil when nothing is to change
// and nothing may be changed.
func (a *Account) credential() *syscall.Credential {
	if uid := os.Geteuid(); uid != 0 && uint64(uid) == uint64(a.UID) { //nolint:gosec // not negative.
		return nil
	}
	return &syscall.Credential{Uid: a.UID, Gid: a.GID, Groups: a.Groups}
}
