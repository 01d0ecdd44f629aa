package image

import (
	"fmt"
	"strings"

	"github.com/bouvet-run/bouvet/image/internal/erofs"
)

// A tree is the file system that layers merge into, held in memory without the
// contents of files. Its paths are never the host's: a symbolic link in it can
// lead nowhere but to another place in it.
type tree struct {
	root      *erofs.Inode
	layer     int
	limits    Limits
	nameBytes int64
}

func newTree(l Limits) *tree {
	return &tree{root: implicitDir(), limits: l}
}

// implicitDir is a directory that no entry describes.
func implicitDir() *erofs.Inode {
	return &erofs.Inode{Mode: erofs.TypeDir | 0o755, Entries: make(map[string]erofs.Entry)}
}

// splitPath turns the name of an entry into its components. A leading slash
// means the image's root, as it does to tar; a component ".." is refused.
func splitPath(name string) ([]string, error) {
	if len(name) > maxPath {
		return nil, fmt.Errorf("%w: its path is longer than %d bytes", ErrRefused, maxPath)
	}
	if strings.ContainsRune(name, 0) {
		return nil, fmt.Errorf("%w: its path contains a NUL byte", ErrRefused)
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			return nil, fmt.Errorf("%w: its path contains \"..\"", ErrRefused)
		case len(part) > erofs.MaxName:
			return nil, fmt.Errorf("%w: a component of its path is longer than %d bytes", ErrRefused, erofs.MaxName)
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// directory finds the directory at path, following symbolic links inside the
// image, as a later layer that writes lib/x expects where lib is a link to
// usr/lib. With create set, missing directories are made; without, nil means
// that there is no such directory.
func (t *tree) directory(path []string, create bool) (*erofs.Inode, error) {
	stack := []*erofs.Inode{t.root}
	todo := path
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		dir := stack[len(stack)-1]
		switch name {
		case "", ".":
			continue
		case "..": // from a link's target; the root is its own parent
			stack = stack[:max(1, len(stack)-1)]
			continue
		}
		e, ok := dir.Entries[name]
		switch {
		case !ok && !create:
			return nil, nil
		case !ok:
			if len(name) > erofs.MaxName {
				return nil, fmt.Errorf("%w: a link in its path has a component longer than %d bytes", ErrRefused, erofs.MaxName)
			}
			e = erofs.Entry{Inode: implicitDir(), Layer: t.layer}
			if err := t.put(dir, name, e.Inode); err != nil {
				return nil, err
			}
		case e.Inode.Type() == erofs.TypeSymlink:
			if links++; links > maxLinks {
				return nil, fmt.Errorf("%w: its path has too many symbolic links, perhaps a loop", ErrRefused)
			}
			if strings.HasPrefix(e.Inode.Target, "/") {
				stack = stack[:1]
			}
			todo = append(strings.Split(e.Inode.Target, "/"), todo...)
			continue
		case !e.Inode.IsDir():
			if !create {
				return nil, nil
			}
			return nil, fmt.Errorf("%w: %.255q in its path is not a directory", ErrRefused, name)
		}
		if stack = append(stack, e.Inode); len(stack) > maxDepth {
			return nil, fmt.Errorf("%w: it lies more than %d directories deep", ErrRefused, maxDepth)
		}
	}
	return stack[len(stack)-1], nil
}

// put gives inode a name in dir, in place of whatever has it. The names of a
// replaced inode elsewhere keep it: they are hard links.
func (t *tree) put(dir *erofs.Inode, name string, inode *erofs.Inode) error {
	t.nameBytes += int64(len(name) + len(inode.Target))
	if t.nameBytes > t.limits.NameBytes {
		return fmt.Errorf("%w: names take more than %d bytes together", ErrRefused, t.limits.NameBytes)
	}
	dir.Entries[name] = erofs.Entry{Inode: inode, Layer: t.layer}
	return nil
}

// hide removes what lower layers put at name, and keeps what this layer did,
// whichever came first in the archive.
func (t *tree) hide(dir *erofs.Inode, name string) {
	e, ok := dir.Entries[name]
	if !ok {
		return
	}
	if e.Inode.IsDir() {
		t.hideAll(e.Inode)
		if len(e.Inode.Entries) > 0 && e.Layer < t.layer {
			// Only what this layer put inside is left of it.
			kept := implicitDir()
			kept.Entries = e.Inode.Entries
			dir.Entries[name] = erofs.Entry{Inode: kept, Layer: t.layer}
			return
		}
	}
	if e.Layer < t.layer {
		delete(dir.Entries, name)
	}
}

// hideAll hides everything in dir.
func (t *tree) hideAll(dir *erofs.Inode) {
	for name := range dir.Entries {
		t.hide(dir, name)
	}
}
