package agent

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/wire"
)

var errNotText = errors.New(`its content is not valid UTF-8; ask for it with "encoding":"base64", or download it`)

// openRegular opens a file for reading without ever waiting for one: not for the
// writer of a fifo, nor by waking a device.
func openRegular(path string) (*os.File, os.FileInfo, error) {
	info, err := os.Stat(path)
	if err == nil {
		err = regular(info)
	}
	if err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	// The name may stand for another file by now.
	if info, err = f.Stat(); err == nil {
		err = regular(info)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

func regular(info os.FileInfo) error {
	switch {
	case info.IsDir():
		return errIsDirectory
	case !info.Mode().IsRegular():
		return errNotRegular
	}
	return nil
}

func callReadFile(_ context.Context, _ *Server, params json.RawMessage) (any, error) {
	var p wire.ReadFileParams
	if err := decodeParams(params, &p); err != nil {
		return nil, err
	}
	if err := checkPath("path", p.Path); err != nil {
		return nil, err
	}
	if p.Encoding != "" && p.Encoding != wire.EncodingBase64 {
		return nil, invalid("unknown encoding %q", shorten(p.Encoding, maxShownMethod))
	}
	if p.Offset > math.MaxInt64 || p.Length > math.MaxInt64 {
		return nil, invalid("offset and length are at most 2^63-1")
	}
	info, err := os.Stat(p.Path)
	if err != nil {
		return nil, failed("stat", p.Path, err)
	}
	part := p.Offset != 0 || p.Length != 0
	if !part && info.Mode().IsRegular() && info.Size() > wire.MaxContent {
		return nil, tooLarge(p.Path, info.Size())
	}
	f, info, err := openRegular(p.Path)
	if err != nil {
		return nil, failed("read", p.Path, err)
	}
	defer func() { _ = f.Close() }()
	content, err := readPart(f, p)
	switch {
	case errors.Is(err, errTooLarge) && !part:
		return nil, tooLarge(p.Path, max(info.Size(), int64(len(content))))
	case err != nil:
		return nil, failed("read", p.Path, err)
	case p.Encoding == "" && !utf8.Valid(content):
		return nil, failed("read", p.Path, errNotText)
	}
	result := fileContent{content: content, encoding: p.Encoding}
	if part || p.Encoding != "" {
		size := uint64(info.Size()) //nolint:gosec // sizes are not negative.
		result.size = &size
	}
	return result, nil
}

func tooLarge(path string, size int64) error {
	return fmt.Errorf("file '%s' is too large (%d bytes, max %d bytes)", shorten(path, maxShownPath), size, wire.MaxContent)
}

var errTooLarge = fmt.Errorf("the part is longer than %d bytes; read it in pieces, or download it", wire.MaxContent)

// readPart reads what is asked for. The size that the file claims does not count:
// files of /proc claim none.
func readPart(f *os.File, p wire.ReadFileParams) ([]byte, error) {
	if p.Offset > 0 {
		if _, err := f.Seek(int64(p.Offset), io.SeekStart); err != nil { //nolint:gosec // checked.
			return nil, err
		}
	}
	want := uint64(wire.MaxContent + 1)
	if p.Length > 0 {
		want = min(want, p.Length)
	}
	content, err := readAtMost(f, int(want))
	if err == nil && len(content) > wire.MaxContent {
		err = errTooLarge
	}
	return content, err
}

func readAtMost(f *os.File, n int) ([]byte, error) {
	size := 512
	if info, err := f.Stat(); err == nil && info.Size() > int64(size) {
		size = int(min(info.Size()+1, int64(n))) // and room to see the end
	}
	b := make([]byte, 0, min(size, n))
	for len(b) < n {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		got, err := f.Read(b[len(b):min(cap(b), n)])
		b = b[:len(b)+got]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

// fileContent answers read_file piece by piece: the answer as a whole could be
// six times the content, in a guest that has little memory.
type fileContent struct {
	content  []byte
	encoding string
	size     *uint64
}

// piece is how much of the content is encoded at once. It is a multiple of three,
// as base64 wants, and its text is about a ChunkSize.
const piece = 48 << 10

func (r fileContent) writeAnswer(w io.Writer, id uint64) error {
	buf := fmt.Appendf(make([]byte, 0, 2*wire.ChunkSize), `{"jsonrpc":"2.0","id":%d,"result":{"content":"`, id)
	rest := r.content
	for len(rest) > 0 {
		n := min(piece, len(rest))
		if r.encoding == wire.EncodingBase64 {
			buf = base64.StdEncoding.AppendEncode(buf, rest[:n])
		} else {
			for n < len(rest) && !utf8.RuneStart(rest[n]) {
				n--
			}
			text, err := wire.AppendLine(nil, string(rest[:n]))
			if err != nil {
				return err
			}
			buf = append(buf, text[1:len(text)-2]...) // without the quotes and the newline
		}
		rest = rest[n:]
		if len(buf) >= wire.ChunkSize {
			if _, err := w.Write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
	}
	buf = append(buf, '"')
	if r.encoding != "" {
		buf = fmt.Appendf(buf, `,"encoding":%q`, r.encoding)
	}
	if r.size != nil {
		buf = fmt.Appendf(buf, `,"size":%d`, *r.size)
	}
	_, err := w.Write(append(buf, "}}\n"...))
	return err
}
