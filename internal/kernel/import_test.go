package kernel

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// packed wraps a compressed image of n bytes as the kernel's build does.
func packed(payload []byte, n int) []byte {
	if !bytes.HasPrefix(payload, gzipMagic) {
		payload = binary.LittleEndian.AppendUint32(payload, uint32(n))
	}
	b := make([]byte, 2*sector)
	b[setupSectsAt] = 1
	copy(b[headerMagicAt:], "HdrS")
	binary.LittleEndian.PutUint32(b[payloadLengthAt:], uint32(len(payload)))
	return append(b, payload...)
}

func gzipped(data []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(data)
	_ = z.Close()
	return b.Bytes()
}

func zstdOf(t *testing.T, data []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return z.EncodeAll(data, nil)
}

func filtered(t *testing.T, tool string, data []byte) []byte {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("%s is missing: run `apt-get install xz-utils bzip2`", tool)
	}
	cmd := exec.Command(tool, "-c")
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestImportFormats(t *testing.T) {
	image := vmlinuxOf("6.9.1-own")
	for name, pack := range map[string]func(*testing.T) []byte{
		"ELF":    func(*testing.T) []byte { return image },
		"lz4":    func(*testing.T) []byte { return bzImage(image) },
		"gzip":   func(*testing.T) []byte { return packed(gzipped(image), len(image)) },
		"zstd":   func(t *testing.T) []byte { return packed(zstdOf(t, image), len(image)) },
		"xz":     func(t *testing.T) []byte { return packed(filtered(t, "xz", image), len(image)) },
		"bzip2":  func(t *testing.T) []byte { return packed(filtered(t, "bzip2", image), len(image)) },
		"config": func(*testing.T) []byte { return append(vmlinuxOf("6.9.1-own"), withConfig(string(Fragment))...) },
	} {
		t.Run(name, func(t *testing.T) {
			s, file := openStore(t), filepath.Join(t.TempDir(), "kernel")
			write(t, file, pack(t), 0o644)
			k, err := s.Import(t.Context(), file, ImportOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if k.Manifest.Release != "6.9.1-own" || k.Manifest.Has(MMIOCmdline) != (name == "config") || k.Verify() != nil {
				t.Errorf("got %+v, %v", k.Manifest, k.Verify())
			}
			if err := s.Remove(k); err != nil {
				t.Error(err)
			}
			wantOnly(t, s)
		})
	}
}

// T06: what is no kernel is refused with the reason, and nothing is kept of it.
func TestImportRefuses(t *testing.T) {
	image := vmlinuxOf("6.9.1-own")
	arm := bytes.Clone(image)
	binary.LittleEndian.PutUint16(arm[18:], 183)
	small := bytes.Clone(image)
	small[4] = 1 // ELFCLASS32
	for name, tt := range map[string]struct {
		data   []byte
		config string
		want   string
	}{
		"nothing":      {nil, "", "neither a bzImage nor an ELF image"},
		"text":         {[]byte(strings.Repeat("text", 999)), "", "neither"},
		"another CPU":  {arm, "", "not for x86-64"},
		"32 bits":      {small, "", "cannot"},
		"no PVH":       {elfFile(note("GNU", 3)), "", "no PVH entry"},
		"no version":   {vmlinux(), "", "does not tell its version"},
		"evil version": {vmlinuxOf("6\x1b[31m"), "", "does not tell its version"},
		"gzip cut off": {packed(gzipped(image)[:40], 9), "", "EOF"},
		"zstd garbage": {packed(append(bytes.Clone(zstdMagic), "garbage garbage"...), 9), "", "cannot read kernel"},
		"lzma":         {packed([]byte{0x5d, 0, 0, 0, 0, 0, 0, 0, 0}, 9), "", "none of LZ4, gzip"},
		"wrong length": {packed(zstdOf(t, image), 9), "", "and says 9"},
		"no config":    {image, "evil", "line 1"},
		"not enough":   {image, "CONFIG_PVH=y\n", "CONFIG_EROFS_FS is n"},
		"unmet module": {image, strings.ReplaceAll(string(Fragment), "CONFIG_EROFS_FS=y", "CONFIG_EROFS_FS=m"), "CONFIG_EROFS_FS is m (modules: see --modules)"},
	} {
		s, file := openStore(t), filepath.Join(t.TempDir(), "kernel")
		write(t, file, tt.data, 0o644)
		if _, err := s.Import(t.Context(), file, ImportOptions{Config: []byte(tt.config)}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
		if entries, _ := os.ReadDir(s.dir); len(entries) > 0 {
			t.Errorf("%s: left %v", name, entries)
		}
	}
	s, dir := openStore(t), t.TempDir()
	fifo, sparse := filepath.Join(dir, "fifo"), filepath.Join(dir, "sparse")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, sparse, nil, 0o600)
	if err := os.Truncate(sparse, imageMax+1); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{fifo: "not a regular file", dir: "not a regular file", sparse: "more than", filepath.Join(dir, "absent"): "no such file"} {
		if _, err := s.Import(t.Context(), file, ImportOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", file, err, want)
		}
	}
}

func TestImportModules(t *testing.T) {
	const release = "6.9.1-own"
	file, dir := filepath.Join(t.TempDir(), "kernel"), t.TempDir()
	write(t, file, vmlinuxOf(release), 0o644)
	good := func(info ...string) []byte { return elfFile(nil, append(info, "vermagic="+release+" SMP")...) }
	write(t, filepath.Join(dir, "kernel/drivers/virtio_mmio.ko"), good("depends=virtio-ring"), 0o644)
	write(t, filepath.Join(dir, "kernel/drivers/virtio-ring.ko"), good("depends="), 0o644)
	write(t, filepath.Join(dir, "kernel/fs/erofs.ko.zst"), zstdOf(t, good("softdep=pre: crc32c")), 0o644)
	write(t, filepath.Join(dir, "kernel/fs/overlay.ko.gz"), gzipped(good()), 0o644)
	write(t, filepath.Join(dir, "kernel/fs/evil.ko"), []byte("evil"), 0o644) // nobody wants it
	write(t, filepath.Join(dir, builtinName), []byte("kernel/drivers/block/virtio_blk.ko\nkernel/drivers/char/virtio_console.ko\nkernel/net/vmw_vsock/vmw_vsock_virtio_transport.ko\nkernel/drivers/char/hw_random/virtio-rng.ko\n"), 0o644)
	s := openStore(t)
	k, err := s.Import(t.Context(), file, ImportOptions{Modules: dir})
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, m := range k.Manifest.Modules {
		order = append(order, filepath.Base(m.Name))
	}
	if got := strings.Join(order, " "); got != "virtio_ring.ko virtio_mmio.ko erofs.ko overlay.ko" {
		t.Errorf("modules: got %s", got)
	}
	for name, data := range map[string][]byte{
		"of another kernel": elfFile(nil, "vermagic=6.9.1 SMP"), "garbage": []byte("garbage"), "bomb": gzipped(make([]byte, moduleMax+1)),
	} {
		write(t, filepath.Join(dir, "kernel/fs/overlay.ko.gz"), data, 0o644)
		if _, err := s.Import(t.Context(), file, ImportOptions{Modules: dir}); err == nil || !strings.Contains(err.Error(), "overlay.ko.gz") {
			t.Errorf("%s: got %v, want the file's name", name, err)
		}
	}
	if _, err := s.Import(t.Context(), file, ImportOptions{Modules: filepath.Join(dir, "absent")}); err == nil {
		t.Error("no such directory: got no error")
	}
	wantOnly(t, s, k.Digest)
}

// The default is a kernel without modules, then one with them, then an unknown one;
// of two alike, the one that came last.
func TestPreference(t *testing.T) {
	s := openStore(t)
	put := func(release, dotConfig string, modules ...module) Kernel {
		t.Helper()
		k, err := s.addParts(Manifest{Release: release}, vmlinux(), modules, []byte(dotConfig))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	want := func(name, release string) {
		t.Helper()
		if k, err := s.Find(name); err != nil || k.Manifest.Release != release {
			t.Errorf("find %q: got %s, %v, want %s", name, k.Manifest.Release, err, release)
		}
	}
	put("unknown", "")
	want("", "unknown")
	put("fetched", "CONFIG_A=y\n", module{"erofs", []byte("erofs")})
	want("", "fetched")
	built := put("built", string(Fragment))
	want("", "built")
	put("later", "", module{"erofs", []byte("erofs")})
	want("", "built")
	want("fetched", "fetched")
	want(built.Digest[:20], "built")
	if err := s.Remove(built); err != nil {
		t.Fatal(err)
	}
	want("", "later")
}
