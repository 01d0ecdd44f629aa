package vsock_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
)

const someNonce = "0123456789abcdef0123456789abcdef"

func FuzzPreamble(f *testing.F) {
	hello := "\nBOUVET-MUX 1 hello " + someNonce + "\n"
	for _, s := range []string{"", hello, "garbage" + hello, hello[:20] + hello, hello + hello, "\nBOUVET-MUX 1 hello \n", "\nBOUVET-MUX 1  " + someNonce + "\n", "\nBOUVET-MUX 2 hello " + someNonce + "\n"} {
		f.Add([]byte(s), uint8(0))
		f.Add([]byte(s), uint8(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, how uint8) {
		var r io.Reader = bytes.NewReader(b)
		if how%2 == 1 {
			r = iotest.OneByteReader(r)
		}
		br := bufio.NewReaderSize(r, 128)
		var got []string
		for {
			verb, nonce, err := vsock.NextPreamble(br)
			if err != nil {
				break
			}
			got = append(got, "BOUVET-MUX 1 "+verb+" "+nonce)
		}
		// The model: whole lines that have the form.
		var want []string
		lines := strings.Split(string(b), "\n")
		for _, line := range lines[:len(lines)-1] {
			fields := strings.Split(line, " ")
			if len(fields) == 4 && fields[0] == "BOUVET-MUX" && fields[1] == "1" && len(fields[3]) == 32 && len(line) <= 51 && strings.Trim(fields[3], "0123456789abcdef") == "" {
				want = append(want, line)
			}
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// scripted is a conn that reads from a text and swallows what is written.
type scripted struct {
	net.Conn
	io.Reader
}

func (s scripted) Read(b []byte) (int, error)  { return s.Reader.Read(b) }
func (s scripted) Write(b []byte) (int, error) { return len(b), nil }
func (s scripted) SetDeadline(time.Time) error { return nil }

func FuzzHandshake(f *testing.F) {
	for _, s := range []string{"OK 52\n", "OK 4294967295\nrest", "OK\n", "OK  5\n", "OK 5", "", "\n", "OK 5\r\n", strings.Repeat("x", 100), "OK 5" + strings.Repeat(" ", 59) + "\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		err := vsock.Handshake(context.Background(), scripted{Reader: r}, 52)
		line, _, ended := bytes.Cut(b, []byte("\n"))
		_, ok := wire.ParseOK(line)
		if want := ok && ended && len(line) < wire.MaxHandshakeLine; (err == nil) != want {
			t.Fatalf("%q: got %v, want success %v", b, err, want)
		}
		if err == nil && len(b)-r.Len() != len(line)+1 {
			t.Errorf("%q: %d bytes were read", b, len(b)-r.Len())
		}
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("error of %d bytes", len(err.Error()))
		}
	})
}

// FuzzMuxGuard: for each stream that is not muted, flags and data come out as they
// went in, in frames that are whole.
func FuzzMuxGuard(f *testing.F) {
	f.Add(append(muxHeader(0, typeData, flagACK|flagFIN, 1, 3), "abc"...), true, uint8(0))
	f.Add(append(muxHeader(0, typeData, flagRST, 3, 3), "abc"...), true, uint8(1))
	f.Add(muxHeader(0, typeWindow, flagSYN, 1, 9), false, uint8(0))
	f.Add(muxHeader(0, typePing, flagSYN, 0, 9), false, uint8(1))
	f.Add(muxHeader(0, typeGoAway, 0, 0, 0), true, uint8(0))
	f.Add(muxHeader(0, typeData, 0, 1, 0xFFFFFFFF), false, uint8(0))
	const muted = 3
	f.Fuzz(func(t *testing.T, b []byte, host bool, how uint8) {
		var r io.Reader = bytes.NewReader(b)
		if how%2 == 1 {
			r = iotest.OneByteReader(r)
		}
		guard, mute := vsock.NewMuxGuard(r, host)
		mute(muted)
		out, err := io.ReadAll(guard)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && len(err.Error()) > 200 {
			t.Errorf("got %v", err)
		}
		in := summary(t, b, false, host)
		got := summary(t, out, true, host)
		// What came out is a beginning of what went in.
		for id, want := range in {
			have := got[id]
			if id == muted && host {
				continue
			}
			if !strings.HasPrefix(want.data, have.data) || have.flags&^want.flags != 0 {
				t.Errorf("stream %d: got %q %d, want %q %d", id, have.data, have.flags, want.data, want.flags)
			}
		}
		for id := range got {
			if _, ok := in[id]; !ok {
				t.Errorf("stream %d came from nowhere", id)
			}
		}
	})
}

type muxSummary struct {
	data  string
	flags uint16
}

// summary reads frames until one is bad. Those of a guard must not be.
func summary(t *testing.T, b []byte, guarded, host bool) map[uint32]muxSummary {
	t.Helper()
	streams := map[uint32]muxSummary{}
	for len(b) >= 12 {
		flags, id, n := binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
		kind, version := b[1], b[0]
		b = b[12:]
		if guarded && (version != 0 || kind > typePing || kind == typeData && n > vsock.MaxMuxData || host && (kind == typePing || flags&flagSYN != 0)) {
			t.Fatalf("the guard let a frame of type %d, flags %d, %d bytes pass", kind, flags, n)
		}
		if version != 0 || kind > typePing || kind == typeData && n > vsock.MaxMuxData {
			return streams
		}
		s := streams[id]
		s.flags |= flags
		if kind == typeData {
			k := min(int(n), len(b))
			s.data += string(b[:k])
			b = b[k:]
		}
		streams[id] = s
	}
	return streams
}
