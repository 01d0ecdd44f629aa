package vsock

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// The preamble agrees on where a mux session begins in a byte stream that may
// hold the rest of an earlier one (a virtio-serial port after its host process
// was restarted). The host says hello with a fresh nonce, again and again until
// the guest echoes it; then it says start, the guest answers go, and what
// follows go, in either direction, is yamux. Repeated hellos before start and
// echoes before go are skipped by both.
//
//	host:  \nBOUVET-MUX 1 hello <nonce>\n
//	guest: \nBOUVET-MUX 1 hello <nonce>\n
//	host:  \nBOUVET-MUX 1 start <nonce>\n
//	guest: \nBOUVET-MUX 1 go <nonce>\n
const (
	preambleMagic = "BOUVET-MUX 1 "
	nonceLen      = 32
	// maxPreambleLine bounds a line; longer ones are the rest of something else.
	maxPreambleLine = len(preambleMagic) + len("hello ") + nonceLen
)

func newNonce() string {
	var b [nonceLen / 2]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails; it ends the program instead.
	return hex.EncodeToString(b[:])
}

func writePreamble(w io.Writer, verb, nonce string) error {
	_, err := fmt.Fprintf(w, "\n%s%s %s\n", preambleMagic, verb, nonce)
	return err
}

// A preambleReader finds preamble lines in a stream, skips all else, and then
// reads on as a plain reader.
type preambleReader struct {
	r    io.Reader
	buf  [512]byte
	have []byte
}

// next returns the verb and nonce of the next preamble line.
func (p *preambleReader) next() (verb, nonce string, err error) {
	var line []byte
	for {
		for len(p.have) > 0 {
			c := p.have[0]
			p.have = p.have[1:]
			if c != '\n' {
				// One byte beyond the bound is enough to tell that it is not ours.
				if len(line) <= maxPreambleLine {
					line = append(line, c)
				}
				continue
			}
			if verb, nonce, ok := parsePreamble(line); ok {
				return verb, nonce, nil
			}
			line = line[:0]
		}
		n, err := p.r.Read(p.buf[:])
		p.have = p.buf[:n]
		if n == 0 && err != nil {
			return "", "", err
		}
	}
}

func parsePreamble(line []byte) (verb, nonce string, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(preambleMagic))
	if !ok || len(line) > maxPreambleLine {
		return "", "", false
	}
	v, n, ok := bytes.Cut(rest, []byte(" "))
	if !ok || len(n) != nonceLen {
		return "", "", false
	}
	return string(v), string(n), true
}

// Read implements io.Reader for what follows the preamble.
func (p *preambleReader) Read(b []byte) (int, error) {
	if len(p.have) > 0 {
		n := copy(b, p.have)
		p.have = p.have[n:]
		return n, nil
	}
	return p.r.Read(b)
}

// awaitVerb reads preamble lines until verb with this nonce.
func (p *preambleReader) awaitVerb(verb, nonce string) error {
	for {
		v, n, err := p.next()
		if err != nil {
			return err
		}
		if v == verb && n == nonce {
			return nil
		}
	}
}

// acceptPreamble is the guest's side: it returns when both sides may speak yamux.
func acceptPreamble(w io.Writer, p *preambleReader) error {
	nonce := ""
	for {
		verb, n, err := p.next()
		if err != nil {
			return err
		}
		switch {
		case verb == "hello":
			nonce = n
			if err := writePreamble(w, "hello", nonce); err != nil {
				return err
			}
		case verb == "start" && n == nonce && nonce != "":
			return writePreamble(w, "go", nonce)
		}
	}
}

var errMuxClosed = errors.New("mux is closed")
