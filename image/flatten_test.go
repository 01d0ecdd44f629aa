package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// Layers merge as an overlay of directories would.
func TestFlattenLayers(t *testing.T) {
	tests := []struct {
		name   string
		plain  bool // whiteouts are names like others
		layers [][]entry
		want   []string
	}{
		{
			name:   "later wins",
			layers: [][]entry{{file("a", "old")}, {file("a", "new"), file("b", "b")}},
			want:   []string{"a=new", "b=b"},
		},
		{
			// mutate.Extract's first fault: facts B3.
			name:   "hard link keeps the content of a replaced name",
			layers: [][]entry{{file("a", "old"), hardlink("b", "a")}, {file("a", "new")}},
			want:   []string{"a=new", "b=old"},
		},
		{
			// Its second.
			name:   "hard link outlives a whiteout of its target",
			layers: [][]entry{{file("a", "kept")}, {hardlink("b", "a")}, {file(".wh.a", "")}},
			want:   []string{"b=kept"},
		},
		{
			// Its third.
			name:   "link above the root is kept as it is",
			layers: [][]entry{{symlink("l", "../../../../etc/passwd")}},
			want:   []string{"l->../../../../etc/passwd"},
		},
		{
			// Its fourth.
			name:   "whiteout before new files of its layer",
			layers: [][]entry{{folder("d"), file("d/old", "")}, {file(".wh.d", ""), folder("d"), file("d/new", "n")}},
			want:   []string{"d/", "d/new=n"},
		},
		{
			name:   "whiteout after new files of its layer",
			layers: [][]entry{{folder("d"), file("d/old", "")}, {folder("d"), file("d/new", "n"), file(".wh.d", "")}},
			want:   []string{"d/", "d/new=n"},
		},
		{
			name:   "whiteout of a directory that its layer does not mention",
			layers: [][]entry{{folder("d"), file("d/old", "")}, {file("d/new", "n"), file(".wh.d", "")}},
			want:   []string{"d/", "d/new=n"},
		},
		{
			name:   "whiteout of a file of its own layer does nothing",
			layers: [][]entry{{file("a", "old")}, {file("a", "new"), file(".wh.a", "")}},
			want:   []string{"a=new"},
		},
		{
			name:   "whiteout of nothing there",
			layers: [][]entry{{file("a", "a")}, {file(".wh.b", ""), file("d/.wh.x", "")}},
			want:   []string{"a=a", "d/"},
		},
		{
			name:   "opaque hides the layers below",
			layers: [][]entry{{file("d/1", ""), file("d/e/2", ""), file("o", "")}, {file("d/e/3", "3"), file("d/.wh..wh..opq", ""), file("d/4", "4")}},
			want:   []string{"d/", "d/4=4", "d/e/", "d/e/3=3", "o="},
		},
		{
			name:   "opaque first",
			layers: [][]entry{{file("d/1", "")}, {folder("d"), file("d/.wh..wh..opq", ""), file("d/4", "4")}},
			want:   []string{"d/", "d/4=4"},
		},
		{
			name:   "whiteouts are names in a plain archive",
			plain:  true,
			layers: [][]entry{{file("a", "a"), file(".wh.a", "w"), file(".wh..wh..opq", "o")}},
			want:   []string{".wh..wh..opq=o", ".wh.a=w", "a=a"},
		},
		{
			name:   "parent links are followed inside the image",
			layers: [][]entry{{folder("usr/lib"), symlink("lib", "usr/lib")}, {file("lib/x", "x")}},
			want:   []string{"lib->usr/lib", "usr/", "usr/lib/", "usr/lib/x=x"},
		},
		{
			name:   "absolute parent link, missing target",
			layers: [][]entry{{symlink("a", "/b/c"), file("a/x", "x")}},
			want:   []string{"a->/b/c", "b/", "b/c/", "b/c/x=x"},
		},
		{
			name:   "T22 parent link that climbs stays inside",
			layers: [][]entry{{symlink("d/l", "../../../../tmp"), file("d/l/x", "x")}},
			want:   []string{"d/", "d/l->../../../../tmp", "tmp/", "tmp/x=x"},
		},
		{
			name:   "T22 link then file of the same name",
			layers: [][]entry{{symlink("a", "/etc/passwd"), file("a", "mine")}},
			want:   []string{"a=mine"},
		},
		{
			name:   "T22 absolute names are relative to the root",
			layers: [][]entry{{file("/etc/x", "x"), file("//y", "y"), file("./z", "z")}},
			want:   []string{"etc/", "etc/x=x", "y=y", "z=z"},
		},
		{
			name:   "directory over a link replaces it",
			layers: [][]entry{{folder("usr"), symlink("l", "usr")}, {folder("l"), file("l/x", "x")}},
			want:   []string{"l/", "l/x=x", "usr/"},
		},
		{
			name:   "file over a directory replaces it all",
			layers: [][]entry{{file("d/x", "x")}, {file("d", "f")}},
			want:   []string{"d=f"},
		},
		{
			name:   "hard link to a link does not follow it",
			layers: [][]entry{{symlink("l", "nowhere"), hardlink("m", "l")}},
			want:   []string{"l->nowhere", "m->nowhere"},
		},
		{
			name:   "hard link through a parent link",
			layers: [][]entry{{file("usr/x", "x"), symlink("u", "usr"), hardlink("y", "u/x")}},
			want:   []string{"u->usr", "usr/", "usr/x=x", "y=x"},
		},
		{name: "empty archive", layers: [][]entry{{}}, want: nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var archives [][]byte
			for _, l := range tt.layers {
				archives = append(archives, archive(t, l...))
			}
			f, _, err := flattenTo(t, FlattenOptions{Whiteouts: !tt.plain}, archives...)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, names(t, f), tt.want)
		})
	}
}

func TestFlattenAttributes(t *testing.T) {
	long := strings.Repeat("n", 255)
	a := archive(t,
		entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o750, Uid: 7}},
		entry{tar.Header{Typeflag: tar.TypeReg, Name: "su", Mode: 0o6755, Uid: 1<<32 - 1, Gid: 1<<32 - 2, Format: tar.FormatPAX}, "#!"},
		entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: "tmp", Mode: 0o1777}},
		entry{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "fifo", Mode: 0o600}},
		entry{Header: tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Devmajor: 1, Devminor: 3}},
		entry{tar.Header{Typeflag: tar.TypeReg, Name: "cap", Mode: 0o755, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}, "c"},
		file(long, "l"), file("\xff", "b"),
		file("a", "shared"), hardlink("b", "a"),
	)
	f, stats, err := flattenTo(t, FlattenOptions{}, a)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, list(t, f), []string{
		`a -rw-r--r-- "shared" links=2`, `b -rw-r--r-- "shared" links=2`,
		`cap -rwxr-xr-x "c" links=1`,
		"fifo prw-------", long + ` -rw-r--r-- "l" links=1`,
		`su ugrwxr-xr-x "#!" links=1 4294967295:4294967294`, "tmp dtrwxrwxrwx",
		"\xff" + ` -rw-r--r-- "b" links=1`,
	})
	if stats.Devices != 1 || stats.Xattrs != 1 {
		t.Errorf("left out %d devices and %d attributes, want one each", stats.Devices, stats.Xattrs)
	}
	fsck(t, f.Name())
}

// T22, T56: what cannot be in an image is refused, with the name of the entry.
func TestFlattenRefuses(t *testing.T) {
	big := entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: "big", Size: 2000}, body: strings.Repeat("x", 2000)}
	device := entry{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8}}
	deep := strings.Repeat("d/", 1000)
	tests := []struct {
		name    string
		opts    FlattenOptions
		archive []byte
		want    []string
	}{
		{name: "dotdot", archive: archive(t, file("a/../../x", "")), want: []string{"..", "a/../../x"}},
		{name: "dotdot alone", archive: archive(t, folder("..")), want: []string{".."}},
		{name: "block device", archive: archive(t, device), want: []string{"device", "sda"}},
		{name: "char device beside dev", archive: archive(t, entry{Header: tar.Header{Typeflag: tar.TypeChar, Name: "devil/null"}}), want: []string{"device", "devil/null"}},
		{name: "hard link to nothing", archive: archive(t, hardlink("h", "gone")), want: []string{"hard link", "gone"}},
		{name: "hard link to itself, not there", archive: archive(t, hardlink("h", "h")), want: []string{"hard link"}},
		{name: "hard link to a directory", archive: archive(t, folder("d"), hardlink("h", "d")), want: []string{"directory"}},
		{name: "hard link to the root", archive: archive(t, hardlink("h", "/")), want: []string{"hard link"}},
		{name: "hard link that climbs", archive: archive(t, hardlink("h", "../../etc/shadow")), want: []string{".."}},
		{name: "name too long", archive: archive(t, file(strings.Repeat("n", 256), "")), want: []string{"255"}},
		{name: "path too long", archive: archive(t, folder(strings.Repeat("nn/", 1400))), want: []string{"4096"}},
		{name: "link target too long", archive: archive(t, symlink("l", strings.Repeat("x", 4096))), want: []string{"target"}},
		{name: "link to nothing", archive: archive(t, symlink("l", "")), want: []string{"link to nothing"}},
		{name: "link loop as parent", archive: archive(t, symlink("a", "b"), symlink("b", "a"), file("a/x", "")), want: []string{"loop", "a/x"}},
		{name: "link to itself as parent", archive: archive(t, symlink("a", "a/a"), file("a/x", "")), want: []string{"loop"}},
		{name: "too deep through links", archive: archive(t,
			folder(deep), symlink("l", deep), folder("l/"+deep), symlink(deep+"m", deep[:len(deep)-2]+"/d/"+deep), folder(deep+"m/"+deep), file(deep+"m/"+deep+"x", "")), want: []string{"deep"}},
		{name: "file as parent", archive: archive(t, file("a", ""), file("a/x", "")), want: []string{"not a directory"}},
		{name: "root a link", archive: archive(t, symlink("./.", "x")), want: []string{"root"}},
		{name: "file over the limit", opts: FlattenOptions{Limits: Limits{FileBytes: 1999}}, archive: archive(t, big), want: []string{"big", "1999"}},
		{name: "total over the limit", opts: FlattenOptions{Limits: Limits{TotalBytes: 3999}}, archive: archive(t, big, big), want: []string{"big", "3999"}},
		{name: "too many entries", opts: FlattenOptions{Limits: Limits{Entries: 2}}, archive: archive(t, folder("a"), folder("b"), folder("c")), want: []string{"c", "2 entries"}},
		{name: "too many bytes of names", opts: FlattenOptions{Limits: Limits{NameBytes: 10}}, archive: archive(t, symlink("a", "0123456789")), want: []string{"names"}},
		{name: "one layer's entries count for the next", opts: FlattenOptions{Limits: Limits{Entries: 1}}, archive: archive(t, folder("a"), folder("a")), want: []string{"entries"}},
		{name: "unknown type", archive: archive(t, entry{Header: tar.Header{Typeflag: tar.TypeCont, Name: "c"}}), want: []string{"type"}},
		{name: "whiteout of nothing", opts: FlattenOptions{Whiteouts: true}, archive: archive(t, file("d/.wh.", "")), want: []string{"whiteout"}},
		{name: "whiteout of dotdot", opts: FlattenOptions{Whiteouts: true}, archive: archive(t, file("d/.wh...", "")), want: []string{"whiteout"}},
		{name: "not an archive", archive: bytes.Repeat([]byte("not a tar archive"), 100), want: []string{"damaged"}},
		{name: "nothing", archive: nil, want: []string{"cut off"}},
		{name: "sparse bomb", archive: sparseBomb(t), want: []string{"bomb", "limit"}},
		{name: "negative size", archive: negativeSize(t), want: []string{"damaged"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := flattenTo(t, tt.opts, tt.archive)
			if err == nil {
				t.Fatal("Flatten succeeded, want a refusal")
			}
			for _, want := range append(tt.want, ErrRefused.Error()) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error = %.500v, want it to contain %q", err, want)
				}
			}
		})
	}
}

// sparseBomb is an archive of two KiB that unpacks to 2^40 bytes.
func sparseBomb(t *testing.T) []byte {
	t.Helper()
	var pax bytes.Buffer
	for _, r := range [][2]string{{"GNU.sparse.major", "0"}, {"GNU.sparse.minor", "1"}, {"GNU.sparse.name", "bomb"}, {"GNU.sparse.size", "1099511627776"}, {"GNU.sparse.numblocks", "1"}, {"GNU.sparse.map", "0,1"}} {
		n := len(r[0]) + len(r[1]) + 3
		for len(fmt.Sprint(n))+len(r[0])+len(r[1])+3 != n {
			n++
		}
		fmt.Fprintf(&pax, "%d %s=%s\n", n, r[0], r[1])
	}
	raw := archive(t, file("paxheader", pax.String()), file("bomb", "x"))
	raw[156] = tar.TypeXHeader
	fixChecksum(raw[:512])
	return raw
}

func negativeSize(t *testing.T) []byte {
	t.Helper()
	raw := archive(t, file("neg", "x"))
	copy(raw[124:136], bytes.Repeat([]byte{0xff}, 12)) // base-256 for -1
	fixChecksum(raw[:512])
	return raw
}

func fixChecksum(header []byte) {
	copy(header[148:156], "        ")
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	copy(header[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

// An archive that was cut off is noticed wherever the cut is, between entries
// too, where archive/tar sees a complete one.
func TestFlattenTruncated(t *testing.T) {
	whole := archive(t, folder("d"), file("d/a", strings.Repeat("x", 1000)), symlink("l", "d"), file("b", "y"))
	contentEnd := len(whole) - 1024
	for n := 0; n <= contentEnd; n += 64 {
		if _, _, err := flattenTo(t, FlattenOptions{}, whole[:n]); err == nil {
			t.Errorf("cut at byte %d of %d: accepted, want a refusal", n, len(whole))
		}
	}
	for _, b := range [][]byte{whole, whole[:contentEnd+512], append(bytes.Clone(whole), make([]byte, 9000)...)} {
		if _, _, err := flattenTo(t, FlattenOptions{}, b); err != nil {
			t.Errorf("complete archive of %d bytes: %v", len(b), err)
		}
	}
}

// The same layers give the same bytes, and only what is in them counts.
func TestFlattenDeterministic(t *testing.T) {
	var entries []entry
	for i := range 500 {
		entries = append(entries, file(fmt.Sprintf("d%d/f%d", i%17, i), strings.Repeat("x", i*37%9000)))
	}
	lower, upper := archive(t, entries...), archive(t, file("d3/f3", "new"), file("d4/.wh.f4", ""))
	sum := func() string {
		f, _, err := flattenTo(t, FlattenOptions{Whiteouts: true}, lower, upper)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%x", sha256.Sum256(b))
	}
	want := sum()
	for range 3 {
		if got := sum(); got != want {
			t.Errorf("digest = %s, want %s again", got, want)
		}
	}
	// Pinned, so that a change of the format is a decision: stores keep images by
	// these digests.
	if pinned := "a4fb85caf088a24e20a13bcc69734b0f9d8bba098db6dfbeec539349bf9b1e2b"; want != pinned {
		t.Errorf("digest = %s, want %s", want, pinned)
	}
}

func TestFlattenTimes(t *testing.T) {
	old, fine := time.Unix(-86400, 0), time.Unix(1<<33, 123456789)
	a := archive(t,
		entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: "old", ModTime: old, Format: tar.FormatPAX}},
		entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: "fine", ModTime: fine, Format: tar.FormatPAX}},
	)
	f, _, err := flattenTo(t, FlattenOptions{}, a)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]time.Time{"old": old, "fine": fine, ".": time.Unix(0, 0)} {
		st := statOf(t, f, name)
		if got := time.Unix(int64(st.Mtime), int64(st.MtimeNs)); !got.Equal(want) {
			t.Errorf("%s: time %v, want %v", name, got, want)
		}
	}
}
