package image

import (
	"context"
	"io"
	"os"
	"testing"
)

// BenchmarkFlatten measures the whole way from an archive to a stored image with
// its digest, for the archive that $BOUVET_BENCH_TAR names.
func BenchmarkFlatten(b *testing.B) {
	path := os.Getenv("BOUVET_BENCH_TAR")
	if path == "" {
		b.Skip("no archive to measure with: run `BOUVET_BENCH_TAR=/a/rootfs.tar go test -bench Flatten ./image`")
	}
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(info.Size())
	layer := func(context.Context) (io.ReadCloser, error) { return os.Open(path) }
	for b.Loop() {
		f := newOutput(b)
		if _, err := Flatten(b.Context(), []Layer{layer}, f, FlattenOptions{DropDevices: true}); err != nil {
			b.Fatal(err)
		}
		if _, err := hashFile(b.Context(), f, nil); err != nil {
			b.Fatal(err)
		}
	}
}
