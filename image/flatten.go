package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/bouvet-run/bouvet/image/internal/erofs"
)

// Output is what an image is written to; an *os.File is one.
type Output interface {
	io.WriterAt
	io.ReaderAt
	Truncate(size int64) error
}

// A Layer opens one uncompressed tar archive. It is opened once and read once,
// from its beginning to its end, so a pipe will do.
type Layer func(ctx context.Context) (io.ReadCloser, error)

// FlattenOptions say how archives become a tree. The zero value refuses what is
// doubtful.
type FlattenOptions struct {
	// Limits bound what the layers may hold.
	Limits Limits
	// Whiteouts gives names that begin with ".wh." the meaning they have in OCI
	// layers: ".wh.x" hides x of the layers below, ".wh..wh..opq" all of a
	// directory. Otherwise they are names like others.
	Whiteouts bool
	// DropDevices leaves device nodes out. Otherwise they are refused, except
	// below /dev, where they are always left out because the sandbox has its own.
	DropDevices bool
	// Progress is told how many bytes of content have been written.
	Progress Progress
}

// Stats says what Flatten put into an image.
type Stats struct {
	// Size is the length of the image in bytes.
	Size int64
	// Inodes and Names count what the image holds; a hard link is one more name
	// of an inode.
	Inodes, Names int64
	// Devices counts device nodes that were left out.
	Devices int64
	// Xattrs counts extended attributes that were left out: gVisor cannot read
	// files that have any. A file capability is lost with them.
	Xattrs int64
}

const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
)

// Flatten merges layers, the lowest first, and writes them as one EROFS image
// to out, which must be empty. The same layers give the same bytes. The contents
// of files pass through a fixed buffer; the tree is held in memory.
//
// Entries that cannot be put into an image safely are refused with an error that
// wraps ErrRefused and names the entry; out is then of no use.
func Flatten(ctx context.Context, layers []Layer, out Output, opts FlattenOptions) (Stats, error) {
	f := newFlattener(out, opts)
	for i, layer := range layers {
		f.tree.layer = i
		if err := f.add(ctx, layer); err != nil {
			if len(layers) > 1 {
				err = fmt.Errorf("layer %d: %w", i+1, err)
			}
			return Stats{}, err
		}
	}
	return f.finish(ctx)
}

// A flattener is one image being made.
type flattener struct {
	tree    *tree
	out     *erofs.Writer
	opts    FlattenOptions
	limits  Limits
	stats   Stats
	entries int64
	bytes   int64
}

func newFlattener(out Output, opts FlattenOptions) *flattener {
	l := opts.Limits.withDefaults()
	return &flattener{tree: newTree(l), out: erofs.NewWriter(out), opts: opts, limits: l}
}

func (f *flattener) finish(ctx context.Context) (Stats, error) {
	f.opts.Progress.stage("writing the file tree")
	s, err := f.out.Finish(ctx, f.tree.root)
	if err != nil {
		return Stats{}, err
	}
	f.stats.Size, f.stats.Inodes, f.stats.Names = s.Size, s.Inodes, s.Names
	return f.stats, nil
}

func (f *flattener) add(ctx context.Context, layer Layer) (err error) {
	rc, err := layer(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := rc.Close(); err == nil && cerr != nil {
			err = cerr
		}
	}()
	s := newTarStream(ctx, rc, f.limits)
	for {
		hdr, err := s.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f.entry(ctx, hdr, s); err != nil {
			switch {
			case s.counter.err != nil:
				err = s.counter.err
			case errors.Is(err, io.ErrUnexpectedEOF):
				err = fmt.Errorf("%w: the archive ends inside it", ErrRefused)
			}
			return fmt.Errorf("cannot add %.300q: %w", hdr.Name, err)
		}
	}
}

// count bounds the number of entries.
func (f *flattener) count() error {
	if f.entries++; f.entries > f.limits.Entries {
		return fmt.Errorf("%w: there are more than %d entries", ErrRefused, f.limits.Entries)
	}
	return nil
}

// entry adds one entry of an archive to the tree.
func (f *flattener) entry(ctx context.Context, hdr *tar.Header, r io.Reader) error {
	if err := f.count(); err != nil {
		return err
	}
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	parts, err := splitPath(hdr.Name)
	if err != nil {
		return err
	}
	if skip, err := f.isDevice(hdr, parts); skip || err != nil {
		return err
	}
	if len(parts) == 0 {
		if hdr.Typeflag != tar.TypeDir {
			return fmt.Errorf("%w: the root must be a directory", ErrRefused)
		}
		return f.describe(f.tree.root, hdr)
	}
	dir, err := f.tree.directory(parts[:len(parts)-1], true)
	if err != nil {
		return err
	}
	name := parts[len(parts)-1]
	if f.opts.Whiteouts && strings.HasPrefix(name, whiteoutPrefix) {
		return f.whiteout(dir, name)
	}
	if hdr.Typeflag == tar.TypeLink {
		return f.link(dir, name, hdr.Linkname)
	}
	inode := &erofs.Inode{}
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		inode.Mode = erofs.TypeRegular
		if err := f.content(ctx, inode, r, hdr.Size); err != nil {
			return err
		}
	case tar.TypeDir:
		if old, ok := dir.Entries[name]; ok && old.Inode.IsDir() {
			// Its entries stay, whoever made them.
			if err := f.tree.put(dir, name, old.Inode); err != nil {
				return err
			}
			return f.describe(old.Inode, hdr)
		}
		inode = implicitDir()
	case tar.TypeSymlink:
		inode.Mode = erofs.TypeSymlink
		if inode.Target, err = linkTarget(hdr.Linkname); err != nil {
			return err
		}
	case tar.TypeFifo:
		inode.Mode = erofs.TypeFIFO
	default:
		return fmt.Errorf("%w: entries of type %q are not supported", ErrRefused, hdr.Typeflag)
	}
	if err := f.describe(inode, hdr); err != nil {
		return err
	}
	return f.tree.put(dir, name, inode)
}

// isDevice reports whether the entry is a device node to be left out, and
// refuses one that is not to be.
func (f *flattener) isDevice(hdr *tar.Header, parts []string) (bool, error) {
	if hdr.Typeflag != tar.TypeChar && hdr.Typeflag != tar.TypeBlock {
		return false, nil
	}
	if !f.opts.DropDevices && (len(parts) < 2 || parts[0] != "dev") {
		return false, fmt.Errorf("%w: it is a device node", ErrRefused)
	}
	f.stats.Devices++
	return true, nil
}

// describe copies owner, permissions and time of an entry.
func (f *flattener) describe(n *erofs.Inode, hdr *tar.Header) error {
	if hdr.Uid < 0 || hdr.Uid > math.MaxUint32 || hdr.Gid < 0 || hdr.Gid > math.MaxUint32 {
		return fmt.Errorf("%w: its owner %d:%d is out of range", ErrRefused, hdr.Uid, hdr.Gid)
	}
	n.Mode = n.Type() | uint32(hdr.Mode&0o7777)
	n.UID, n.GID = uint32(hdr.Uid), uint32(hdr.Gid)
	n.MtimeSec = hdr.ModTime.Unix()
	n.MtimeNsec = uint32(hdr.ModTime.Nanosecond()) //nolint:gosec // below 1e9
	for key := range hdr.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") || strings.HasPrefix(key, "LIBARCHIVE.xattr.") {
			f.stats.Xattrs++
		}
	}
	return nil
}

// content writes the content of a regular file.
func (f *flattener) content(ctx context.Context, n *erofs.Inode, r io.Reader, size int64) error {
	if size < 0 || size > f.limits.FileBytes {
		return fmt.Errorf("%w: its size of %d bytes is over the limit of %d", ErrRefused, size, f.limits.FileBytes)
	}
	if f.bytes += size; f.bytes > f.limits.TotalBytes {
		return fmt.Errorf("%w: with it the files hold more than %d bytes", ErrRefused, f.limits.TotalBytes)
	}
	block, err := f.out.Append(ctx, r, size)
	if err != nil {
		return err
	}
	n.Size, n.Block = size, block
	if p := f.opts.Progress; p != nil {
		p(Event{Stage: "writing files", Done: f.bytes, Unit: "bytes"})
	}
	return nil
}

// link adds one more name to the inode at target, as link(2) would: a symbolic
// link at the end of target is not followed.
func (f *flattener) link(dir *erofs.Inode, name, target string) error {
	parts, err := splitPath(target)
	if err != nil {
		return fmt.Errorf("hard link to %.300q: %w", target, err)
	}
	missing := fmt.Errorf("%w: it is a hard link to %.300q, which is not there", ErrRefused, target)
	if len(parts) == 0 {
		return missing
	}
	from, err := f.tree.directory(parts[:len(parts)-1], false)
	if err != nil {
		return fmt.Errorf("hard link to %.300q: %w", target, err)
	}
	if from == nil {
		return missing
	}
	e, ok := from.Entries[parts[len(parts)-1]]
	switch {
	case !ok:
		return missing
	case e.Inode.IsDir():
		return fmt.Errorf("%w: it is a hard link to the directory %.300q", ErrRefused, target)
	}
	return f.tree.put(dir, name, e.Inode)
}

// whiteout hides what lower layers hold.
func (f *flattener) whiteout(dir *erofs.Inode, name string) error {
	if name == opaqueMarker {
		f.tree.hideAll(dir)
		return nil
	}
	hidden := strings.TrimPrefix(name, whiteoutPrefix)
	if hidden == "" || hidden == "." || hidden == ".." {
		return fmt.Errorf("%w: it is a whiteout of nothing", ErrRefused)
	}
	if strings.HasPrefix(hidden, whiteoutPrefix) {
		return nil // aufs's own bookkeeping, as ".wh..wh.plnk"
	}
	f.tree.hide(dir, hidden)
	return nil
}

func linkTarget(target string) (string, error) {
	switch {
	case target == "":
		return "", fmt.Errorf("%w: it is a symbolic link to nothing", ErrRefused)
	case len(target) > erofs.MaxTarget:
		return "", fmt.Errorf("%w: its target is longer than %d bytes", ErrRefused, erofs.MaxTarget)
	case strings.ContainsRune(target, 0):
		return "", fmt.Errorf("%w: its target contains a NUL byte", ErrRefused)
	}
	return target, nil
}
