package agent

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// An owner is who a file is made for.
type owner struct{ uid, gid int }

// target checks what the methods that make files have in common and looks up
// whom they make them for; nil means the agent itself.
func target(path string, mode *uint32, user string) (*owner, error) {
	if err := checkPath("path", path); err != nil {
		return nil, err
	}
	if err := checkMode(mode); err != nil {
		return nil, err
	}
	if user == "" {
		return nil, nil //nolint:nilnil // nobody in particular.
	}
	o, err := ownerOf(user)
	if err != nil {
		return nil, invalid("%v", err)
	}
	return o, nil
}

// ownerOf reads a user parameter: a name, a number, or "uid:gid". A number that
// no account has belongs to the group of the same number.
func ownerOf(user string) (*owner, error) {
	if u, g, ok := strings.Cut(user, ":"); ok {
		uid, uidErr := parseID(u)
		gid, gidErr := parseID(g)
		if uidErr != nil || gidErr != nil {
			return nil, fmt.Errorf("user %q is not uid:gid", shorten(user, maxShownMethod))
		}
		return &owner{uid, gid}, nil
	}
	var found *owner
	eachAccount("/etc/passwd", func(fields []string) bool {
		if len(fields) < 4 || fields[0] != user && fields[2] != user {
			return true
		}
		uid, uidErr := parseID(fields[2])
		gid, gidErr := parseID(fields[3])
		if uidErr == nil && gidErr == nil {
			found = &owner{uid, gid}
		}
		return found == nil
	})
	if found != nil {
		return found, nil
	}
	id, err := parseID(user)
	if err != nil {
		return nil, fmt.Errorf("unknown user %q", shorten(user, maxShownMethod))
	}
	return &owner{id, id}, nil
}

// parseID reads a user or group number; the largest means "unchanged" to chown(2).
func parseID(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, err
	}
	if n == 1<<32-1 {
		return 0, strconv.ErrRange
	}
	return int(n), nil
}

func userName(uid uint32) string  { return nameOf("/etc/passwd", uid) }
func groupName(gid uint32) string { return nameOf("/etc/group", gid) }

// nameOf finds the name of a number; it is the third field in both files.
func nameOf(file string, id uint32) string {
	want, name := strconv.FormatUint(uint64(id), 10), ""
	eachAccount(file, func(fields []string) bool {
		if len(fields) > 2 && fields[2] == want {
			name = fields[0]
		}
		return name == ""
	})
	return name
}

// maxAccounts bounds what is read of an account file, in bytes: programs in the
// guest can write it.
const maxAccounts = 4 << 20

// eachAccount calls visit with the fields of each line until it returns false. A
// file that cannot be read has no lines.
func eachAccount(file string, visit func(fields []string) bool) {
	f, _, err := openRegular(file)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewReader(io.LimitReader(f, maxAccounts))
	for {
		line, isPrefix, err := lines.ReadLine()
		if err != nil {
			return
		}
		if !isPrefix && !visit(strings.Split(string(line), ":")) {
			return
		}
	}
}
