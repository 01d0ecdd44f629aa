package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/bouvet-run/bouvet/wire"
)

func TestFrames(t *testing.T) {
	payloads := [][]byte{nil, []byte("a"), bytes.Repeat([]byte("xyz"), 5000), make([]byte, wire.MaxPayload), []byte("last")}
	var stream []byte
	for i, p := range payloads {
		stream = wire.AppendFrame(stream, byte(i)+wire.FrameStdin, p)
	}
	for name, r := range map[string]io.Reader{
		"whole": bytes.NewReader(stream), "by byte": iotest.OneByteReader(bytes.NewReader(stream)), "data with error": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		f := wire.NewFrameReader(r)
		for i, want := range payloads {
			kind, got, err := f.ReadFrame()
			if err != nil || kind != byte(i)+wire.FrameStdin || !bytes.Equal(got, want) {
				t.Fatalf("%s: frame %d: got kind %d, %d bytes, %v, want %d bytes", name, i, kind, len(got), err, len(want))
			}
		}
		for range 2 {
			if _, _, err := f.ReadFrame(); !errors.Is(err, io.EOF) {
				t.Errorf("%s: at the end: got %v, want EOF", name, err)
			}
		}
	}
}

// T18: truncated at every byte.
func TestFrameTruncated(t *testing.T) {
	frame := wire.AppendFrame(nil, wire.FrameData, []byte("payload"))
	for n := 1; n < len(frame); n++ {
		f := wire.NewFrameReader(bytes.NewReader(frame[:n]))
		for range 2 {
			if kind, p, err := f.ReadFrame(); !errors.Is(err, io.ErrUnexpectedEOF) || kind != 0 || p != nil {
				t.Errorf("after %d bytes: got %d, %q, %v, want %v", n, kind, p, err, io.ErrUnexpectedEOF)
			}
		}
	}
}

func TestFrameRefused(t *testing.T) { // T18
	header := func(kind byte, n uint32) []byte {
		return binary.BigEndian.AppendUint32([]byte{kind}, n)
	}
	for _, tc := range []struct {
		name string
		in   []byte
		want string
	}{
		{"one byte too long", header(wire.FrameData, wire.MaxPayload+1), "payload of 1048577 bytes, at most 1048576 are allowed"},
		{"4 GiB", header(wire.FrameStdout, 0xFFFFFFFF), "payload of 4294967295 bytes"},
		{"kind 0", header(0, 1), "unknown kind 0"},
		{"kind 7", header(7, 1), "unknown kind 7"},
		{"kind 255 of 4 GiB", header(255, 0xFFFFFFFF), "unknown kind 255"},
		{"JSON instead", []byte(`{"type":"stdout"}`), "unknown kind 123"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := wire.NewFrameReader(io.MultiReader(bytes.NewReader(tc.in), bytes.NewReader(wire.AppendFrame(nil, wire.FrameData, nil))))
			var err error
			if got := allocated(func() { _, _, err = f.ReadFrame() }); got > 64<<10 {
				t.Errorf("%d bytes allocated", got)
			}
			if !errors.Is(err, wire.ErrBadFrame) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if _, _, again := f.ReadFrame(); !errors.Is(again, wire.ErrBadFrame) {
				t.Errorf("the reader went on: got %v", again)
			}
		})
	}
}

func TestPutFrameHeader(t *testing.T) {
	buf := append(make([]byte, wire.FrameHeaderLen), "data"...)
	wire.PutFrameHeader(buf, wire.FrameData, 4)
	if want := wire.AppendFrame(nil, wire.FrameData, []byte("data")); !bytes.Equal(buf, want) {
		t.Errorf("got %x, want %x", buf, want)
	}
}
