package agent

import (
	"bufio"
	"io"
	"strconv"
	"strings"

	"github.com/bouvet-run/bouvet/agent/proc"
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
	a, err := proc.LookUpUser(user)
	if err != nil {
		return nil, invalid("%v", shorten(err.Error(), maxShownMethod))
	}
	return &owner{int(a.UID), int(a.GID)}, nil
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
