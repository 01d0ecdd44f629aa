package vmtest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"sync"

	"github.com/bouvet-run/bouvet"
)

var transferSections = []section{
	{"files", files},
	{"T10 8 MiB through a command", throughCommand},
	{"8 MiB up and down", upAndDown},
	{"both ways at once", bothWays},
}

// bulk is how much the sections move, in bytes; no multiple of any buffer.
const bulk = 8<<20 + 4711

// noise returns bytes that no layer can take for text.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Files and directories.
func files(e *env) {
	g := e.boot(e.config())
	dir := g.tempDir()
	ctx := e.context()
	if err := g.WriteFile(ctx, dir+"/a/b/text", "grüße\n"); err != nil {
		e.Fatal(err)
	}
	if got, err := g.ReadFile(ctx, dir+"/a/b/text"); got != "grüße\n" {
		e.Errorf("got %q, %v", got, err)
	}
	if err := g.WriteBytes(ctx, dir+"/bytes", []byte{0, 0xff, '\n'}, &bouvet.FileOptions{Mode: 0o640}); err != nil {
		e.Error(err)
	}
	if got, err := g.ReadBytes(ctx, dir+"/bytes"); !bytes.Equal(got, []byte{0, 0xff, '\n'}) {
		e.Errorf("got %q, %v", got, err)
	}
	if info, err := g.Stat(ctx, dir+"/bytes"); err != nil || info.Size != 3 || info.Mode != 0o640 {
		e.Errorf("stat: got %+v, %v", info, err)
	}
	if err := g.Move(ctx, dir+"/bytes", dir+"/moved"); err != nil {
		e.Error(err)
	}
	if entries, err := g.ListDir(ctx, dir); err != nil || len(entries) != 2 || entries[0].Name != "a" || !entries[0].IsDir || entries[1].Name != "moved" {
		e.Errorf("list: got %+v, %v", entries, err)
	}
	if err := g.Remove(ctx, dir+"/a"); err != nil {
		e.Error(err)
	}
	if _, err := g.ReadFile(ctx, dir+"/a/b/text"); err == nil {
		e.Error("a removed file was read")
	}
}

// Bytes survive the way to a command and back.
func throughCommand(e *env) {
	g := e.boot(e.config())
	data := noise(bulk)
	c := g.Command(e.context(), "cat")
	c.Stdin = bytes.NewReader(data)
	if got, err := c.Output(); err != nil || !bytes.Equal(got, data) {
		e.Errorf("got %d bytes, %v, want the %d sent", len(got), err, len(data))
	}
}

func upAndDown(e *env) {
	g := e.boot(e.config())
	path := g.tempDir() + "/file"
	data := noise(bulk)
	if n, err := g.Upload(e.context(), path, bytes.NewReader(data), nil); err != nil || n != bulk {
		e.Fatalf("upload: got %d, %v", n, err)
	}
	if got, want := g.sh("sha256sum < "+path), digest(data)+"  -"; got != want {
		e.Errorf("digest in the guest: got %s, want %s", got, want)
	}
	sum := sha256.New()
	if n, err := g.Download(e.context(), path, sum); err != nil || n != bulk || hex.EncodeToString(sum.Sum(nil)) != digest(data) {
		e.Errorf("download: got %d bytes, %v, or another digest", n, err)
	}
}

// Streams in both directions of one machine do not stand in each other's way.
func bothWays(e *env) {
	g := e.boot(e.config())
	dir := g.tempDir()
	data := noise(bulk / 4)
	g.sh("head -c 2000000 /dev/zero > " + dir + "/zeros")
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			c := g.Command(e.context(), "cat")
			c.Stdin = bytes.NewReader(data)
			if got, err := c.Output(); err != nil || !bytes.Equal(got, data) {
				e.Errorf("command: got %d bytes, %v, want %d", len(got), err, len(data))
			}
		})
		all.Go(func() {
			if n, err := g.Download(e.context(), dir+"/zeros", io.Discard); err != nil || n != 2_000_000 {
				e.Errorf("download: got %d, %v", n, err)
			}
		})
	}
	all.Wait()
}
