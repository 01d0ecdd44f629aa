package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/bouvet-run/bouvet"
)

// A fileCopy is one --file.
type fileCopy struct{ host, guest string }

// parseCopies reads HOST:GUEST. GUEST begins with a slash, so the last ":/" is
// the separator and HOST may contain colons.
func parseCopies(specs []string) ([]fileCopy, error) {
	const remedy = "--file HOST:/path/in/the/sandbox"
	var copies []fileCopy
	for _, spec := range specs {
		i := strings.LastIndex(spec, ":/")
		if i <= 0 {
			return nil, usage(remedy, "cannot use --file %s: it is not HOST:GUEST with an absolute path for GUEST", quoted(spec))
		}
		c := fileCopy{host: spec[:i], guest: spec[i+1:]}
		if strings.ContainsRune(c.guest, 0) {
			return nil, usage(remedy, "cannot use --file %s: a path contains a NUL byte", quoted(spec))
		}
		if strings.HasSuffix(c.guest, "/") {
			base, err := filepath.Abs(c.host)
			if err != nil {
				return nil, fmt.Errorf("cannot use --file %s: %w", quoted(spec), err)
			}
			c.guest += filepath.Base(base)
		}
		c.guest = path.Clean(c.guest)
		if _, err := os.Stat(c.host); err != nil {
			return nil, cannot(kindFile, remedy, "copy %s into the sandbox: %w", quoted(c.host), err)
		}
		copies = append(copies, c)
	}
	return copies, nil
}

// copyIn puts the code and the files of the job into the sandbox. They belong to
// who will run the command.
func (s *runSession) copyIn(ctx context.Context, who account) error {
	client := s.sandbox.Client()
	if s.job.codePath != "" {
		if _, err := client.Upload(ctx, s.job.codePath, strings.NewReader(string(s.job.code)), &bouvet.FileOptions{Mode: 0o644, User: who.user}); err != nil {
			return fmt.Errorf("cannot copy the code into the sandbox: %w", err)
		}
	}
	for _, c := range s.job.copies {
		t := &transfer{client: client, user: who.user}
		if err := t.copy(ctx, c); err != nil {
			return cannot(kindFile, "files that this user may read, and a place that -u USER may write to", "copy %s to %s in the sandbox: %w", quoted(c.host), quoted(c.guest), err)
		}
		if err := s.makeLinks(ctx, t.links, who); err != nil {
			return err
		}
	}
	return nil
}

// A transfer copies one --file.
type transfer struct {
	client *bouvet.AgentClient
	user   string
	links  []link
}

// A link is a symbolic link to be made in the sandbox.
type link struct{ target, path string }

// copy follows a symbolic link that the user named, as cp does, and none below.
func (t *transfer) copy(ctx context.Context, c fileCopy) error {
	info, err := os.Stat(c.host)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		f, err := openRegular(os.OpenFile, c.host)
		if err != nil {
			return err
		}
		return t.upload(ctx, f, c.guest)
	}
	root, err := os.OpenRoot(c.host)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return t.entry(ctx, root, name, path.Join(c.guest, name), d)
	})
}

// entry copies one entry of a directory.
func (t *transfer) entry(ctx context.Context, root *os.Root, name, guest string, d fs.DirEntry) error {
	switch d.Type() {
	case fs.ModeDir:
		info, err := d.Info()
		if err != nil {
			return err
		}
		_, err = t.client.MakeDir(ctx, guest, &bouvet.FileOptions{Mode: info.Mode(), User: t.user})
		return err
	case fs.ModeSymlink:
		target, err := root.Readlink(name)
		if err != nil {
			return err
		}
		t.links = append(t.links, link{target, guest})
		return nil
	case 0:
		f, err := openRegular(root.OpenFile, name)
		if err != nil {
			return err
		}
		return t.upload(ctx, f, guest)
	default:
		return fmt.Errorf("%s: %w", quoted(name), errNotRegular)
	}
}

func (t *transfer) upload(ctx context.Context, f *os.File, guest string) error {
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = t.client.Upload(ctx, guest, f, &bouvet.FileOptions{Mode: info.Mode(), User: t.user})
	return err
}

var errNotRegular = errors.New("neither a regular file nor a directory")

// openRegular opens without blocking: a name that turned into a FIFO meanwhile
// would otherwise wait for its writer.
func openRegular(open func(string, int, fs.FileMode) (*os.File, error), name string) (*os.File, error) {
	f, err := open(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// linkScript makes symbolic links from pairs of arguments. The agent's protocol
// has no call for it.
const linkScript = `while [ $# -gt 1 ]; do ln -sfn -- "$1" "$2" || exit 1; shift 2; done`

// linkBatch is how many links one command makes: an argument list is bounded.
const linkBatch = 200

// makeLinks makes the symbolic links of copied directories, as they are: what
// they point to is looked up in the sandbox, never on the host.
func (s *runSession) makeLinks(ctx context.Context, links []link, who account) error {
	for len(links) > 0 {
		n := min(len(links), linkBatch)
		args := []string{"-c", linkScript, "sh"}
		for _, l := range links[:n] {
			args = append(args, l.target, l.path)
		}
		cmd := s.sandbox.Command(ctx, "sh", args...)
		cmd.User = who.user
		var stderr capture
		stderr.limit = 1 << 10
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil { //nolint:contextcheck // the Cmd has it
			return cannot(kindFile, "a copy without symbolic links (cp -rL)", "make symbolic links in the sandbox: %w %s", err, printable(stderr.kept.String(), 1000))
		}
		links = links[n:]
	}
	return nil
}
